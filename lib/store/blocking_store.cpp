// SPDX-License-Identifier: Apache-2.0

#include "store/blocking_store.hpp"

#include "core/file_io.hpp"
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

/// The store behind all prefixes.
class BlockingStore::Engine {
 public:
  virtual ~Engine() = default;
  /// What a TCPStore server answers to a request, without the length of a text; empty for one that
  /// has no answer. `until`: of a WAIT, which is answered with kReady, or with another byte once
  /// that is over. A GET is for a key that a WAIT has found.
  virtual Result<std::string> run(const Request& request, TimePoint until) = 0;
};

namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;

TimePoint now() {
  return std::chrono::steady_clock::now();
}

TimePoint deadline_of(Duration timeout) {
  return timeout < Duration::zero() ? TimePoint::max() : now() + timeout;
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
    const auto nonce = run({.query = Query::Validate, .number = kMagic}, until);
    if (!nonce) return std::unexpected(nonce.error());
    // Any server may answer something; only a store sends the number back.
    if (net::load<std::int32_t>(nonce->data()) == ::getpid()) return {};
    return fail(Code::Protocol, "it answers, but not as a store");
  }

  Result<std::string> run(const Request& request, TimePoint until) override {
    std::string bytes;
    append_request(bytes, request);
    const auto reply = shape_of(request.query).reply;
    // A request without an answer: the one of a PING behind it says that it was run.
    if (reply == Reply::None) append_request(bytes, {.query = Query::Ping, .number = ::getpid()});
    const std::size_t size = reply == Reply::Flag ? 1 : reply == Reply::None ? 4 : 8;
    auto answer = ask(bytes, size, until);
    if (reply == Reply::Text && answer) return text_of(net::load<std::uint64_t>(answer->data()));
    if (request.query != Query::Wait || answer || answer.error().code != Code::Timeout)
      return answer;
    bytes.clear();
    append_request(bytes, {.query = Query::CancelWait});
    answer = ask(bytes, 1);
    // The key came while the cancellation was on its way, whose answer belongs to no call.
    if (answer && answer->front() == kReady) {
      if (auto late = receive(1, TimePoint::max()); !late) return late;
    }
    return answer;
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

  Result<std::string> text_of(std::uint64_t size) {
    // A longer answer does not come from a store: torch's values have 8 MiB, and grow by APPEND.
    constexpr std::uint64_t kMaxAnswer = 1u << 30;
    if (size <= kMaxAnswer) return receive(static_cast<std::size_t>(size), TimePoint::max());
    return lose(Code::Protocol, fmt::format("the store's server announces {} bytes", size));
  }

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
    auto counted = count(kReferences, 1);
    counted_ = counted.has_value();
    return counted;
  }

  Result<std::string> run(const Request& request, TimePoint until) override {
    constexpr auto kPollEvery = std::chrono::milliseconds(10);  // torch's own
    // Known since the wait for it.
    if (request.query == Query::Get) return cache_.find(request.key)->second;
    const bool looks = request.query == Query::Check || request.query == Query::Wait;
    for (;; std::this_thread::sleep_for(kPollEvery)) {
      const auto file = locked(looks ? LOCK_SH : LOCK_EX);
      if (!file) return std::unexpected(file.error());
      if (!looks) return change(file->get(), request);
      const bool there = std::ranges::all_of(
          request.texts, [this](std::string_view key) { return cache_.contains(key); });
      if (there) return std::string(1, kReady);
      if (request.query == Query::Check || now() >= until) return std::string(1, kCancelled);
    }
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
    ::lseek(fd, offset_, SEEK_SET);
    if (const int failure = write_all(fd, record); failure != 0) {
      // Half a record would make the file useless to everybody.
      std::ignore = ::ftruncate(fd, offset_);
      errno = failure;
      return failed("write to");
    }
    std::string_view rest = record;
    return take_record(rest);
  }

  /// In a file that is locked for writing. What others have appended is read, and the lock keeps
  /// them from more: a sum is exact.
  Result<std::string> change(int fd, const Request& request) {
    const auto found = cache_.find(request.key);
    const bool missing = found == cache_.end();
    std::string key(request.key), value(request.value), answer;
    if (request.query == Query::Add) {
      const auto number = missing ? 0 : parse_counter(found->second);
      if (!number) return fail(Code::Store, "the value of the key " + key + " is not a number");
      const auto sum = wrapping_add(*number, request.number);
      value = std::to_string(sum);
      net::append(answer, sum);
    } else if (request.query == Query::Delete) {
      net::append<std::int64_t>(answer, missing ? 0 : 1);
      if (missing) return answer;
      key.insert(0, "-");
      value.clear();
    } else if (request.query == Query::CompareSet) {
      // As torch: an empty expected value stands for a key that is missing.
      const bool stores = missing ? value.empty() : found->second == value;
      if (!stores) return missing ? value : found->second;
      answer = value = request.desired;
    }
    if (const auto done = append(fd, key, value); !done) return std::unexpected(done.error());
    return answer;
  }
  Status count(std::string_view key, std::int64_t delta) {
    const auto counted = run({.query = Query::Add, .key = key, .number = delta}, {});
    return counted ? Status() : std::unexpected(counted.error());
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

Result<std::string> BlockingStore::run(Request request, const std::string& key) {
  const auto name = full_name(key);
  request.key = name;
  return engine_->run(request, TimePoint::max());
}

Result<std::int64_t> BlockingStore::number(const Request& request, const std::string& key) {
  const auto bytes = run(request, key);
  if (!bytes) return std::unexpected(bytes.error());
  return net::load<std::int64_t>(bytes->data());
}

Result<bool> BlockingStore::flag(Query query, const std::vector<std::string>& keys,
                                 TimePoint until) {
  std::vector<std::string> names;
  for (const auto& key : keys) names.push_back(full_name(key));
  const std::vector<std::string_view> texts(names.begin(), names.end());
  const auto byte = engine_->run({.query = query, .texts = texts}, until);
  if (!byte) return std::unexpected(byte.error());
  return byte->front() == kReady;
}

Status BlockingStore::set(const std::string& key, std::string value) {
  const auto done = run({.query = Query::Set, .value = value}, key);
  return done ? Status() : std::unexpected(done.error());
}

Result<std::string> BlockingStore::get(const std::string& key, Duration timeout) {
  const auto there = wait({key}, timeout);
  return there ? run({.query = Query::Get}, key) : std::unexpected(there.error());
}

Status BlockingStore::wait(const std::vector<std::string>& keys, Duration timeout) {
  const auto there = flag(Query::Wait, keys, deadline_of(timeout));
  if (!there) return std::unexpected(there.error());
  if (*there) return {};
  std::vector<std::string> names;
  for (const auto& key : keys) names.push_back(prefix_ + key);
  // "wait timeout after 300ms, keys: a, b": torch's words.
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return fail(Code::Timeout,
              fmt::format("wait timeout after {}ms, keys: {}", ms, join(names, ", ")));
}

Result<bool> BlockingStore::erase(const std::string& key) {
  const auto count = number({.query = Query::Delete}, key);
  if (!count) return std::unexpected(count.error());
  return *count > 0;
}

}  // namespace elastrun::store
