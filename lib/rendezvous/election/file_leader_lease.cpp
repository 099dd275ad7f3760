// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/file_leader_lease.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "rendezvous/election/file_lock.hpp"

#include <array>
#include <cctype>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

/// What the file says. No value: nobody holds it, but epochs go on from here.
struct Record {
  std::string value;
  std::int64_t epoch = 0;
  std::int64_t heartbeat = 0;
  double renewed = 0;  // wall clock of the leader, for people
  std::string record{};
  bool operator==(const Record&) const = default;
};

constexpr std::size_t kMaxRecord = 64 << 10;
constexpr int kManyTtls = 10;

Result<Record> read_record(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return Record{};
  if (!fd)
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", file), errno));
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got = 1; got > 0 && text.size() <= kMaxRecord;) {
    got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0)
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", file), errno));
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (trim(text).empty()) return Record{};
  const auto parsed = text.size() > kMaxRecord
                          ? Result<json::value>(fail(Code::Protocol, "too long"))
                          : parse_json(text);
  if (!parsed || find_member(*parsed, "epoch") == nullptr) {
    return fail(Code::Usage, fmt::format("{} is no entry of a rendezvous; give --rdzv-endpoint a "
                                         "directory or a file of its own",
                                         file));
  }
  return Record{member_text_or(*parsed, "value", ""), member_int_or(*parsed, "epoch", 0),
                member_int_or(*parsed, "heartbeat", 0),
                static_cast<double>(member_int_or(*parsed, "renewed", 0)),
                member_text_or(*parsed, "record", "")};
}

Status write_record(const std::string& file, const Record& record) {
  const std::string text =
      json::serialize(json::object{{"value", record.value},
                                   {"epoch", record.epoch},
                                   {"heartbeat", record.heartbeat},
                                   {"renewed", static_cast<std::int64_t>(record.renewed)},
                                   {"record", record.record}}) +
      "\n";
  const std::string draft = fmt::format("{}.{}", file, random_text(8));
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written =
      fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(fd.get()) == 0 && ::rename(draft.c_str(), file.c_str()) == 0;
  if (written) return {};
  const int number = errno;
  ::unlink(draft.c_str());
  return std::unexpected(errno_error(Code::Io, fmt::format("cannot write {}", file), number));
}

TimePoint now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}
double wall_seconds() {
  return to_seconds(std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now()));
}

/// The entry, and what this agent knows of it. Used by the thread of the calls alone, one call at a
/// time; it may outlive the lease.
class FileEntry {
 public:
  using Leader = LeaderLease::Leader;
  FileEntry(std::string file, Duration ttl, Duration record_life)
      : file_(std::move(file)), ttl_(ttl), record_life_(record_life) {}

  Result<std::optional<Leader>> leader_now() {
    const auto record = read(now());
    if (!record) return std::unexpected(record.error());
    if (!is_live(*record)) return std::nullopt;
    return Leader{record->value, record->epoch};
  }

  Result<Leader> take(const std::string& value) {
    const auto asked = now();
    const auto held = lock_file(file_ + ".lock");
    if (!held) return std::unexpected(held.error());
    const auto record = read(asked);
    if (!record) return std::unexpected(record.error());
    if (is_live(*record)) return Leader{record->value, record->epoch};
    Record next{value, record->epoch + 1, 0, wall_seconds(), record->record};
    if (age(*held) > kManyTtls * ttl_ + record_life_) next.record.clear();
    if (const auto kept = keep(next); !kept) return std::unexpected(kept.error());
    return Leader{value, next.epoch, next.record};
  }

  // Changes the entry, if it is still ours.
  template <class Change>
  Result<bool> rewrite(Change change) {
    if (!mine_) return false;
    const auto held = lock_file(file_ + ".lock");
    if (!held) return std::unexpected(held.error());
    const auto record = read_record(file_);
    if (!record) return std::unexpected(record.error());
    if (record->value != mine_->value || record->epoch != mine_->epoch) {
      mine_.reset();
      return false;
    }
    Record next = *record;
    next.renewed = wall_seconds();
    change(next);
    if (const auto kept = keep(next); !kept) return std::unexpected(kept.error());
    return true;
  }

  void release(bool forget) {
    if (!mine_) return;
    const auto held = lock_file(file_ + ".lock");
    const auto record = read_record(file_);
    // The epoch stays, so that no later leader is taken for an older one.
    if (held && record && *record == *mine_) {
      (void)write_record(file_,
                         {"", record->epoch, 0, record->renewed, forget ? "" : record->record});
    }
    mine_.reset();
  }

 private:
  // While a file system does not answer us, its leader may be as unable to move its number: such a
  // time is nobody's silence.
  Result<Record> read(TimePoint asked) {
    auto record = read_record(file_);
    const auto took = now() - asked;
    if (took > ttl_ / 4) seen_since_ += took;
    return record;
  }

  // Records since when the entry stands still, and answers whether it is somebody's.
  bool is_live(const Record& record) {
    if (record.epoch != seen_.epoch || record.heartbeat != seen_.heartbeat) {
      seen_ = record;
      seen_since_ = now();
    }
    return !record.value.empty() && now() < seen_since_ + ttl_ * 3 / 2;
  }

  // How long ago the entry was written, by the one clock of its file system.
  Duration age(const UniqueFd& held) const {
    struct stat here {};
    struct stat entry {};
    const bool known = ::futimens(held.get(), nullptr) == 0 && ::fstat(held.get(), &here) == 0 &&
                       ::stat(file_.c_str(), &entry) == 0;
    return std::chrono::seconds(known ? here.st_mtim.tv_sec - entry.st_mtim.tv_sec : 0);
  }

  // Writes what is ours, and remembers it as it will be read.
  Status keep(Record next) {
    if (auto written = write_record(file_, next); !written) return written;
    next.renewed = static_cast<double>(static_cast<std::int64_t>(next.renewed));
    mine_ = std::move(next);
    return {};
  }

  const std::string file_;
  const Duration ttl_, record_life_;
  std::optional<Record> mine_;
  Record seen_;
  TimePoint seen_since_;
};

class FileLeaderLease final : public LeaderLease {
 public:
  FileLeaderLease(boost::asio::io_context& loop, Clock& clock, std::string file, Duration ttl,
                  Duration record_life)
      : clock_(clock),
        file_(file),
        ttl_(ttl),
        look_(clock.make_alarm()),
        deadline_(clock.make_alarm()),
        entry_(std::make_shared<FileEntry>(std::move(file), ttl, record_life)),
        calls_(loop.get_executor()) {}

  void read(std::function<void(Result<std::optional<Leader>>)> answer) override {
    calls_.make(
        file_, [entry = entry_] { return entry->leader_now(); }, std::move(answer));
  }

  void claim(const std::string& value, std::function<void(Result<Leader>)> answer) override {
    calls_.make(
        file_, [entry = entry_, value] { return entry->take(value); }, std::move(answer));
  }

  void renew(std::function<void(Result<bool>)> answer) override {
    const auto heartbeat = [entry = entry_] {
      return entry->rewrite([](Record& own) { ++own.heartbeat; });
    };
    calls_.make(file_, heartbeat, std::move(answer));
  }

  void record(const std::string& record, std::function<void(Result<bool>)> answer) override {
    const auto keep = [entry = entry_, record] {
      return entry->rewrite([&record](Record& own) { own.record = record; });
    };
    calls_.make(file_, keep, std::move(answer));
  }

  void release(bool forget, std::function<void()> done) override {
    const auto once = std::make_shared<std::function<void()>>(std::move(done));
    const auto tell = [this, once] {
      deadline_->disarm();
      if (auto told = std::exchange(*once, {})) told();
    };
    // A file system that does not answer makes nobody wait: the entry lapses by itself.
    deadline_->arm(clock_.now() + ttl_, tell);
    const auto release = [entry = entry_, forget] {
      entry->release(forget);
      return true;
    };
    calls_.make(file_, release, [tell](bool) { tell(); });
  }

  void watch(std::function<void()> changed) override {
    changed_ = std::move(changed);
    look_later();
  }
  void unwatch() override {
    changed_ = nullptr;
    look_->disarm();
  }
  Duration ttl() const override { return ttl_; }

 private:
  // Shared file systems tell nobody of changes made elsewhere (inotify(7)), so this one is looked
  // at.
  void look_later() {
    look_->arm(clock_.now() + std::min<Duration>(ttl_ / 10, std::chrono::milliseconds(500)),
               [this] { look(); });
  }

  void look() {
    read([this](Result<std::optional<Leader>> found) {
      if (!changed_) return;
      const bool same =
          found && *found && (*found)->epoch == told_.epoch && (*found)->value == told_.value;
      told_ = found && *found ? **found : Leader{};
      look_later();
      const auto changed = changed_;
      if (!same && found) changed();
    });
  }

  Clock& clock_;
  const std::string file_;
  const Duration ttl_;
  const std::unique_ptr<Alarm> look_, deadline_;
  std::function<void()> changed_;
  Leader told_;
  std::shared_ptr<FileEntry> entry_;  // with the thread
  files::BlockingCalls calls_;  // its own: a lease does not wait behind logs. Last: uses the above
};

}  // namespace

std::unique_ptr<LeaderLease> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                             std::string file, Duration ttl, Duration record_life) {
  return std::make_unique<FileLeaderLease>(loop, clock, std::move(file), ttl, record_life);
}

std::string lease_file(const std::string& path, std::string_view run_id) {
  struct stat status {};
  const bool directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  if (!directory) return path;
  std::string name;
  for (const char c : run_id) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return fmt::format("{}/elastrun-{}.json", path, name);
}

}  // namespace elastrun::rendezvous
