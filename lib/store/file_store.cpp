// SPDX-License-Identifier: Apache-2.0
#include "store/file_store.hpp"

#include "files/whole_file.hpp"
#include "net/frame.hpp"
#include "store/table.hpp"

#include <boost/asio/post.hpp>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::store {
namespace {

// Names of torch: ordinary keys begin with a slash, so these two cannot meet one.
constexpr const char* kReferences = "refcount/";
constexpr const char* kFinished = "cleanup/";
constexpr auto kPollEvery = std::chrono::milliseconds(10);  // torch's own

std::string full(std::string_view key) {
  return "/" + std::string(key);
}

Error file_error(const std::string& path, const char* doing) {
  return errno_error(Code::Io, fmt::format("cannot {} the store's file {}", doing, path), errno);
}

}  // namespace

/// The file, open and locked as long as this lives.
class FileStore::Lock {
 public:
  enum class For { Reading, Writing };
  static Result<Lock> take(const std::string& path, For purpose) {
    // Opened for each lock: its last user may have removed the file, and the next one made it
    // again.
    auto fd = files::open_by_name(path, O_RDWR | O_CREAT, 0644);
    if (!fd) return std::unexpected(file_error(path, "open"));
    // flock(2), because torch's store takes that: a lock of fcntl(2) would not exclude it.
    const int kind = purpose == For::Writing ? LOCK_EX : LOCK_SH;
    while (::flock(fd->get(), kind) != 0) {
      if (errno != EINTR) return std::unexpected(file_error(path, "lock"));
    }
    return Lock(std::move(*fd));
  }
  int fd() const { return fd_.get(); }

 private:
  explicit Lock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;  // closing it unlocks
};

FileStore::FileStore(boost::asio::io_context& loop, Clock& clock, std::string path, int workers)
    : loop_(loop),
      clock_(clock),
      path_(std::move(path)),
      workers_(workers),
      next_poll_(clock.make_alarm()) {}

Result<std::unique_ptr<FileStore>> FileStore::open(boost::asio::io_context& loop, Clock& clock,
                                                   std::string path, int workers) {
  std::unique_ptr<FileStore> store(new FileStore(loop, clock, std::move(path), workers));
  const auto references = store->count(kReferences, 1);
  if (!references) {
    store->path_.clear();  // never counted in
    return std::unexpected(references.error());
  }
  return store;
}

FileStore::~FileStore() {
  if (path_.empty()) return;
  // In torch's order: no user is counted out before it is counted as finished, so with the last
  // reference gone the file has all of them as finished.
  (void)count(kFinished, 1);
  const auto references = count(kReferences, -1);
  if (workers_ < 0 || !references || *references != 0) return;
  // As torch: the last of all workers removes the file, or the next run would read its keys. Asked
  // again, because of two that leave together the first to finish may be the last to go.
  const auto finished = count(kFinished, 0);
  if (finished && *finished >= workers_) ::unlink(path_.c_str());
}

template <class Done, class Answer>
void FileStore::answer(Done done, Answer value) {
  // Never within the call, as no store does: callers may still hold what `done` uses.
  boost::asio::post(loop_, [alive = lifetime_.token(), done = std::move(done),
                            value = std::move(value)]() mutable {
    if (alive) done(std::move(value));
  });
}

/// Reads what was appended since the last time. The file is locked.
Status FileStore::catch_up(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::unexpected(file_error(path_, "look at"));
  if (info.st_size < offset_) {  // removed by its last user, and begun again
    cache_.clear();
    offset_ = 0;
  }
  std::string bytes(static_cast<std::size_t>(info.st_size - offset_), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const auto size =
        ::pread(fd, bytes.data() + got, bytes.size() - got, offset_ + static_cast<off_t>(got));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return std::unexpected(file_error(path_, "read"));
    got += static_cast<std::size_t>(size);
  }
  std::string_view rest = bytes;
  while (!rest.empty()) {
    if (const auto taken = take_record(rest); !taken) return taken;
  }
  return {};
}

Status FileStore::take_record(std::string_view& rest) {
  net::ByteReader reader(rest);
  const auto key_size = reader.number<std::uint32_t>();
  const auto key = key_size ? reader.bytes(*key_size) : std::nullopt;
  const auto value_size = key ? reader.number<std::uint32_t>() : std::nullopt;
  const auto value = value_size ? reader.bytes(*value_size) : std::nullopt;
  if (!value) {
    return fail(Code::Io,
                fmt::format("the store's file {} is torn at byte {}: a writer was killed, "
                            "or it is not a store file; remove it",
                            path_, offset_));
  }
  // An erased key, as torch's FileStore writes it: its file has no gaps.
  if (key->starts_with('-')) {
    cache_.erase(std::string(key->substr(1)));
  } else {
    cache_.insert_or_assign(std::string(*key), std::string(*value));
  }
  offset_ += static_cast<std::int64_t>(rest.size() - reader.rest().size());
  rest = reader.rest();
  return {};
}

/// Appends one record, which is then known here too. The file is locked for writing, and read.
Status FileStore::append(int fd, std::string_view key, std::string_view value) {
  std::string record;
  net::append<std::uint32_t>(record, static_cast<std::uint32_t>(key.size()));
  record.append(key);
  net::append<std::uint32_t>(record, static_cast<std::uint32_t>(value.size()));
  record.append(value);
  std::size_t written = 0;
  while (written < record.size()) {
    const auto size = ::pwrite(fd, record.data() + written, record.size() - written,
                               offset_ + static_cast<off_t>(written));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      const auto error = file_error(path_, "write to");
      // Half a record would make the file useless to everybody.
      std::ignore = ::ftruncate(fd, offset_);
      return std::unexpected(error);
    }
    written += static_cast<std::size_t>(size);
  }
  std::string_view rest = record;
  return take_record(rest);
}

Result<std::int64_t> FileStore::count(const std::string& full_key, std::int64_t delta) {
  const auto lock = Lock::take(path_, Lock::For::Writing);
  if (!lock) return std::unexpected(lock.error());
  if (const auto read = catch_up(lock->fd()); !read) return std::unexpected(read.error());
  const auto found = cache_.find(full_key);
  // What others have appended is read, and the lock keeps them from more: the sum is exact.
  const auto number = found == cache_.end() ? 0 : parse_counter(found->second);
  if (!number) return fail(Code::Store, "the value of the key " + full_key + " is not a number");
  const auto sum = wrapping_add(*number, delta);
  const auto written = append(lock->fd(), full_key, std::to_string(sum));
  if (!written) return std::unexpected(written.error());
  return sum;
}

void FileStore::set(std::string key, std::string value, OnDone done) {
  const auto write = [&]() -> Status {
    const auto lock = Lock::take(path_, Lock::For::Writing);
    if (!lock) return std::unexpected(lock.error());
    if (const auto read = catch_up(lock->fd()); !read) return read;
    return append(lock->fd(), full(key), value);
  };
  answer(std::move(done), write());
}

void FileStore::add(std::string key, std::int64_t delta, OnNumber done) {
  answer(std::move(done), count(full(key), delta));
}

void FileStore::compare_set(std::string key, std::string expected, std::string desired,
                            OnValue done) {
  const auto exchange = [&]() -> Result<std::string> {
    const auto lock = Lock::take(path_, Lock::For::Writing);
    if (!lock) return std::unexpected(lock.error());
    if (const auto read = catch_up(lock->fd()); !read) return std::unexpected(read.error());
    const auto found = cache_.find(full(key));
    const bool missing = found == cache_.end();
    // As torch: an empty expected value stands for a key that is missing.
    const bool stores = missing ? expected.empty() : found->second == expected;
    if (!stores) return missing ? expected : found->second;
    const auto written = append(lock->fd(), full(key), desired);
    if (!written) return std::unexpected(written.error());
    return desired;
  };
  answer(std::move(done), exchange());
}

void FileStore::erase(std::string key, OnFlag done) {
  const auto remove = [&]() -> Result<bool> {
    const auto lock = Lock::take(path_, Lock::For::Writing);
    if (!lock) return std::unexpected(lock.error());
    if (const auto read = catch_up(lock->fd()); !read) return std::unexpected(read.error());
    if (!cache_.contains(full(key))) return false;
    const auto written = append(lock->fd(), "-" + full(key), {});
    if (!written) return std::unexpected(written.error());
    return true;
  };
  answer(std::move(done), remove());
}

Status FileStore::all_there(const std::vector<std::string>& keys, bool& there) {
  const auto lock = Lock::take(path_, Lock::For::Reading);
  if (!lock) return std::unexpected(lock.error());
  if (const auto read = catch_up(lock->fd()); !read) return read;
  there = std::all_of(keys.begin(), keys.end(),
                      [this](const auto& key) { return cache_.contains(full(key)); });
  return {};
}

void FileStore::check(std::vector<std::string> keys, OnFlag done) {
  bool there = false;
  const auto read = all_there(keys, there);
  answer(std::move(done), read ? Result<bool>(there) : std::unexpected(read.error()));
}

void FileStore::get(std::string key, Duration timeout, OnValue done) {
  wait({key}, timeout, [this, key, done = std::move(done)](Status there) {
    if (!there) return done(std::unexpected(there.error()));
    const auto found = cache_.find(full(key));
    if (found != cache_.end()) return done(found->second);
    done(fail(Code::Store, "the key " + key + " was there, but has been erased since"));
  });
}

void FileStore::wait(std::vector<std::string> keys, Duration timeout, OnDone done) {
  bool there = false;
  const auto read = all_there(keys, there);
  if (!read || there) return answer(std::move(done), read);
  const auto deadline = timeout < Duration::zero() ? TimePoint::max() : clock_.now() + timeout;
  waiters_.push_back({std::move(keys), timeout, deadline, std::move(done)});
  if (waiters_.size() == 1) poll_later();
}

void FileStore::poll_later() {
  next_poll_->arm(clock_.now() + kPollEvery, [this] { poll(); });
}

void FileStore::poll() {
  // Answers are posted, so nothing that they call can change this list meanwhile.
  std::erase_if(waiters_, [this](Waiter& waiter) {
    bool there = false;
    auto result = all_there(waiter.keys, there);
    if (result && !there) {
      if (clock_.now() < waiter.deadline) return false;
      result = std::unexpected(wait_timeout(waiter.timeout, waiter.keys));
    }
    answer(std::move(waiter.done), std::move(result));
    return true;
  });
  if (!waiters_.empty()) poll_later();
}

void FileStore::count_keys(OnNumber done) {
  list_keys([done = std::move(done)](auto keys) {
    if (!keys) return done(std::unexpected(keys.error()));
    done(static_cast<std::int64_t>(keys->size()));
  });
}

/// Without torch's own two counters, which its num_keys and list_keys show by mistake.
void FileStore::list_keys(OnKeys done) {
  bool there = false;
  const auto read = all_there({}, there);
  if (!read)
    return answer(std::move(done), Result<std::vector<std::string>>(std::unexpected(read.error())));
  std::vector<std::string> keys;
  for (const auto& [key, value] : cache_) {
    if (key.starts_with('/')) keys.push_back(key.substr(1));
  }
  answer(std::move(done), Result<std::vector<std::string>>(std::move(keys)));
}

}  // namespace elastrun::store
