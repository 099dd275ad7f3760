// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

/// What a worker written in C++ may tell its elastrun agent; the twin of the Python package, with
/// the same promises: nothing blocks, nothing throws because of the channel, and without an agent
/// every call is a few nanoseconds. C++17, no library needed. Packets: elastrun-protocol(7).
namespace elastrun::worker {

/// The connection of this process, made at the first packet. Safe to use from several threads and
/// after fork(2): the child connects anew, because the agent knows senders by their credentials.
class Channel {
 public:
  static Channel& instance() {
    static Channel channel;
    return channel;
  }

  bool configured() const { return !path_.empty(); }
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  void send(std::string_view packet) {
    const int fd = descriptor();
    const auto sent =
        fd < 0 ? -1 : ::send(fd, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return;
    dropped_.fetch_add(1, std::memory_order_relaxed);
    // A full queue, or a packet too large, costs this packet; anything else means the agent is
    // gone.
    const bool alive = errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == EMSGSIZE;
    if (fd >= 0 && !alive) disconnect(fd);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Channel() {
    if (const char* path = std::getenv("ELASTRUN_CHANNEL")) path_ = path;
  }

  int descriptor() {
    if (path_.empty()) return -1;
    const std::lock_guard guard(mutex_);
    if (owner_ != ::getpid()) {  // the descriptor is the parent's
      if (fd_ >= 0) ::close(fd_);
      fd_ = -1;
      owner_ = ::getpid();
      next_try_ = {};
    }
    if (fd_ < 0 && Clock::now() >= next_try_) connect();
    return fd_;
  }

  void connect() {
    next_try_ = Clock::now() + std::chrono::seconds(1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path_.size() >= sizeof address.sun_path) return;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd);
      return;
    }
    fd_ = fd;
  }

  void disconnect(int fd) {
    const std::lock_guard guard(mutex_);
    if (fd_ != fd) return;  // another thread has done it
    ::close(std::exchange(fd_, -1));
    next_try_ = Clock::now() + std::chrono::seconds(1);
  }

  std::string path_;
  std::mutex mutex_;
  int fd_ = -1;
  pid_t owner_ = ::getpid();
  Clock::time_point next_try_{};
  std::atomic<std::uint64_t> dropped_{0};
};

/// Text as a JSON string, quotes included. Bytes above 0x7f pass as they are.
inline std::string quoted(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.append({'\\', c});
    } else if (byte < 0x20) {
      out.append("\\u00").append({kDigits[byte >> 4], kDigits[byte & 15]});
    } else {
      out.push_back(c);
    }
  }
  return out + '"';
}

/// JSON has no NaN and no infinity, so these travel as the text that Python gives them.
inline std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

/// Builds and sends a packet, but only where somebody may be listening.
template <class Make>
void tell(Make make) {
  if (Channel::instance().configured()) Channel::instance().send(make());
}

/// Training step `number` has ended. Say it on rank 0 at least.
inline void step(std::int64_t number) {
  tell([=] { return R"({"kind":"step","step":)" + std::to_string(number) + "}"; });
}

/// A checkpoint that holds everything up to `step` is safe on disk; -1: everything so far.
inline void checkpoint_done(std::int64_t step = -1) {
  tell([=] { return R"({"kind":"checkpoint","step":)" + std::to_string(step) + "}"; });
}

/// One sample of a number, in a metric group as in torchelastic's put_metric.
inline void metric(std::string_view name, double value, std::string_view group = "worker") {
  tell([=] {
    return R"({"kind":"metric","name":)" + quoted(name) + R"(,"value":)" + number(value) +
           R"(,"group":)" + quoted(group) + "}";
  });
}

using Attribute = std::pair<std::string_view, std::string_view>;

/// Something happened. Attributes are text.
inline void event(std::string_view name, std::initializer_list<Attribute> attributes = {}) {
  tell([&] {
    std::string packet = R"({"kind":"event","name":)" + quoted(name) + R"(,"attributes":{)";
    for (const auto& [key, value] : attributes) {
      if (packet.back() != '{') packet += ',';
      packet += quoted(key) + ':' + quoted(value);
    }
    return packet + "}}";
  });
}

/// How many packets of this process were thrown away: no agent, or one that is behind.
inline std::uint64_t dropped() {
  return Channel::instance().dropped();
}

}  // namespace elastrun::worker
