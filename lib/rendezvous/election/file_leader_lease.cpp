// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/election/file_leader_lease.hpp"

#include "core/error.hpp"
#include "core/host.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr std::size_t kBlock = 4096;  // a page, so that few writes are seen half done
constexpr std::size_t kMaxLeaseFile = 128 << 10;
constexpr int kLooks = 5;
constexpr auto kBetweenLooks = std::chrono::milliseconds(2);

struct Stored {
  LeaseRecord record;
  std::int64_t version = 0;
  std::size_t slot_size = 0;
};

// Who held the lock of another file than this one may have written what this machine remembers: NFS
// looks at times of modification alone, which two writes may share.
enum class Cached { Yes, No };

Result<std::string> read_text(const std::string& path, Cached cached) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return "";
  if (!fd)
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
  if (cached == Cached::No) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  std::string text;
  std::array<char, 2 * kBlock> buffer;
  for (ssize_t got = 1; got > 0 && text.size() <= kMaxLeaseFile;) {
    got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0)
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::string checksum(const json::object& fields) {
  const std::string text = json::serialize(fields);
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  return fmt::format("{:08x}", crc.checksum());
}

Stored stored_of(const json::value& parsed, std::size_t slot_size) {
  return {{member_text_or(parsed, "value", ""), member_int_or(parsed, "epoch", 0),
           member_int_or(parsed, "heartbeat", 0),
           static_cast<double>(member_int_or(parsed, "renewed", 0)),
           member_text_or(parsed, "record", "")},
          member_int_or(parsed, "version", 0),
          slot_size};
}

std::optional<Stored> parse_slot(std::string_view slot) {
  auto parsed = parse_json(trim(slot));
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const std::string sum = member_text_or(*parsed, "sum", "");
  // "sum" is the last member: erase() fills a gap with the last one, and the checksum depends on
  // the order.
  parsed->as_object().erase("sum");
  if (sum != checksum(parsed->as_object())) return std::nullopt;
  return stored_of(*parsed, slot.size());
}

std::optional<Stored> parse_slots(std::string_view text) {
  if (text.size() % (2 * kBlock) != 0) return std::nullopt;
  auto first = parse_slot(text.substr(0, text.size() / 2));
  auto second = parse_slot(text.substr(text.size() / 2));
  // A reader without the lock may find one slot half written; the other one is whole then.
  if (!first || (second && second->version > first->version)) return second;
  return first;
}

Result<Stored> read_stored(const std::string& path, Cached cached) {
  for (int look = 1;; ++look) {
    const auto text = read_text(path, cached);
    if (!text) return std::unexpected(text.error());
    if (trim(*text).empty()) return Stored{};
    if (auto slots = parse_slots(*text)) return *std::move(slots);
    // Each slot begins so. Any other file is a user's, which a leader must not overwrite.
    if (!text->starts_with(R"({"value":)")) {
      return fail(Code::Usage, fmt::format("{} is not a rendezvous file; give --rdzv-endpoint a "
                                           "directory or another file",
                                           path));
    }
    if (look == kLooks) {
      return fail(Code::Io, fmt::format("{} is damaged; if that lasts, end the agents of this job "
                                        "and delete it",
                                        path));
    }
    // Both were written while this was read.
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::string encode_slot(const LeaseRecord& record, std::int64_t version) {
  json::object fields{
      {"value", record.value},         {"epoch", record.epoch},
      {"heartbeat", record.heartbeat}, {"renewed", static_cast<std::int64_t>(record.renewed)},
      {"record", record.record},       {"version", version}};
  fields["sum"] = checksum(fields);
  return json::serialize(fields);
}

// The number of an error, 0 if there is none.
int write_at(int fd, std::string_view text, std::size_t offset) {
  const ssize_t got = ::pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset));
  if (got < 0) return errno;
  // A short write to a regular file: there was no more room.
  if (got < static_cast<ssize_t>(text.size())) return ENOSPC;
  // Other machines must see the renewal, and a network file system reports a failed write only
  // here.
  return ::fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

Result<LeaseRecord> LeaseFile::read() const {
  auto stored = read_stored(path_, Cached::Yes);
  if (!stored) return std::unexpected(stored.error());
  return std::move(stored->record);
}

Result<LeaseRecord> LeaseFile::read_locked() {
  auto stored = read_stored(path_, Cached::No);
  if (!stored) return std::unexpected(stored.error());
  version_ = stored->version;
  slot_size_ = stored->slot_size;
  return std::move(stored->record);
}

Status LeaseFile::write(const LeaseRecord& record) {
  std::string slot = encode_slot(record, ++version_);
  const std::size_t least = (slot.size() / kBlock + 1) * kBlock;
  // In place, over blocks that the file has already: a full disk or a quota must not end a lease.
  const bool fits = least <= slot_size_;
  // Of the size of the slot that it covers, or the rest of that would follow it.
  slot.resize(fits ? slot_size_ - 1 : least - 1, ' ');
  slot += '\n';
  return fits ? write_in_place(slot) : replace(slot);
}

Status LeaseFile::failed(int number) {
  full_ = number == ENOSPC || number == EDQUOT;
  if (number == 0) return {};
  return std::unexpected(errno_error(Code::Io, fmt::format("cannot write {}", path_), number));
}

Status LeaseFile::write_in_place(const std::string& slot) {
  const auto fd = files::open_by_name(path_, O_WRONLY);
  if (!fd) return failed(errno);
  // In turn, so that a writer that dies in the middle leaves the other slot whole.
  return failed(write_at(fd->get(), slot, version_ % 2 == 0 ? 0 : slot.size()));
}

Status LeaseFile::replace(const std::string& slot) {
  const std::string draft = fmt::format("{}.{}", path_, random_text(8));
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // Both slots the same: the next write, in place, may then take either one.
  int number = fd ? write_at(fd.get(), slot + slot, 0) : errno;
  if (number == 0 && ::rename(draft.c_str(), path_.c_str()) != 0) number = errno;
  if (fd && number != 0) ::unlink(draft.c_str());
  if (number == 0) slot_size_ = slot.size();
  return failed(number);
}

namespace {

// "process 4711 on n7": as much as anybody may read out of a file.
std::string leader_of(int fd) {
  std::array<char, 320> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
  const auto words = split(
      trim(std::string_view(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)))),
      ' ');
  if (words.size() != 2 || !parse_int(words[1])) return "another process";
  // Others can write this file, and what stands there goes into a message.
  const bool plain = std::ranges::all_of(words[0], [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  return plain ? fmt::format("process {} on {}", words[1], words[0]) : "another process";
}

// For people alone: a lock without it is as good.
void write_leader(int fd) {
  const std::string text = fmt::format("{} {}\n", host_name(), ::getpid());
  if (::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) {
    static_cast<void>(!::ftruncate(fd, static_cast<off_t>(text.size())));
  }
}

// It may have been deleted meanwhile, as people do who read the error: then the next process locks
// another file.
bool is_still_there(int fd, const std::string& name) {
  struct stat own {};
  struct stat there {};
  return ::fstat(fd, &own) == 0 && ::stat(name.c_str(), &there) == 0 && own.st_ino == there.st_ino;
}

}  // namespace

/// Takes an exclusive lock on the file of that name, which is made if need be, and writes into it
/// who has it. The lock is held while the result lives; the kernel gives it back when the process
/// dies. Never waits: fails with Io at once if another process has it, and says which one and what
/// to do. Why a lock, rather than a file that is made with O_EXCL and taken over when it is old: a
/// process that was paused while it had that file would go on, and overwrite what its successor
/// wrote. A lock outlives such a pause. The price: over NFS before version 4 that of a machine that
/// has died within it, for milliseconds of each renewal, stays until the machine is up again.
Result<UniqueFd> lock_file(const std::string& name) {
  auto fd = files::open_by_name(name, O_RDWR | O_CREAT, 0600);
  if (!fd) return fd;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  // Of the open file, not of the process: two sessions in one process are two agents too.
  if (::fcntl(fd->get(), F_OFD_SETLK, &whole) != 0) {
    const int number = errno;
    if (number != EAGAIN && number != EACCES) {
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot lock {}", name), number));
    }
    return fail(Code::Io,
                fmt::format("{} is locked by {}; if that lasts, its machine may have died within "
                            "the lock, which NFS 3 keeps until it is up again: if it is down, "
                            "delete this file",
                            name, leader_of(fd->get())));
  }
  if (!is_still_there(fd->get(), name)) return fail(Code::Io, fmt::format("{} was deleted", name));
  write_leader(fd->get());
  return fd;
}

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

class FileEntry final : public LeaseEntry {
 public:
  FileEntry(std::string file, Duration ttl, Duration record_life)
      : file_(std::move(file)), ttl_(ttl), record_life_(record_life) {}

  Result<std::optional<Leader>> read() override {
    const auto asked = now();
    const auto record = seen_after(asked, file_.read());
    if (!record) return std::unexpected(record.error());
    if (!is_live(*record)) return std::nullopt;
    return Leader{record->value, record->epoch};
  }

  Result<Leader> claim(const std::string& value) override {
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

  Result<bool> renew() override {
    return rewrite([](LeaseRecord& own) { ++own.heartbeat; });
  }

  Result<bool> record(const std::string& record) override {
    return rewrite([&record](LeaseRecord& own) { own.record = record; });
  }

  void release(bool forget) override {
    if (!mine_) return;
    const auto held = lock();
    const auto record = file_.read_locked();
    // The epoch stays, so that no later leader is taken for an older one.
    if (held && record && is_ours(*record)) {
      (void)file_.write({"", record->epoch, 0, record->renewed, forget ? "" : record->record});
    }
    mine_.reset();
  }

  bool is_full() const override { return file_.is_full(); }

 private:
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

}  // namespace

std::unique_ptr<LeaseEntry> make_file_entry(std::string file, Duration ttl, Duration record_life) {
  return std::make_unique<FileEntry>(std::move(file), ttl, record_life);
}

}  // namespace elastrun::rendezvous
