// SPDX-License-Identifier: Apache-2.0

#include "store/blocking_store.hpp"

#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"
#include "net/dialer.hpp"
#include "net/frame.hpp"
#include "store/table.hpp"
#include "store/tcp_protocol.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <map>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace elastrun::store {

/// The store behind all prefixes. Keys are whole here.
class BlockingStore::Engine {
 public:
  virtual ~Engine() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// The value of a key that wait() has found.
  virtual Result<std::string> get(const std::string& key) = 0;
  virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) = 0;
  virtual Result<bool> check(const std::vector<std::string>& keys) = 0;
  virtual Status wait(const std::vector<std::string>& keys, Duration timeout) = 0;
  virtual Result<bool> erase(const std::string& key) = 0;
};

namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;

TimePoint now() {
  return std::chrono::steady_clock::now();
}

TimePoint deadline_of(Duration timeout) {
  return timeout < Duration::zero() ? TimePoint::max() : now() + timeout;
}

/// "wait timeout after 300ms, keys: a, b": torch's words.
Status wait_timeout(Duration timeout, const std::vector<std::string>& keys) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return fail(Code::Timeout,
              fmt::format("wait timeout after {}ms, keys: {}", ms, join(keys, ", ")));
}

/// As TCPStore and FileStore of torch, whose clients share the keys: bare ones are their own.
std::string slashed(std::string_view key) {
  return "/" + std::string(key);
}

/// False: `fd` was not ready by then.
bool await(int fd, short events, TimePoint until) {
  while (true) {
    const Duration left = until - now();
    const auto bounded = std::clamp<Duration>(left, Duration::zero(), std::chrono::hours(1));
    pollfd one{fd, events, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(bounded).count();
    const int ready = ::poll(&one, 1, static_cast<int>(ms));
    if (ready > 0) return true;
    if (ready == 0 && left <= Duration::zero()) return false;
  }
}

std::string encoded(const Request& request) {
  std::string out;
  append_request(out, request);
  return out;
}

std::string encoded_list(Query query, const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  for (const auto& key : keys) names.push_back(slashed(key));
  const std::vector<std::string_view> texts(names.begin(), names.end());
  return encoded({.query = query, .texts = texts});
}

std::string ping() {
  return encoded({.query = Query::Ping, .number = ::getpid()});
}

Result<UniqueFd> connect_to(const Endpoint& endpoint, TimePoint until) {
  UniqueFd fd(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::unexpected(errno_error(Code::Io, "cannot make a socket", errno));
  int error = 0;
  socklen_t size = sizeof error;
  if (::connect(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0) {
    error = errno;
    if (error == EINPROGRESS && !await(fd.get(), POLLOUT, until)) {
      return fail(Code::Timeout, "it does not answer");
    }
    if (error == EINPROGRESS) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) return fail(Code::Io, std::strerror(error));
  const int on = 1;
  // Requests are small and wait for their answers, and Nagle's algorithm (RFC 896) would hold each
  // second one back until the peer's delayed acknowledgement, for 40 ms.
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

/// A client of any TCPStore server that speaks the current protocol. Its one connection is not made
/// again: when it is lost, all calls fail with Closed.
class BlockingStore::Tcp final : public Engine {
 public:
  explicit Tcp(UniqueFd fd) : fd_(std::move(fd)) {}

  Status greet(TimePoint until) {
    std::string opening(1, '\0');
    net::append<std::uint32_t>(opening, kMagic);
    const std::string greeting = ping();
    const auto nonce = ask(opening + greeting, 4, until);
    if (!nonce) return std::unexpected(nonce.error());
    // Any server may answer something; only a store sends the number back.
    if (*nonce == greeting.substr(1)) return {};
    return fail(Code::Protocol, "it answers, but not as a store");
  }

  Status set(const std::string& key, const std::string& value) override {
    const auto name = slashed(key);
    // SET has no answer; the one of a PING behind it says that it was run.
    const auto nonce = ask(encoded({.query = Query::Set, .key = name, .value = value}) + ping(), 4);
    return nonce ? Status() : std::unexpected(nonce.error());
  }
  Result<std::string> get(const std::string& key) override {
    const auto name = slashed(key);
    return text_for(encoded({.query = Query::Get, .key = name}));
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    const auto name = slashed(key);
    return number_for(encoded({.query = Query::Add, .key = name, .number = delta}));
  }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const auto name = slashed(key);
    return text_for(
        encoded({.query = Query::CompareSet, .key = name, .value = expected, .desired = desired}));
  }
  Result<bool> check(const std::vector<std::string>& keys) override {
    const auto flag = ask(encoded_list(Query::Check, keys), 1);
    if (!flag) return std::unexpected(flag.error());
    return flag->front() == kReady;
  }
  Status wait(const std::vector<std::string>& keys, Duration timeout) override {
    auto flag = ask(encoded_list(Query::Wait, keys), 1, deadline_of(timeout));
    const bool late = !flag && flag.error().code == Code::Timeout;
    if (late) flag = ask(encoded({.query = Query::CancelWait}), 1);
    if (!flag) return std::unexpected(flag.error());
    if (flag->front() != kReady) return wait_timeout(timeout, keys);
    // The key came while the cancellation was on its way, whose answer belongs to no call.
    if (late) flag = receive(1, TimePoint::max());
    return flag ? Status() : std::unexpected(flag.error());
  }
  Result<bool> erase(const std::string& key) override {
    const auto name = slashed(key);
    const auto count = number_for(encoded({.query = Query::Delete, .key = name}));
    if (!count) return std::unexpected(count.error());
    return *count > 0;
  }

 private:
  std::unexpected<Error> lose(Code code, std::string text) {
    if (!lost_) lost_ = Error{code, std::move(text)};
    return std::unexpected(*lost_);
  }
  std::unexpected<Error> lose(std::string_view reason) {
    return lose(Code::Closed,
                fmt::format("the store's server has closed the connection: {}", reason));
  }

  /// Sends, and takes an answer of so many bytes. Fails with Timeout if none has come by then.
  Result<std::string> ask(std::string_view bytes, std::size_t size,
                          TimePoint until = TimePoint::max()) {
    if (lost_) return std::unexpected(*lost_);
    while (!bytes.empty()) {
      const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        await(fd_.get(), POLLOUT, TimePoint::max());
      } else if (errno != EINTR) {
        return lose(std::strerror(errno));
      }
    }
    return receive(size, until);
  }
  Result<std::string> receive(std::size_t size, TimePoint until) {
    constexpr std::size_t kPiece = 1u << 20;  // a server may announce much and send little
    std::string bytes;
    for (std::size_t have = 0; have < size;) {
      if (!await(fd_.get(), POLLIN, until)) return fail(Code::Timeout, "it does not answer");
      bytes.resize(std::min(size, have + kPiece));
      const auto got = ::recv(fd_.get(), bytes.data() + have, bytes.size() - have, 0);
      if (got == 0) return lose("End of file");
      if (got < 0 && errno != EAGAIN && errno != EINTR) return lose(std::strerror(errno));
      have += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    }
    return bytes;
  }

  Result<std::int64_t> number_for(const std::string& request) {
    const auto bytes = ask(request, sizeof(std::int64_t));
    if (!bytes) return std::unexpected(bytes.error());
    return net::load<std::int64_t>(bytes->data());
  }
  Result<std::string> text_for(const std::string& request) {
    // A longer answer does not come from a store: torch's values have 8 MiB, and grow by APPEND.
    constexpr std::uint64_t kMaxAnswer = 1u << 30;
    const auto length = number_for(request);
    if (!length) return std::unexpected(length.error());
    const auto size = static_cast<std::uint64_t>(*length);
    if (size <= kMaxAnswer) return receive(static_cast<std::size_t>(size), TimePoint::max());
    return lose(Code::Protocol, fmt::format("the store's server announces {} bytes", size));
  }

  static constexpr char kReady = 0;  // of CHECK and WAIT
  UniqueFd fd_;
  std::optional<Error> lost_;
};

/// torch's c10d::FileStore: an append-only file that several processes share (torchrun-parity 7.4),
/// the same bytes, so that either side may be torch. Waiting polls every 10 ms, as there. Calls
/// read and write the file under flock(2); so not for file systems where that does not work.
class BlockingStore::File final : public Engine {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}
  ~File() override {
    if (!counted_) return;
    // In torch's order: no user is counted out before it is counted as finished. A user of torch's
    // may remove the file then; how many use it is unknown here, so we never do.
    (void)count(kFinished, 1);
    (void)count(kReferences, -1);
  }

  /// Counts itself in. Fails with Io if the file cannot be made, read or locked, or is torn.
  Status open() {
    const auto references = count(kReferences, 1);
    counted_ = references.has_value();
    return counted_ ? Status() : std::unexpected(references.error());
  }

  Status set(const std::string& key, const std::string& value) override {
    const auto file = locked(LOCK_EX);
    return file ? append(file->get(), slashed(key), value) : std::unexpected(file.error());
  }
  Result<std::string> get(const std::string& key) override {
    const auto found = cache_.find(slashed(key));
    if (found != cache_.end()) return found->second;
    return fail(Code::Store, "the key " + key + " was there, but has been erased since");
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    return count(slashed(key), delta);
  }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const auto file = locked(LOCK_EX);
    if (!file) return std::unexpected(file.error());
    const auto found = cache_.find(slashed(key));
    const bool missing = found == cache_.end();
    // As torch: an empty expected value stands for a key that is missing.
    const bool stores = missing ? expected.empty() : found->second == expected;
    if (!stores) return missing ? expected : found->second;
    if (const auto done = append(file->get(), slashed(key), desired); !done) {
      return std::unexpected(done.error());
    }
    return desired;
  }
  Result<bool> check(const std::vector<std::string>& keys) override {
    if (const auto file = locked(LOCK_SH); !file) return std::unexpected(file.error());
    return std::ranges::all_of(keys,
                               [this](const auto& key) { return cache_.contains(slashed(key)); });
  }
  Status wait(const std::vector<std::string>& keys, Duration timeout) override {
    constexpr auto kPollEvery = std::chrono::milliseconds(10);  // torch's own
    for (const auto until = deadline_of(timeout);; std::this_thread::sleep_for(kPollEvery)) {
      const auto there = check(keys);
      if (!there) return std::unexpected(there.error());
      if (*there) return {};
      if (now() >= until) return wait_timeout(timeout, keys);
    }
  }
  Result<bool> erase(const std::string& key) override {
    const auto file = locked(LOCK_EX);
    if (!file) return std::unexpected(file.error());
    if (!cache_.contains(slashed(key))) return false;
    if (const auto done = append(file->get(), "-" + slashed(key), {}); !done) {
      return std::unexpected(done.error());
    }
    return true;
  }

 private:
  // Names of torch: ordinary keys begin with a slash, so these two cannot meet one.
  static constexpr const char* kReferences = "refcount/";
  static constexpr const char* kFinished = "cleanup/";

  std::unexpected<Error> failed(const char* doing) const {
    return std::unexpected(
        errno_error(Code::Io, fmt::format("cannot {} the store's file {}", doing, path_), errno));
  }

  /// The file, read to its end, and locked as long as it is open.
  Result<UniqueFd> locked(int kind) {
    // Opened for each lock: its last user may have removed the file, and the next one made it
    // again.
    auto file = files::open_by_name(path_, O_RDWR | O_CREAT, 0644);
    if (!file) return failed("open");
    // flock(2), because torch's store takes that: a lock of fcntl(2) would not exclude it.
    while (::flock(file->get(), kind) != 0) {
      if (errno != EINTR) return failed("lock");
    }
    if (const auto read = catch_up(file->get()); !read) return std::unexpected(read.error());
    return file;
  }

  /// Reads what was appended since the last time.
  Status catch_up(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return failed("look at");
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
      if (size <= 0) return failed("read");
      got += static_cast<std::size_t>(size);
    }
    std::string_view rest = bytes;
    while (!rest.empty()) {
      if (const auto taken = take_record(rest); !taken) return taken;
    }
    return {};
  }

  Status take_record(std::string_view& rest) {
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

  /// Appends one record, which is then known here too, to a file that is locked for writing.
  Status append(int fd, std::string_view key, std::string_view value) {
    std::string record;
    for (const auto text : {key, value}) {
      net::append<std::uint32_t>(record, static_cast<std::uint32_t>(text.size()));
      record.append(text);
    }
    std::size_t written = 0;
    while (written < record.size()) {
      const auto size = ::pwrite(fd, record.data() + written, record.size() - written,
                                 offset_ + static_cast<off_t>(written));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) {
        const auto error = failed("write to");
        // Half a record would make the file useless to everybody.
        std::ignore = ::ftruncate(fd, offset_);
        return error;
      }
      written += static_cast<std::size_t>(size);
    }
    std::string_view rest = record;
    return take_record(rest);
  }

  Result<std::int64_t> count(const std::string& full_key, std::int64_t delta) {
    const auto file = locked(LOCK_EX);
    if (!file) return std::unexpected(file.error());
    const auto found = cache_.find(full_key);
    // What others have appended is read, and the lock keeps them from more: the sum is exact.
    const auto number = found == cache_.end() ? 0 : parse_counter(found->second);
    if (!number) return fail(Code::Store, "the value of the key " + full_key + " is not a number");
    const auto sum = wrapping_add(*number, delta);
    if (const auto done = append(file->get(), full_key, std::to_string(sum)); !done) {
      return std::unexpected(done.error());
    }
    return sum;
  }

  const std::string path_;
  bool counted_ = false;
  std::map<std::string, std::string, std::less<>> cache_;  // what the file has said so far
  std::int64_t offset_ = 0;                                // up to where that is
};

/// A client of that server, which is tried again until the deadline.
Result<std::shared_ptr<BlockingStore::Engine>> BlockingStore::reach(
    const boost::asio::ip::address& address, std::uint16_t port, Duration timeout) {
  const TimePoint until = now() + timeout;
  const Endpoint endpoint(address, port);
  std::string last = "it does not answer";
  for (Duration pause = std::chrono::milliseconds(50);; pause = pause * 3 / 2) {
    auto fd = connect_to(endpoint, until);
    auto client = fd ? std::make_shared<Tcp>(std::move(*fd)) : nullptr;
    const Status met = client ? client->greet(until) : std::unexpected(fd.error());
    if (met) return client;
    if (met.error().code != Code::Timeout) last = met.error().text;
    // The server may not be up yet. Pauses grow, so that thousands of clients do not drown it.
    const Duration next = std::min({pause, Duration(std::chrono::seconds(5)), until - now()});
    if (next <= Duration::zero()) break;
    std::this_thread::sleep_for(next);
  }
  return fail(Code::Timeout,
              fmt::format("no store at {} port {} within {}: {}", address.to_string(), port,
                          format_duration(timeout), last));
}

Result<std::shared_ptr<BlockingStore>> BlockingStore::connect(const std::string& host,
                                                              std::uint16_t port,
                                                              Duration timeout) {
  const TimePoint until = now() + timeout;
  boost::asio::io_context loop{1};
  const auto clock = make_system_clock(loop.get_executor());
  net::Resolver resolver(loop, *clock);
  std::optional<Result<net::Addresses>> found;
  resolver.resolve(host, timeout, [&](auto answer) { found = std::move(answer); });
  while (!found) loop.run_one();
  if (!*found) return std::unexpected(found->error());
  Error last{Code::Io, fmt::format("the host \"{}\" has no address", host)};
  for (const auto& address : **found) {
    // A share for each address, so that a dead first one does not use up the time of the others.
    const Duration left = std::max<Duration>(until - now(), Duration::zero());
    auto engine = reach(address, port, left / static_cast<int>((*found)->size()));
    if (engine) return std::shared_ptr<BlockingStore>(new BlockingStore(std::move(*engine), {}));
    last = engine.error();
  }
  return std::unexpected(last);
}

Result<std::shared_ptr<BlockingStore>> BlockingStore::open_file(const std::string& path) {
  auto file = std::make_shared<File>(path);
  if (const auto opened = file->open(); !opened) return std::unexpected(opened.error());
  return std::shared_ptr<BlockingStore>(new BlockingStore(std::move(file), {}));
}

BlockingStore::~BlockingStore() = default;

std::shared_ptr<BlockingStore> BlockingStore::within(const std::string& prefix) const {
  return std::shared_ptr<BlockingStore>(new BlockingStore(engine_, prefix_ + prefix + "/"));
}

std::vector<std::string> BlockingStore::with_prefix(const std::vector<std::string>& keys) const {
  std::vector<std::string> full;
  for (const auto& key : keys) full.push_back(prefix_ + key);
  return full;
}

Status BlockingStore::set(const std::string& key, std::string value) {
  return engine_->set(prefix_ + key, value);
}

Result<std::string> BlockingStore::get(const std::string& key, Duration timeout) {
  const auto there = wait({key}, timeout);
  return there ? engine_->get(prefix_ + key) : std::unexpected(there.error());
}

Result<std::int64_t> BlockingStore::add(const std::string& key, std::int64_t delta) {
  return engine_->add(prefix_ + key, delta);
}

Result<std::string> BlockingStore::compare_set(const std::string& key, std::string expected,
                                               std::string desired) {
  return engine_->compare_set(prefix_ + key, expected, desired);
}

Result<bool> BlockingStore::check(const std::vector<std::string>& keys) {
  return engine_->check(with_prefix(keys));
}

Status BlockingStore::wait(const std::vector<std::string>& keys, Duration timeout) {
  return engine_->wait(with_prefix(keys), timeout);
}

Result<bool> BlockingStore::erase(const std::string& key) {
  return engine_->erase(prefix_ + key);
}

}  // namespace elastrun::store
