// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// How often this process and those that it was forked from were forked: tells a child what it has
/// from its parent.
inline std::atomic<std::uint32_t> generation{1};

/// Held for a few instructions, or a send(2) that waits for its turn alone. That of a thread which
/// this process does not have, because it was forked meanwhile, counts as free.
class Lock {
 public:
  enum class Taken {
    Not,    // this thread has it: a signal handler has come in between
    Busy,   // another thread, in all of the tries
    Ours,   // what it guards is as this process has left it
    Stale,  // what it guards is unset, or was left by another process
  };
  constexpr Lock() = default;
  /// Waits for it, or tries it so often only, the first hundred times at once.
  Taken lock(int tries = 0) {
    const auto own = generation.load(std::memory_order_relaxed);
    const std::uint64_t self = ((std::uint64_t)::pthread_self() << 16) | (own & 0xffff);
    for (int left = tries;;) {
      auto found = holder_.load(std::memory_order_relaxed);
      if (found == self) return Taken::Not;
      const bool free = found == 0 || (found & 0xffff) != (own & 0xffff);
      if (free && holder_.compare_exchange_weak(found, self, std::memory_order_acquire)) break;
      if (tries > 0 && --left == 0) return Taken::Busy;
      const timespec moment{0, 100'000};
      if (!free) tries - left < 100 ? ::sched_yield() : ::nanosleep(&moment, nullptr);
    }
    return std::exchange(last_, own) == own ? Taken::Ours : Taken::Stale;
  }
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_{0};  // its thread and generation, in one: both at once
  std::uint32_t last_ = 0;                // generation of the last one, who may have gone
};

/// For what threads share and seldom change: the list of Stats, sampling. fork(2) waits for it, so
/// that a child finds these whole.
inline Lock shared_lock;
inline bool held_for_fork = false;

inline void count_forks() {
  static std::atomic<bool> counted{false};
  if (counted.load(std::memory_order_relaxed) || counted.exchange(true)) return;
  ::pthread_atfork([] { held_for_fork = shared_lock.lock() != Lock::Taken::Not; },
                   [] {
                     if (held_for_fork) shared_lock.unlock();
                   },
                   // In the child it counts as free, as its holder's generation has passed.
                   [] { generation.fetch_add(1, std::memory_order_relaxed); });
}

/// Has a lock until the end of its block.
class Turn {
 public:
  /// As Lock::lock.
  explicit Turn(Lock& lock, int tries = 0) : lock_(lock) {
    count_forks();
    taken_ = lock_.lock(tries);
  }
  ~Turn() {
    if (*this) lock_.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return taken_ > Lock::Taken::Busy; }
  /// This thread has it: a signal handler has come in between, and cannot wait for it.
  bool interrupted() const { return taken_ == Lock::Taken::Not; }
  bool stale() const { return taken_ == Lock::Taken::Stale; }

 private:
  Lock& lock_;
  Lock::Taken taken_;
};
struct Shared : Turn {
  Shared() : Turn(shared_lock) {}
};

/// How many bytes the UTF-8 character has with which `text`, not empty, begins; 0: it is none.
inline std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (size == 0 || first > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, half of a surrogate pair, or beyond the last one.
  const unsigned second = byte(1);
  const bool none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                    (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return none ? 0 : size;
}

/// At most that many bytes of UTF-8, whole characters: the agent refuses half of one.
inline std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

/// Seconds since the epoch, to the microsecond.
inline std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto micro = std::to_string(1'000'000 + now.tv_nsec / 1000);
  return std::to_string(now.tv_sec) + '.' + micro.substr(1);
}

/// With `*` for any text and `?` for any byte. Where a text after a star does not fit, the last
/// star alone takes one more: no pattern takes longer than its length times that of the name.
inline bool fits(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, star = pattern.npos, taken = 0;
  for (std::size_t i = 0; i < name.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[i])) {
      ++at, ++i;
    } else if (star != pattern.npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == pattern.npos;
}
}  // namespace detail

/// Text as a JSON string, quotes included. A byte that is not UTF-8 becomes U+FFFD: the agent would
/// refuse the packet.
inline std::string quoted(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      const auto size = detail::character_size(text.substr(i));
      size == 0 ? out.append("\\ufffd") : out.append(text.substr(i, size));
      i += size == 0 ? 0 : size - 1;
      continue;
    }
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

/// The connection of this process, made at the first packet. Safe to use from several threads and
/// after fork(2): the child reconnects, because the agent knows senders by their credentials.
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
    if (!turn || !deliver(packet)) count_lost();
  }
  /// As dropped: something that could not be told.
  void count_lost(std::uint64_t count = 1) { dropped_.fetch_add(count, std::memory_order_relaxed); }
  /// False: it is not with the agent, and not counted.
  bool try_send(std::string_view packet) {
    const Turn turn(*this);
    return turn && deliver(packet);
  }
  /// For what must not be lost: where the agent is behind, it is tried again for a second, and then
  /// before anything else is sent. While something is owed no call waits a second time.
  void send_surely(std::string_view packet) {
    const auto until = Clock::now() + std::chrono::seconds(1);
    while (!offer(packet)) {
      if (Clock::now() >= until || owes_.load(std::memory_order_relaxed)) return owe(packet);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// The right to use the descriptor, for one thread at a time: another one could close it in the
  /// middle of a send, and the packet would go into whatever file gets its number next.
  struct Turn : detail::Turn {
    // What is done in a turn never waits, so a turn is short, unless its thread is not running: on
    // a busy machine that takes some milliseconds.
    explicit Turn(Channel& channel) : detail::Turn(channel.lock_, 200) {}
  };

  /// False: it may be tried again. Without an agent there is nothing to try.
  bool offer(std::string_view packet) {
    const Turn turn(*this);
    if (!turn.interrupted()) return turn && (deliver(packet) || fd_ < 0);
    count_lost();
    return true;
  }

  static constexpr std::size_t kMostOwed = 4096;  // the agent knows no more timers of a process
  enum class Agent { Unknown, None, Named };
  using Path = decltype(sockaddr_un::sun_path);

  bool look() {
    const Turn turn(*this);
    if (!turn) return true;  // who has the turn is looking
    const char* path = std::getenv("ELASTRUN_CHANNEL");
    const std::size_t size = path == nullptr ? 0 : std::strlen(path);
    if (size < sizeof path_) std::memcpy(path_, path == nullptr ? "" : path, size + 1);
    const bool named = size > 0;
    const char* directory = std::getenv("ELASTRUN_RUN_DIR");
    if (named && directory != nullptr) {
      from_ = new std::string(R"({"kind":"from","directory":)" + worker::quoted(directory) + '}');
    }
    agent_.store(named ? Agent::Named : Agent::None, std::memory_order_release);
    return named;
  }

  void owe(std::string_view packet) {
    const Turn turn(*this);
    if (!turn) return count_lost();
    if (deliver(packet) || fd_ < 0) return;
    if (owed_ == nullptr) owed_ = new std::vector<std::string>;
    if (owed_->size() == kMostOwed) return count_lost();
    owed_->emplace_back(packet);
    owes_.store(true, std::memory_order_relaxed);
  }
  /// What is owed goes first. True if nothing is any more; an agent that has gone is owed nothing.
  bool pay() {
    if (!owes_.load(std::memory_order_relaxed)) return true;
    std::size_t paid = 0;
    while (paid < owed_->size() && (push((*owed_)[paid]) || fd_ < 0)) ++paid;
    owed_->erase(owed_->begin(), owed_->begin() + static_cast<std::ptrdiff_t>(paid));
    owes_.store(!owed_->empty(), std::memory_order_relaxed);
    return owed_->empty();
  }

  bool deliver(std::string_view packet) {
    const bool delivered = connected() && pay() && push(packet);
    if (delivered && dropped() != told_) tell_dropped();
    return delivered;
  }

  /// The agent counts what it was not told.
  void tell_dropped() {
    const auto all = dropped();
    if (push(R"({"kind":"lost","count":)" + std::to_string(all - told_) + '}')) told_ = all;
  }

  bool push(std::string_view packet) {
    if (fd_ < 0) return false;
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
      owed_ = nullptr;  // the debts, too, in the middle of which it may have been forked
      owes_.store(false, std::memory_order_relaxed);
      if (owner_ != 0) told_ = dropped();  // by the parent
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
    if (from_ != nullptr) push(*from_);  // it may look whose we are when we have ended
  }

  std::atomic<Agent> agent_{Agent::Unknown};
  detail::Lock lock_;            // of the turns
  Path path_{};                  // empty, if it is too long for a socket
  std::string* from_ = nullptr;  // the first packet of a connection; never freed
  int fd_ = -1;                  // this and what follows: of the Turn's holder
  pid_t owner_ = 0;
  Clock::time_point next_try_{};
  std::vector<std::string>* owed_ = nullptr;  // never freed: others say something at the very end
  std::atomic<bool> owes_{false};
  std::uint64_t told_ = 0;  // of dropped_, to the agent
  std::atomic<std::uint64_t> dropped_{0};
};

namespace detail {
inline Channel channel;
}

inline Channel& Channel::instance() {
  return detail::channel;
}

/// Builds and sends a packet, but only where an agent may listen.
template <class Make>
void tell(Make make) {
  if (Channel::instance().configured()) Channel::instance().send(make());
}

/// How many packets of this process were thrown away: no agent, or one that is behind.
inline std::uint64_t dropped() {
  return Channel::instance().dropped();
}

}  // namespace elastrun::worker
