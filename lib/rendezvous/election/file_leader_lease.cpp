// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/file_leader_lease.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "rendezvous/election/file_lock.hpp"
#include "rendezvous/election/lease_file.hpp"

#include <cctype>
#include <fmt/format.h>
#include <optional>
#include <sys/stat.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// A leader that is alive renews three times in one: nothing that slow is a leader any more.
constexpr int kManyTtls = 10;

// Not the loop's Clock, which its thread alone may ask.
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
    const auto asked = now();
    const auto record = seen_after(asked, file_.read());
    if (!record) return std::unexpected(record.error());
    if (!is_live(*record)) return std::nullopt;
    return Leader{record->value, record->epoch};
  }

  Result<Leader> take(const std::string& value) {
    const auto asked = now();
    const auto held = lock();
    if (!held) return std::unexpected(held.error());
    const auto record = seen_after(asked, file_.read_locked());
    if (!record) return std::unexpected(record.error());
    // Live is what has changed under this process's own clock: by wall clocks, a healthy leader on
    // a machine 100 s behind once looked ten TTLs old.
    if (is_live(*record)) return Leader{record->value, record->epoch};
    // With the last record: who leads next has to know that world.
    LeaseRecord next{value, record->epoch + 1, 0, wall_seconds(), record->record};
    // So old an entry is left over from an earlier job, and no world of its record can still run.
    if (age(*held) > kManyTtls * ttl_ + record_life_) next.record.clear();
    if (const auto kept = keep(next); !kept) return std::unexpected(kept.error());
    return Leader{value, next.epoch, next.record};
  }

  // Changes the entry, if it is still ours.
  template <class Change>
  Result<bool> rewrite(Change change) {
    if (!mine_) return false;
    const auto held = lock();
    if (!held) return std::unexpected(held.error());
    const auto record = file_.read_locked();
    if (!record) return std::unexpected(record.error());
    // Lost for good: what this node claims later is another entry.
    if (!is_ours(*record)) {
      mine_.reset();
      return false;
    }
    LeaseRecord next = *record;
    next.renewed = wall_seconds();
    change(next);
    if (const auto kept = keep(next); !kept) return std::unexpected(kept.error());
    return true;
  }

  void release(bool forget) {
    if (!mine_) return;
    const auto held = lock();
    const auto record = file_.read_locked();
    // The epoch stays, so that no later leader is taken for an older one.
    if (held && record && is_ours(*record)) {
      (void)file_.write({"", record->epoch, 0, record->renewed, forget ? "" : record->record});
    }
    mine_.reset();
  }

  /// Whether the latest write has failed for want of space.
  bool is_full() const { return file_.is_full(); }

 private:
  Result<UniqueFd> lock() const { return lock_file(file_.path() + ".lock"); }
  bool is_ours(const LeaseRecord& record) const {
    return record.value == mine_->value && record.epoch == mine_->epoch;
  }

  // While a file system does not answer us, its leader may be as unable to move its number: such a
  // time does not count as its silence.
  Result<LeaseRecord> seen_after(TimePoint asked, Result<LeaseRecord> record) {
    const auto took = now() - asked;
    if (took > ttl_ / 4) seen_since_ += took;
    return record;
  }

  // Records since when the entry stands still, and answers whether it has a living leader.
  bool is_live(const LeaseRecord& record) {
    if (record.epoch != seen_.epoch || record.heartbeat != seen_.heartbeat) {
      seen_ = record;
      seen_since_ = now();
    }
    // A leader gives up after 19/20 of a TTL; the rest is for renewals that get here late.
    return !record.value.empty() && now() < seen_since_ + ttl_ * 3 / 2;
  }

  // How long ago the entry was written, by the one clock of its file system.
  Duration age(const UniqueFd& held) const {
    struct stat here {};
    struct stat entry {};
    // Touching the lock file asks the file server for its time: machines' own clocks differ.
    const bool known = ::futimens(held.get(), nullptr) == 0 && ::fstat(held.get(), &here) == 0 &&
                       ::stat(file_.path().c_str(), &entry) == 0;
    return std::chrono::seconds(known ? here.st_mtim.tv_sec - entry.st_mtim.tv_sec : 0);
  }

  Status keep(LeaseRecord next) {
    if (auto written = file_.write(next); !written) return written;
    mine_ = std::move(next);
    return {};
  }

  LeaseFile file_;
  const Duration ttl_, record_life_;
  std::optional<LeaseRecord> mine_;
  LeaseRecord seen_;
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
    struct Renewal {
      Result<bool> still;
      bool is_full = false;
    };
    const auto heartbeat = [entry = entry_] {
      auto still = entry->rewrite([](LeaseRecord& own) { ++own.heartbeat; });
      return Renewal{std::move(still), entry->is_full()};
    };
    calls_.make(file_, heartbeat, [this, answer = std::move(answer)](Renewal renewal) {
      if (!renewal.still && renewal.is_full) warn_of_space(renewal.still.error());
      if (renewal.still) warned_of_space_ = false;
      answer(std::move(renewal.still));
    });
  }

  void record(const std::string& record, std::function<void(Result<bool>)> answer) override {
    const auto keep = [entry = entry_, record] {
      return entry->rewrite([&record](LeaseRecord& own) { own.record = record; });
    };
    calls_.make(file_, keep, std::move(answer));
  }

  void release(bool forget, std::function<void()> done) override {
    // The answer and the deadline both come here, and the thread may answer long after the
    // deadline.
    const auto once = std::make_shared<std::function<void()>>(std::move(done));
    const auto tell = [this, once] {
      deadline_->disarm();
      if (auto told = std::exchange(*once, {})) told();
    };
    // Do not wait for a file system that does not answer: the entry lapses by itself.
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
  // Shared file systems do not report changes made on other machines (inotify(7)), hence polling.
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
      // A copy: it may call unwatch().
      const auto changed = changed_;
      if (!same && found) changed();
    });
  }

  void warn_of_space(const Error& error) {
    if (std::exchange(warned_of_space_, true)) return;
    log::warning("rendezvous",
                 "{}: this node cannot renew its election; make room there, or the job stops its "
                 "workers after isolation_timeout",
                 error.text);
  }

  Clock& clock_;
  const std::string file_;
  const Duration ttl_;
  bool warned_of_space_ = false;
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
    // '%' is encoded as well, so two jobs never share a file; '/' and '.' are, so none leaves the
    // directory.
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return fmt::format("{}/elastrun-{}.json", path, name);
}

}  // namespace elastrun::rendezvous
