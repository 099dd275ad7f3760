// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <sched.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
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
  // A constant from the start: what is made at the first call can be half made in a forked child.
  constexpr Channel() = default;
  static Channel& instance();

  /// Whether there may be an agent. The variable is looked at once in the life of the process.
  bool configured() {
    const Agent agent = agent_.load(std::memory_order_acquire);
    return agent == Agent::Unknown ? look() : agent == Agent::Named;
  }
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  void send(std::string_view packet) {
    const Turn turn(*this);
    if (!turn || !deliver(packet)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }
  /// For what must not be lost: where the agent is behind, it is tried again for a second.
  void send_surely(std::string_view packet) {
    const auto until = Clock::now() + std::chrono::seconds(1);
    while (!offer(packet)) {
      if (Clock::now() >= until) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// The right to use the descriptor, for one thread at a time: another one could close it in the
  /// middle of a send, and the packet would go into whatever file gets its number next.
  /// Not a mutex: the child of a fork(2) that happens while another thread holds one could never
  /// take it. This one names the process that holds it, so the child sees that it is nobody's.
  class Turn {
   public:
    explicit Turn(Channel& channel) : holder_(channel.holder_) {
      const pid_t self = ::getpid();
      // What is done in a turn never waits, so a turn is short, unless its thread is not running.
      for (int i = 0; i < 1000 && !taken_; ++i) {
        pid_t found = holder_.load(std::memory_order_relaxed);
        taken_ = found != self &&
                 holder_.compare_exchange_strong(found, self, std::memory_order_acquire);
        if (!taken_) ::sched_yield();
      }
    }
    ~Turn() {
      if (taken_) holder_.store(0, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return taken_; }

   private:
    std::atomic<pid_t>& holder_;
    bool taken_ = false;
  };

  /// False: it may be tried again. Without an agent there is nothing to try.
  bool offer(std::string_view packet) {
    const Turn turn(*this);
    return turn && (deliver(packet) || fd_ < 0);
  }

  enum class Agent { Unknown, None, Named };
  using Path = decltype(sockaddr_un::sun_path);

  bool look() {
    const Turn turn(*this);
    if (!turn) return true;  // who has the turn is looking
    const char* path = std::getenv("ELASTRUN_CHANNEL");
    const std::size_t size = path == nullptr ? 0 : std::strlen(path);
    if (size < sizeof path_) std::memcpy(path_, path == nullptr ? "" : path, size + 1);
    const bool named = size > 0;
    agent_.store(named ? Agent::Named : Agent::None, std::memory_order_release);
    return named;
  }

  bool deliver(std::string_view packet) {
    if (!connected()) return false;
    if (::send(fd_, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    // A full queue, or a packet too large, costs this packet; anything else means the agent is
    // gone.
    const bool alive = errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == EMSGSIZE;
    if (!alive) {
      ::close(std::exchange(fd_, -1));
      next_try_ = Clock::now() + std::chrono::seconds(1);
    }
    return false;
  }

  bool connected() {
    if (owner_ != ::getpid()) {  // the descriptor is the parent's
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
      owner_ = ::getpid();
      next_try_ = {};
    }
    if (fd_ < 0 && Clock::now() >= next_try_) connect();
    return fd_ >= 0;
  }

  void connect() {
    next_try_ = Clock::now() + std::chrono::seconds(1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path_[0] == '\0') return;  // that would be a socket without a file
    std::memcpy(address.sun_path, path_, sizeof path_);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd);
      return;
    }
    fd_ = fd;
  }

  std::atomic<Agent> agent_{Agent::Unknown};
  std::atomic<pid_t> holder_{0};  // the process whose thread has its turn
  Path path_{};                   // empty, if it is too long for a socket
  int fd_ = -1;                   // this and what follows: of whoever has its turn
  pid_t owner_ = 0;
  Clock::time_point next_try_{};
  std::atomic<std::uint64_t> dropped_{0};
};

namespace detail {
inline Channel channel;
}

inline Channel& Channel::instance() {
  return detail::channel;
}

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

/// From now on this process does something else than training steps ("eval"), and may take its time
/// for it: --hang-timeout waits until it says "train".
inline void phase(std::string_view name) {
  if (!Channel::instance().configured()) return;
  // One that is lost would make a hang of an evaluation, or hide one for ever.
  Channel::instance().send_surely(R"({"kind":"phase","phase":)" + quoted(name.substr(0, 256)) +
                                  '}');
}
/// The same until the end of a block, then "train":
///
///     elastrun::worker::Phase eval("eval");
class Phase {
 public:
  explicit Phase(std::string_view name) { phase(name); }
  ~Phase() { phase("train"); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
};

/// This process is ended by `signal` (0: the agent only tells), with its stack in the agent's
/// report, unless this object has ended `after` seconds from now:
///
///     elastrun::worker::Expires timer(60);
///     all_reduce(gradients);
///
/// `scope` names it there; empty: file and line. Timers inside each other are separate; only a
/// function that calls itself arms the timer of its scope again, with the whole time once the inner
/// call has returned. To be ended by the thread that has made it, the newest first.
class Expires {
 public:
  explicit Expires(double after, std::string_view scope = {}, int signal = SIGKILL,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : after_(after),
        signal_(signal),
        scope_(scope.empty() ? std::string(file) + '#' + std::to_string(line) : scope),
        number_(numbers().fetch_add(1, std::memory_order_relaxed)),
        around_(std::exchange(innermost(), this)) {
    if (scope_.size() > kLongest) scope_.erase(0, scope_.size() - kLongest);
    for (outer_ = around_; outer_ != nullptr && outer_->scope_ != scope_;) outer_ = outer_->around_;
    arm();
    if (outer_ != nullptr) outer_->disarm();
  }
  ~Expires() {
    innermost() = around_;
    if (outer_ != nullptr) outer_->arm();
    disarm();
  }
  Expires(const Expires&) = delete;
  Expires& operator=(const Expires&) = delete;

 private:
  static constexpr std::size_t kLongest = 256;  // bytes of a scope: its end tells more of a path

  static std::atomic<std::uint64_t>& numbers() {
    static std::atomic<std::uint64_t> next{1};
    return next;
  }
  static Expires*& innermost() {
    thread_local Expires* innermost = nullptr;
    return innermost;
  }
  std::string begin() const {
    return R"({"kind":"timer","id":)" + std::to_string(number_) + R"(,"scope":)" + quoted(scope_);
  }
  /// By the monotonic clock: a wall clock that is set neither ends nor spares anybody.
  void arm() const {
    tell([&] {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
      return begin() + R"(,"deadline":)" + number(now.count() + after_) + R"(,"after":)" +
             number(after_) + R"(,"signal":)" + std::to_string(signal_) + '}';
    });
  }
  /// One that is lost would cost the life of a process that is well.
  void disarm() const {
    if (Channel::instance().configured()) Channel::instance().send_surely(begin() + '}');
  }

  double after_;
  int signal_;
  std::string scope_;
  std::uint64_t number_;
  Expires *around_, *outer_ = nullptr;  // the timer around this one; that of the same scope
};

/// How many packets of this process were thrown away: no agent, or one that is behind.
inline std::uint64_t dropped() {
  return Channel::instance().dropped();
}

}  // namespace elastrun::worker
