// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/election/make_elected.hpp"

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/json.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "files/whole_file.hpp"
#include "net/frame.hpp"
#include "net/http_call.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/crc.hpp>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {
namespace {

/// The entry of a lease where it is kept, and what this agent knows of it. The operations are those
/// of LeaderLease, but wait for their answers, so one thread makes them all.
class LeaseEntry {
 public:
  using Leader = LeaderLease::Leader;
  virtual ~LeaseEntry() = default;
  virtual Result<std::optional<Leader>> read() = 0;
  virtual Result<Leader> claim(const std::string& value) = 0;
  virtual Result<bool> renew() = 0;
  virtual Result<bool> record(const std::string& record) = 0;
  virtual void release(bool forget) = 0;

  /// Nothing has been asked for a while.
  virtual void rest() {}
  /// Whether the latest change has failed for want of space.
  virtual bool is_full() const { return false; }
  virtual boost::asio::ip::address own_address() const { return {}; }
};

constexpr std::size_t kBlock = 4096;  // a page, so that few writes are seen half done
constexpr std::size_t kMaxLeaseFile = 128 << 10;
constexpr int kLooks = 5;
constexpr auto kBetweenLooks = std::chrono::milliseconds(2);

/// What the file of a lease says. No value: it is free, but epochs go on from here.
struct LeaseRecord {
  std::string value;
  std::int64_t epoch = 0, heartbeat = 0;
  std::int64_t renewed = 0;  // by the wall clock of the leader, for people
  std::string record{};
  std::int64_t version = 0;
  std::size_t slot_size = 0;  // of its file; 0: it has none yet
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

std::optional<LeaseRecord> parse_slot(std::string_view slot) {
  auto parsed = parse_json(trim(slot));
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const std::string sum = member_text_or(*parsed, "sum", "");
  // "sum" is the last member: erase() fills a gap with the last one, and the checksum depends on
  // the order.
  parsed->as_object().erase("sum");
  if (sum != checksum(parsed->as_object())) return std::nullopt;
  return LeaseRecord{member_text_or(*parsed, "value", ""),
                     member_int_or(*parsed, "epoch", 0),
                     member_int_or(*parsed, "heartbeat", 0),
                     member_int_or(*parsed, "renewed", 0),
                     member_text_or(*parsed, "record", ""),
                     member_int_or(*parsed, "version", 0),
                     slot.size()};
}

std::optional<LeaseRecord> parse_slots(std::string_view text) {
  if (text.size() % (2 * kBlock) != 0) return std::nullopt;
  auto first = parse_slot(text.substr(0, text.size() / 2));
  auto second = parse_slot(text.substr(text.size() / 2));
  // A reader without the lock may find one slot half written; the other one is whole then.
  if (!first || (second && second->version > first->version)) return second;
  return first;
}

Result<LeaseRecord> read_record(const std::string& path, Cached cached) {
  for (int look = 1;; ++look) {
    const auto text = read_text(path, cached);
    if (!text) return std::unexpected(text.error());
    if (trim(*text).empty()) return LeaseRecord{};
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

std::string encode_slot(const LeaseRecord& record) {
  json::object fields{{"value", record.value},         {"epoch", record.epoch},
                      {"heartbeat", record.heartbeat}, {"renewed", record.renewed},
                      {"record", record.record},       {"version", record.version}};
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

int write_in_place(const std::string& path, const std::string& slot, std::int64_t version) {
  const auto fd = files::open_by_name(path, O_WRONLY);
  if (!fd) return errno;
  // In turn, so that a writer that dies in the middle leaves the other slot whole.
  return write_at(fd->get(), slot, version % 2 == 0 ? 0 : slot.size());
}

int replace_file(const std::string& path, const std::string& slot) {
  const std::string draft = fmt::format("{}.{}", path, random_text(8));
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // Both slots the same: the next write, in place, may then take either one.
  int number = fd ? write_at(fd.get(), slot + slot, 0) : errno;
  if (number == 0 && ::rename(draft.c_str(), path.c_str()) != 0) number = errno;
  if (fd && number != 0) ::unlink(draft.c_str());
  return number;
}

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

// A leader that is alive renews three times in one: nothing that slow is a leader any more.
constexpr int kManyTtls = 10;

// Not the loop's Clock, which its thread alone may ask.
TimePoint now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}
std::int64_t wall_seconds() {
  return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
}

/// An entry in a file that all nodes share. Its leader counts a number in it up while it lives; who
/// sees the number stand still for a TTL and a half, by its own clock, may take it. So clocks of
/// machines are never compared. Changes are made under a lock on a second file (fcntl(2), which NFS
/// passes on to its server). A record in an entry that is older than ten TTLs and `record_life`, by
/// the clock of the file system, is forgotten.
///
/// The file has two slots of one size, written in turn, in place, each with a version and a
/// checksum; each is one line of JSON, so people can read them. A reader that holds no lock takes
/// the newer one that is whole: one of them always is, also when a writer has died within a write.
/// And a file system without any space left still takes what is written over blocks that are there,
/// as long as it does not copy on write.
class FileEntry final : public LeaseEntry {
 public:
  FileEntry(std::string file, Duration ttl, Duration record_life)
      : file_(std::move(file)), ttl_(ttl), record_life_(record_life) {}

  Result<std::optional<Leader>> read() override {
    const auto asked = now();
    const auto record = seen_after(asked, read_record(file_, Cached::Yes));
    if (!record) return std::unexpected(record.error());
    if (!is_live(*record)) return std::nullopt;
    return Leader{record->value, record->epoch};
  }

  Result<Leader> claim(const std::string& value) override {
    const auto asked = now();
    const auto held = lock();
    if (!held) return std::unexpected(held.error());
    const auto record = seen_after(asked, read_record(file_, Cached::No));
    if (!record) return std::unexpected(record.error());
    // Live is what has changed under this process's own clock: by wall clocks, a healthy leader on
    // a machine 100 s behind once looked ten TTLs old.
    if (is_live(*record)) return Leader{record->value, record->epoch};
    // With the last record: who leads next has to know that world.
    LeaseRecord next = *record;
    next.value = value;
    ++next.epoch, next.heartbeat = 0, next.renewed = wall_seconds();
    // So old an entry is left over from an earlier job, and no world of its record can still run.
    if (age(*held) > kManyTtls * ttl_ + record_life_) next.record.clear();
    if (const auto written = write(next); !written) return std::unexpected(written.error());
    mine_ = next;
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
    auto record = read_record(file_, Cached::No);
    // The epoch stays, so that no later leader is taken for an older one.
    if (held && record && is_ours(*record)) {
      record->value.clear(), record->heartbeat = 0;
      if (forget) record->record.clear();
      (void)write(*record);
    }
    mine_.reset();
  }

  bool is_full() const override { return full_; }

 private:
  // Changes the entry, if it is still ours.
  template <class Change>
  Result<bool> rewrite(Change change) {
    if (!mine_) return false;
    const auto held = lock();
    if (!held) return std::unexpected(held.error());
    auto record = read_record(file_, Cached::No);
    if (!record) return std::unexpected(record.error());
    // Lost for good: what this node claims later is another entry.
    if (!is_ours(*record)) {
      mine_.reset();
      return false;
    }
    record->renewed = wall_seconds();
    change(*record);
    if (const auto written = write(*record); !written) return std::unexpected(written.error());
    return true;
  }

  Result<UniqueFd> lock() const { return lock_file(file_ + ".lock"); }
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
                       ::stat(file_.c_str(), &entry) == 0;
    return std::chrono::seconds(known ? here.st_mtim.tv_sec - entry.st_mtim.tv_sec : 0);
  }

  // After it was read, under the same lock.
  Status write(LeaseRecord& record) {
    ++record.version;
    std::string slot = encode_slot(record);
    const std::size_t least = (slot.size() / kBlock + 1) * kBlock;
    // In place, over blocks that the file has already: a full disk or a quota must not end a lease.
    const bool fits = least <= record.slot_size;
    // Of the size of the slot that it covers, or the rest of that would follow it.
    slot.resize(fits ? record.slot_size - 1 : least - 1, ' ');
    slot += '\n';
    const int number =
        fits ? write_in_place(file_, slot, record.version) : replace_file(file_, slot);
    full_ = number == ENOSPC || number == EDQUOT;
    if (number == 0) return {};
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot write {}", file_), number));
  }

  const std::string file_;
  const Duration ttl_, record_life_;
  std::optional<LeaseRecord> mine_;
  LeaseRecord seen_;
  TimePoint seen_since_;
  bool full_ = false;  // at the latest write
};

/// Where etcd is, who we are to it, and the keys of the job.
struct EtcdSettings {
  std::vector<net::Endpoint> endpoints{};  // tried in this order, from the last one that answered
  std::shared_ptr<net::TlsClient> tls{};   // null: http
  std::string user{}, password{};          // empty: no login
  Duration limit{};                        // of one request at one endpoint
  std::string key{}, record_key{};
  Duration ttl{};          // TTL of the lease; whole seconds
  Duration record_life{};  // of that of records, renewed with the other one
};

/// A key in etcd, by its JSON gateway. Logs in when it must, goes to the next endpoint when one
/// does not answer.
class EtcdEntry final : public LeaseEntry {
 public:
  explicit EtcdEntry(EtcdSettings settings) : settings_(std::move(settings)) {}

  Result<std::optional<Leader>> read() override {
    const auto range = read_key(settings_.key);
    if (!range) return std::unexpected(range.error());
    if (!*range) return std::nullopt;
    return Leader{(*range)->value, (*range)->create_revision};
  }

  Result<Leader> claim(const std::string& value) override {
    // The lease first: an entry without one would outlive its leader.
    const auto lease = grant(settings_.ttl);
    if (!lease) return std::unexpected(lease.error());
    // A create revision of 0 is that of a key that does not exist.
    auto request = if_created(0, "request_put", put(settings_.key, value, *lease));
    request["failure"] = json::array{json::object{{"request_range", range(settings_.key)}}};
    const auto read = [&value](std::string_view text) { return etcd::read_create(text, value); };
    const auto there = ask("/v3/kv/txn", request, read);
    if (!there || !*there || (*there)->value != value) {
      // After an error it may have been done or not; without its lease it is undone.
      revoke(*lease);
      if (!there) return std::unexpected(there.error());
      if (!*there) return fail(Code::Io, "etcd: the entry came and went");
      return Leader{(*there)->value, (*there)->create_revision};
    }
    lease_ = *lease;
    last_record_.clear();  // of another term
    epoch_ = (*there)->create_revision;
    const auto last = read_key(settings_.record_key);
    if (last) return Leader{value, epoch_, *last ? (*last)->value : ""};
    // A leader that does not know the last world could form a second one beside it: rather do not
    // lead.
    revoke(std::exchange(lease_, 0));
    return std::unexpected(last.error());
  }

  Result<bool> renew() override {
    const auto lease = keep_alive(lease_);
    if (!lease) return std::unexpected(lease.error());
    // A lease that has lapsed does not fail the call: etcd answers it without a time to live.
    if (lease->ttl <= 0) return false;
    // The lease may live on although the entry was deleted by hand.
    const auto found = read();
    if (!found) return std::unexpected(found.error());
    const bool still = *found && (*found)->epoch == epoch_;
    if (still) renew_record();
    return still;
  }

  Result<bool> record(const std::string& record) override {
    last_record_ = record;
    if (record_lease_ == 0) {
      // Its own lease: the record has to outlive the entry by as long as a world may run without
      // its leader.
      const auto lease = grant(settings_.record_life);
      if (!lease) return std::unexpected(lease.error());
      record_lease_ = *lease;
    }
    const auto written =
        ask("/v3/kv/txn",
            if_created(epoch_, "request_put", put(settings_.record_key, record, record_lease_)),
            etcd::read_success);
    if (!written) record_lease_ = 0;  // perhaps it has lapsed
    return written;
  }

  void release(bool forget) override {
    if (lease_ == 0) return;
    // First the record: a candidate that finds the entry free must not find a world that has ended.
    // A successor's record is the only trace of its world: a process that was frozen must leave it.
    if (forget) {
      (void)ask("/v3/kv/txn",
                if_created(epoch_, "request_delete_range", range(settings_.record_key)));
    }
    // From here on nothing renews it, also if the answer is lost.
    revoke(std::exchange(lease_, 0));
  }

  void rest() override { kept_.emplace(*clock_); }
  boost::asio::ip::address own_address() const override { return own_; }

 private:
  static json::object range(std::string_view key) { return {{"key", net::encode_base64(key)}}; }
  static json::object put(std::string_view key, std::string_view value, std::int64_t lease) {
    return {{"key", net::encode_base64(key)},
            {"value", net::encode_base64(value)},
            {"lease", std::to_string(lease)}};
  }
  // A transaction that does that if the entry still has that revision.
  json::object if_created(std::int64_t revision, std::string_view name, json::object operation) {
    // By its revision and not by its value: that is the epoch, which fences late writers.
    json::object same{{"key", net::encode_base64(settings_.key)},
                      {"target", "CREATE"},
                      {"result", "EQUAL"},
                      {"create_revision", std::to_string(revision)}};
    return {{"compare", json::array{std::move(same)}},
            {"success", json::array{json::object{{name, std::move(operation)}}}}};
  }

  Result<std::optional<etcd::Entry>> read_key(const std::string& key) {
    return ask("/v3/kv/range", range(key), etcd::read_range);
  }
  Result<std::int64_t> grant(Duration ttl) {
    // etcd's leases have whole seconds. Rounded down, one could end before this node counts on it
    // to.
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(ttl).count();
    const auto lease = ask("/v3/lease/grant", {{"TTL", std::to_string(seconds)}}, etcd::read_lease);
    if (!lease) return std::unexpected(lease.error());
    return lease->id;
  }
  Result<etcd::LeaseAnswer> keep_alive(std::int64_t lease) {
    return ask("/v3/lease/keepalive", {{"ID", std::to_string(lease)}}, etcd::read_lease);
  }
  void revoke(std::int64_t lease) {
    (void)ask("/v3/lease/revoke", {{"ID", std::to_string(lease)}});
  }

  /// Not with each renewal of the entry, if it lives much longer than that; four times in its life.
  /// One that has lapsed all the same, or was revoked, is granted again.
  void renew_record() {
    const auto each =
        std::clamp<std::int64_t>(settings_.record_life / 4 / (settings_.ttl / 3), 1, 8);
    if (++renewals_ % each != 0) return;
    if (record_lease_ != 0) {
      const auto lease = keep_alive(record_lease_);
      if (!lease || lease->ttl > 0) return;
      record_lease_ = 0;
      lapsed_ = true;
    }
    if (lapsed_ && !last_record_.empty()) lapsed_ = !record(std::string(last_record_));
  }

  // The answer as `read` understands it, or why there was none.
  template <class Read>
  auto ask(const std::string& target, const json::object& body, Read read)
      -> decltype(read(std::string_view())) {
    const auto text = ask(target, body);
    if (!text) return std::unexpected(text.error());
    return read(*text);
  }
  // Posts `body`; the body of a 200.
  Result<std::string> ask(const std::string& target, const json::object& body) {
    const bool has_login = !settings_.user.empty();
    // Logging in first saves the refusal; a refusal tells that a token has expired.
    const bool fresh = has_login && token_.empty();
    if (fresh) {
      if (auto in = log_in(); !in) return std::unexpected(in.error());
    }
    const auto text = json::serialize(body);
    bool bad_token = false;
    auto posted = post(target, text, bad_token);
    // Without a login etcd asks for one. With a login the token is old (a user was added, another
    // member took over): log in again, for that must not end a job.
    if (bad_token && !has_login) posted.error().code = Code::Usage;
    // Once: what is refused right after a login is not for want of a fresh token.
    if (bad_token && has_login && !fresh) {
      if (auto in = log_in(); !in) return std::unexpected(in.error());
      posted = post(target, text, bad_token);
    }
    return posted;
  }

  // `bad_token`: refused, because of that.
  Result<std::string> post(const std::string& target, const std::string& body, bool& bad_token) {
    std::vector<std::string> troubles;
    Error error;
    for (std::size_t tried = 0; tried < settings_.endpoints.size(); ++tried) {
      auto response = fetch(target, body);
      if (response && response->status == 200) return std::move(response->body);
      // A certificate that is not to be trusted does not become better at the next server.
      auto refused = response ? etcd::read_refusal(response->status, response->body)
                              : etcd::Refused{response.error(), false, true};
      bad_token = refused.bad_token && !refused.unavailable;
      if (!refused.unavailable) return std::unexpected(std::move(refused.error));
      error = std::move(refused.error);
      troubles.push_back(error.text);
      good_ = (good_ + 1) % settings_.endpoints.size();
    }
    // All of them: a user has to see which endpoint fails in which way.
    error.text = join(troubles, "; ");
    return std::unexpected(std::move(error));
  }

  Result<net::HttpResponse> fetch(const std::string& target, const std::string& body) {
    net::HttpRequest request{.target = target, .body = body};
    if (!token_.empty()) request.headers.emplace_back("Authorization", token_);
    std::optional<Result<net::HttpResponse>> answer;
    const auto call = net::fetch(
        loop_, *clock_, {settings_.endpoints.at(good_), settings_.tls, settings_.limit, &*kept_},
        std::move(request), [&answer](auto response) { answer = std::move(response); });
    loop_.restart();
    while (!answer) loop_.run_one();
    // The address by which this machine goes out is one by which others mostly reach it.
    if (*answer) own_ = (*answer)->own;
    return *std::move(answer);
  }

  Status log_in() {
    token_.clear();
    bool bad_token = false;
    const json::object login{{"name", settings_.user}, {"password", settings_.password}};
    const auto posted = post("/v3/auth/authenticate", json::serialize(login), bad_token);
    auto token = posted ? etcd::read_token(*posted) : posted;
    if (!token) return std::unexpected(token.error().context("cannot log in to etcd"));
    token_ = std::move(*token);
    return {};
  }

  const EtcdSettings settings_;
  std::int64_t lease_ = 0, epoch_ = 0, record_lease_ = 0;
  std::int64_t renewals_ = 0;
  std::string last_record_;
  bool lapsed_ = false;  // the record has gone and is to be made again

  // The connection
  boost::asio::io_context loop_;  // of the calls alone
  const std::unique_ptr<Clock> clock_ = make_system_clock(loop_.get_executor());
  std::size_t good_ = 0;  // endpoint that answered last
  std::string token_;
  boost::asio::ip::address own_;  // on the last connection; unspecified before
  std::optional<net::KeptConnection> kept_{std::in_place, *clock_};
};

/// Makes the calls of an entry on a separate thread.
class BlockingLease final : public LeaderLease {
 public:
  BlockingLease(boost::asio::io_context& loop, Clock& clock, std::string place, Duration ttl,
                std::unique_ptr<LeaseEntry> entry)
      : clock_(clock),
        place_(std::move(place)),
        ttl_(ttl),
        rest_(clock.make_alarm()),
        deadline_(clock.make_alarm()),
        entry_(std::move(entry)),
        calls_(loop.get_executor()) {}

  void read(Answer<std::optional<Leader>> answer) override {
    ask([](LeaseEntry& entry) { return entry.read(); }, std::move(answer));
  }
  void claim(const std::string& value, Answer<Leader> answer) override {
    ask([value](LeaseEntry& entry) { return entry.claim(value); }, std::move(answer));
  }
  void renew(Answer<bool> answer) override {
    ask([](LeaseEntry& entry) { return entry.renew(); },
        [this, answer = std::move(answer)](Result<bool> still) {
          if (!still && is_full_) warn_of_space(still.error());
          if (still) warned_of_space_ = false;
          answer(std::move(still));
        });
  }
  void record(const std::string& record, Answer<bool> answer) override {
    ask([record](LeaseEntry& entry) { return entry.record(record); }, std::move(answer));
  }
  void release(bool forget, Then done) override {
    released_ = std::move(done);
    const auto tell = [this] {
      deadline_->disarm();
      if (auto told = std::exchange(released_, {})) told();
    };
    // Do not wait for a register that does not answer: the entry lapses by itself.
    deadline_->arm(clock_.now() + ttl_, tell);
    ask([forget](LeaseEntry& entry) { return entry.release(forget), true; },
        [tell](bool) { tell(); });
  }
  Duration ttl() const override { return ttl_; }
  boost::asio::ip::address own_address() const override { return own_; }

 private:
  template <class Call, class Told>
  void ask(Call call, Told told) {
    // Longer than the pause between two renewals. An agent that only follows has no use for the
    // connection that it keeps, and a server none for thousands of them.
    rest_->arm(clock_.now() + std::chrono::seconds(10), [this] {
      calls_.make(
          place_, [entry = entry_] { return entry->rest(), true; }, [](bool) {});
    });
    calls_.make(
        place_,
        [entry = entry_, call = std::move(call)] {
          auto answer = call(*entry);
          return std::tuple(std::move(answer), entry->is_full(), entry->own_address());
        },
        [this, told = std::move(told)](auto answer) {
          is_full_ = std::get<1>(answer);
          own_ = std::get<2>(answer);
          told(std::move(std::get<0>(answer)));
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
  const std::string place_;
  const Duration ttl_;
  const std::unique_ptr<Alarm> rest_, deadline_;
  Then released_;
  bool is_full_ = false, warned_of_space_ = false;
  boost::asio::ip::address own_;
  const std::shared_ptr<LeaseEntry> entry_;  // with the thread
  files::BlockingCalls calls_;               // last: uses the above
};

using spec::RendezvousConfig;

/// `tls`: whether they are asked by it.
Result<std::vector<net::Endpoint>> read_servers(const std::string& text, bool& tls) {
  std::vector<net::Endpoint> servers;
  for (const std::string& part : split(text, ',')) {
    std::string_view rest = trim(part);
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!starts_with_ignoring_case(rest, scheme)) continue;
      rest.remove_prefix(scheme.size());
      // One of them with TLS means all, since a request may go to each.
      tls = tls || scheme == "https://";
    }
    if (rest.ends_with('/')) rest.remove_suffix(1);
    auto endpoint = net::parse_endpoint(rest, spec::kEtcdPort);
    if (!endpoint) return std::unexpected(endpoint.error());
    servers.push_back(std::move(*endpoint));
  }
  return servers;
}

Result<std::string> read_password(const RendezvousConfig& config) {
  if (config.user.empty() || !config.password.empty()) return config.password;
  auto password = read_secret(config.password_file, "");
  if (password && password->empty()) {
    return fail(Code::Usage, fmt::format("etcd's user {} needs password or password_file in "
                                         "--rdzv-conf",
                                         config.user));
  }
  return password;
}

/// Where the entry of a job is, if `path` is a directory; `path` itself otherwise.
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

// Twice as long as anybody waits because of one.
Duration record_life(const SessionSettings& settings) {
  return 2 * settings.isolation() + settings.config.lease_ttl;
}

}  // namespace

Result<std::string> read_secret(const std::string& file, const std::string& given) {
  if (file.empty()) return given;
  const auto text = read_file(file);
  if (!text) {
    return fail(Code::Usage, "cannot read the secret of the job, secret_file=" + text.error().text);
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    log::warning("rendezvous",
                 "the secret in {} can be read by others on this machine: chmod 600 {}", file,
                 file);
  }
  const std::string secret(trim(*text));
  // Elsewhere an empty one means that the job has none.
  if (secret.empty()) {
    return fail(Code::Usage, fmt::format("the secret of the job (secret_file={}) is empty", file));
  }
  return secret;
}

Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const SessionSettings& job) {
  const RendezvousConfig& config = job.config;
  bool uses_tls = to_lower(config.protocol) == "https";
  auto servers = read_servers(job.endpoint, uses_tls);
  if (!servers) return std::unexpected(servers.error());
  EtcdSettings settings{.endpoints = std::move(*servers)};
  if (uses_tls && config.ssl_cert.empty() != config.ssl_cert_key.empty())
    return fail(Code::Usage, "a client certificate for etcd needs both ssl_cert and ssl_cert_key");
  if (uses_tls) {
    auto tls = net::load_tls({config.ca_cert, config.ssl_cert, config.ssl_cert_key});
    if (!tls) return std::unexpected(tls.error());
    settings.tls = std::move(*tls);
  }
  auto password = read_password(config);
  if (!password) return std::unexpected(password.error());
  settings.user = config.user;
  settings.password = std::move(*password);
  std::string prefix = config.etcd_prefix;
  // A part without a name would make another key than that of nodes without the slash.
  while (prefix.ends_with('/')) prefix.pop_back();
  settings.key = fmt::format("{}/{}/coordinator", prefix, job.run_id);
  settings.record_key = fmt::format("{}/{}/world", prefix, job.run_id);
  settings.ttl = config.lease_ttl;
  settings.record_life = record_life(job);
  // One that does not answer must leave time for the others before the TTL is over.
  settings.limit = std::clamp<Duration>(settings.ttl / 4, std::chrono::milliseconds(500),
                                        std::chrono::seconds(5));
  return std::make_unique<BlockingLease>(loop, clock, "etcd", config.lease_ttl,
                                         std::make_unique<EtcdEntry>(std::move(settings)));
}

Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const SessionSettings& job) {
  std::string path(trim(job.endpoint));
  if (path.empty()) {
    // As torchrun: a new, unknown file. Only one node can meet there.
    UniqueFd created;
    for (const auto& place : temporary_places()) {
      path = place + "/elastrun.XXXXXX";
      if (created.reset(::mkstemp(path.data())); created) break;
    }
    if (!created)
      return std::unexpected(errno_error(Code::Usage, fmt::format("cannot make {}", path), errno));
  }
  const std::string file = lease_file(path, job.run_id);
  const auto parent = std::filesystem::path(file).parent_path();
  struct stat status {};
  // Said now: later it would pass for a register that does not answer.
  if (!parent.empty() && (::stat(parent.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))) {
    return fail(Code::Usage,
                fmt::format("the rendezvous file {} cannot exist: {} is not a directory that "
                            "this node can see",
                            file, parent.string()));
  }
  const Duration ttl = job.config.lease_ttl;
  return std::make_unique<BlockingLease>(loop, clock, file, ttl,
                                         std::make_unique<FileEntry>(file, ttl, record_life(job)));
}

}  // namespace elastrun::rendezvous
