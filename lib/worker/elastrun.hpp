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
#include <ctime>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <initializer_list>
#include <map>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

/// What a worker written in C++ may tell its elastrun agent; the twin of the Python package, with
/// the same promises: nothing blocks, nothing throws because of the channel, and without an agent
/// every call is a few nanoseconds. C++17, no library needed. Packets: elastrun-protocol(7).
namespace elastrun::worker {

inline std::string quoted(std::string_view text);

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
  void count_lost() { dropped_.fetch_add(1, std::memory_order_relaxed); }
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
  /// Not a mutex: the child of a fork(2) that happens while another thread holds one could never
  /// take it. This one names its thread and process, so the child sees that its holder is gone.
  class Turn {
   public:
    explicit Turn(Channel& channel) : holder_(channel.holder_) {
      // Threads are at multiples of 64 at least, and pids below 2^22 (proc(5), pid_max).
      constexpr std::uint64_t kPids = (1u << 22) - 1;
      const std::uint64_t own = (std::uint64_t)::getpid() & kPids;
      const std::uint64_t self = (((std::uint64_t)::pthread_self() >> 6) << 22) | own;
      // What is done in a turn never waits, so a turn is short, unless its thread is not running:
      // on a busy machine that takes some milliseconds.
      for (int i = 0; i < 200 && !taken_; ++i) {
        auto found = holder_.load(std::memory_order_relaxed);
        interrupted_ = found == self;
        if (interrupted_) return;
        const bool free = found == 0 || (found & kPids) != own;
        taken_ = free && holder_.compare_exchange_strong(found, self, std::memory_order_acquire);
        const timespec moment{0, 100'000};
        if (!taken_) i < 100 ? ::sched_yield() : ::nanosleep(&moment, nullptr);
      }
    }
    ~Turn() {
      if (taken_) holder_.store(0, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return taken_; }
    /// This thread has it: a signal handler has come in between, and cannot wait for it.
    bool interrupted() const { return interrupted_; }

   private:
    std::atomic<std::uint64_t>& holder_;
    bool taken_ = false, interrupted_ = false;
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
      from_ = new std::string(R"({"kind":"from","directory":)" + quoted(directory) + '}');
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
      told_ = dropped();  // by the parent
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
  std::atomic<std::uint64_t> holder_{0};  // the thread that has its turn, and its process
  Path path_{};                           // empty, if it is too long for a socket
  std::string* from_ = nullptr;           // the first packet of a connection; never freed
  int fd_ = -1;                           // this and what follows: of the Turn's holder
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

namespace detail {
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

/// Builds and sends a packet, but only where an agent may listen.
template <class Make>
void tell(Make make) {
  if (Channel::instance().configured()) Channel::instance().send(make());
}

namespace detail {
/// How often this process and those that it was forked from were forked: tells a child what it has
/// from its parent.
inline std::atomic<std::uint32_t> generation{1};

inline void count_forks() {
  static std::atomic<bool> counted{false};
  if (counted.exchange(true)) return;
  ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
}

/// Held for a few instructions, or a send(2) that waits for its turn alone. That of a thread which
/// this process does not have, because it was forked meanwhile, counts as free.
class Lock {
 public:
  enum class Taken {
    Not,    // this thread has it: a signal handler has come in between
    Ours,   // what it guards is as this process has left it
    Stale,  // what it guards is unset, or was left by another process
  };
  constexpr Lock() = default;
  Taken lock() {
    const auto own = generation.load(std::memory_order_relaxed);
    const std::uint64_t self = ((std::uint64_t)::pthread_self() << 16) | (own & 0xffff);
    for (;;) {
      auto found = holder_.load(std::memory_order_relaxed);
      if (found == self) return Taken::Not;
      const bool free = found == 0 || (found & 0xffff) != (own & 0xffff);
      if (free && holder_.compare_exchange_weak(found, self, std::memory_order_acquire)) break;
      if (!free) ::sched_yield();
    }
    return std::exchange(last_, own) == own ? Taken::Ours : Taken::Stale;
  }
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_{0};  // its thread and generation, in one: both at once
  std::uint32_t last_ = 0;                // generation of the last one, who may have gone
};

/// At most that many bytes of UTF-8, whole characters: the agent refuses half of one.
inline std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}
}  // namespace detail

/// The page that this worker shares with its agent (ELASTRUN_PAGE; elastrun-protocol(7)): the last
/// step, phase and values, which the agent reads also when this process hangs or has been killed.
/// Writing is a few stores and no system call. For all threads; a forked child writes nothing.
class Page {
 public:
  constexpr Page() = default;
  static Page& instance();

  void step(std::int64_t number) {
    if (number >= 0 && mapped()) write_timed(kStepAt, [&] { put_word(kStep, number); });
  }
  /// At most 32 bytes of it.
  void phase(std::string_view name) {
    if (!mapped()) return;
    write_timed(kPhaseAt, [&] {
      const auto shown = detail::cut(name, kPhaseSize);
      std::memset(bytes_ + kPhase, 0, kPhaseSize);
      std::memcpy(bytes_ + kPhase, shown.data(), shown.size());
    });
  }
  /// Whether the agent has asked to save after that step; below 0: after any.
  bool should_save(std::int64_t number) {
    if (!mapped()) return false;
    if (__atomic_load_n(word(kLooked), __ATOMIC_RELAXED) == 0) {
      // From now on the agent sends no signal to make this process save.
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      put_word(kLooked, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }
    step(number);  // from which the agent knows a step that no rank has done yet
    const auto order = __atomic_load_n(word(kSaveAt), __ATOMIC_RELAXED);
    return order == 1 || (order > 1 && (number < 0 || number >= order - 2));
  }
  /// Where the values of that series go: 0 if the page is full, or there is none.
  std::size_t series(std::string_view group, std::string_view name) {
    if (!mapped()) return 0;
    std::string key(group);
    key.append(1, '\0').append(name);
    if (key.size() > kEntry - kName) key.resize(kEntry - kName);
    if (adding_.lock() == detail::Lock::Taken::Not) return 0;
    const std::size_t place = find_or_add(key);
    adding_.unlock();
    return place;
  }
  void put(std::size_t place, double value) {
    if (place == 0 || !mapped()) return;
    const auto lock = begin(place);
    std::int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    put_word(place + 8, bits);
    __atomic_fetch_add(word(place + 16), 1, __ATOMIC_RELAXED);
    end(place, lock);
  }

 private:
  // In bytes.
  static constexpr std::size_t kWriter = 16, kCount = 20, kLock = 24, kStep = 32, kStepAt = 40,
                               kPhase = 48, kPhaseAt = 80, kLooked = 96, kSaveAt = 104,
                               kSeries = 128, kPhaseSize = 32, kEntry = 128, kNameSize = 24,
                               kName = 28;

  std::int64_t* word(std::size_t at) { return reinterpret_cast<std::int64_t*>(bytes_ + at); }
  std::uint32_t* half(std::size_t at) { return reinterpret_cast<std::uint32_t*>(bytes_ + at); }
  void put_word(std::size_t at, std::int64_t value) {
    __atomic_store_n(word(at), value, __ATOMIC_RELAXED);
  }
  /// Of two threads at the same place both leave the lock even.
  std::int64_t begin(std::size_t at) {
    const auto lock = __atomic_load_n(word(at), __ATOMIC_RELAXED) | 1;
    put_word(at, lock);
    std::atomic_thread_fence(std::memory_order_release);
    return lock;
  }
  void end(std::size_t at, std::int64_t lock) {
    __atomic_store_n(word(at), lock + 1, __ATOMIC_RELEASE);
  }
  template <class Write>
  void write_timed(std::size_t at, Write write) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto lock = begin(kLock);
    write();
    put_word(at, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    end(kLock, lock);
  }
  std::size_t find_or_add(const std::string& key) {
    const std::size_t count = *half(kCount);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = kSeries + i * kEntry;
      if (at + kEntry > size_) return 0;
      const bool same = *half(at + kNameSize) == key.size() &&
                        std::memcmp(bytes_ + at + kName, key.data(), key.size()) == 0;
      if (same) return at;
    }
    const std::size_t at = kSeries + count * kEntry;
    if (at + kEntry > size_) return 0;
    std::memset(bytes_ + at, 0, kEntry);
    std::memcpy(bytes_ + at + kName, key.data(), key.size());
    *half(at + kNameSize) = static_cast<std::uint32_t>(key.size());
    __atomic_store_n(half(kCount), static_cast<std::uint32_t>(count + 1), __ATOMIC_RELEASE);
    return at;
  }

  enum class State { Unknown, Looking, None, Mapped };
  bool mapped() {
    const State state = state_.load(std::memory_order_acquire);
    if (state == State::Unknown) look();
    return state_.load(std::memory_order_acquire) == State::Mapped &&
           generation_ == detail::generation.load(std::memory_order_relaxed);
  }
  void look() {
    State unknown = State::Unknown;
    if (!state_.compare_exchange_strong(unknown, State::Looking)) return;
    detail::count_forks();
    generation_ = detail::generation.load(std::memory_order_relaxed);
    const char* path = std::getenv("ELASTRUN_PAGE");
    const bool found = path != nullptr && *path != '\0' && map(path);
    state_.store(found ? State::Mapped : State::None, std::memory_order_release);
  }
  bool map(const char* path) {
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat info {};
    if (fd < 0) return false;
    void* made = MAP_FAILED;
    if (::fstat(fd, &info) == 0 && info.st_size >= static_cast<off_t>(kSeries)) {
      size_ = static_cast<std::size_t>(info.st_size);
      made = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    ::close(fd);
    if (made == MAP_FAILED) return false;
    bytes_ = static_cast<char*>(made);
    const auto self = static_cast<std::uint32_t>(::getpid());
    std::uint32_t writer = 0;
    const bool ours = std::memcmp(bytes_, "elastrun", 8) == 0 && *half(8) == 1 &&
                      *half(12) == size_ &&
                      (__atomic_compare_exchange_n(half(kWriter), &writer, self, false,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                       writer == self);
    if (ours) {
      *half(kCount) = 0;  // after exec(2) the same process starts over
    } else {
      ::munmap(made, size_);
    }
    return ours;
  }

  std::atomic<State> state_{State::Unknown};
  detail::Lock adding_;
  std::uint32_t generation_ = 0;
  char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {
inline Page page;
}

inline Page& Page::instance() {
  return detail::page;
}

namespace detail {
/// The last training step that has ended here, as a member of a metric's packet.
inline std::atomic<std::int64_t> last_step{-1};

inline std::string step_member(std::int64_t step) {
  if (step < 0) step = last_step.load(std::memory_order_relaxed);
  return step < 0 ? std::string() : R"(,"step":)" + std::to_string(step);
}
}  // namespace detail

/// Training step `number` has ended. Say it on rank 0 at least.
inline void step(std::int64_t number) {
  detail::last_step.store(number, std::memory_order_relaxed);
  tell([=] { return R"({"kind":"step","step":)" + std::to_string(number) + "}"; });
  Page::instance().step(number);
}

/// What tells series of one name apart (at most 16 labels, of one name always the same keys), and
/// what they are: a unit (UCUM: "s", "By", "{token}") and a sentence.
///
///     elastrun::worker::metric("norm", 0.5, "model", -1, {{{"layer", "3"}}, "1", "Gradients."});
struct About {
  std::vector<std::pair<std::string, std::string>> labels{};
  std::string unit{}, help{};
};

namespace detail {
inline std::string labels_object(const About& about) {
  std::string object = "{";
  for (const auto& [key, value] : about.labels) {
    if (object.size() > 1) object += ',';
    object += quoted(cut(key, 256)) + ':' + quoted(cut(value, 256));
  }
  return object + '}';
}

/// As members of a packet, with a comma before each.
inline std::string about_members(const About& about) {
  std::string members;
  if (!about.labels.empty()) members += R"(,"labels":)" + labels_object(about);
  if (!about.unit.empty()) members += R"(,"unit":)" + quoted(cut(about.unit, 64));
  if (!about.help.empty()) members += R"(,"help":)" + quoted(cut(about.help, 1024));
  return members;
}

/// Seconds since the epoch, to the microsecond.
inline std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto micro = std::to_string(1'000'000 + now.tv_nsec / 1000);
  return std::to_string(now.tv_sec) + '.' + micro.substr(1);
}
}  // namespace detail

/// Whether the job is to save now, because it will be ended: asked after each step, with its
/// number, all ranks hear true at the same one. Save then, tell checkpoint_done(), and return.
inline bool should_save(std::int64_t step = -1) {
  return Page::instance().should_save(step);
}

/// Something countable (tokens, samples, retries) has grown by `amount`, which is not below 0: the
/// agent adds it up, over restarts, and Prometheus and others see a counter. A packet for each.
inline void count(std::string_view name, double amount = 1, std::string_view group = "worker",
                  const About& about = {}) {
  tell([&] {
    return R"({"kind":"metric","type":"counter","name":)" + quoted(name) + R"(,"value":)" +
           number(amount) + R"(,"group":)" + quoted(group) + detail::about_members(about) + "}";
  });
}

/// A checkpoint that holds everything up to `step` is safe on disk; -1: everything so far.
inline void checkpoint_done(std::int64_t step = -1) {
  tell([=] { return R"({"kind":"checkpoint","step":)" + std::to_string(step) + "}"; });
}

/// One sample of a number, in a metric group as in torchelastic's put_metric. A packet for each:
/// for many samples there is Metric. It is one of training step `step`; below 0: of the last one
/// that this process has told by step().
inline void metric(std::string_view name, double value, std::string_view group = "worker",
                   std::int64_t step = -1, const About& about = {}) {
  tell([&] {
    return R"({"kind":"metric","name":)" + quoted(name) + R"(,"value":)" + number(value) +
           R"(,"group":)" + quoted(group) + detail::step_member(step) +
           detail::about_members(about) + "}";
  });
  Page::instance().put(Page::instance().series(group, name), value);
}

/// What an attribute of an event may be: text, a number, true or false.
class Value {
 public:
  Value(std::string_view text) : json_(quoted(text)) {}
  Value(const char* text) : Value(std::string_view(text)) {}
  Value(const std::string& text) : Value(std::string_view(text)) {}
  Value(bool value) : json_(value ? "true" : "false") {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(T value) {
    if constexpr (std::is_integral_v<T>) {
      json_ = std::to_string(value);
    } else {
      json_ = worker::number(static_cast<double>(value));
    }
  }
  const std::string& json() const { return json_; }

 private:
  std::string json_;
};
using Attribute = std::pair<std::string_view, Value>;

/// More of an event. `severity`: trace, debug, info, warn, error or fatal, by which routes select.
/// `time`: when it happened, in seconds since the epoch; 0: now. `id`, `span` (the stretch it is
/// from) and `parent` (that around it): 16 hexadecimal digits.
struct EventFacts {
  std::string_view severity{};
  double time = 0;
  std::string_view id{}, span{}, parent{};
};

namespace detail {
/// The span that the code of this thread runs in, and the one around it.
struct SpanPlace {
  std::string span{}, parent{};
};
inline SpanPlace& span_place() {
  thread_local SpanPlace place;
  return place;
}

template <class Attributes>
std::string event_packet(std::string_view name, const Attributes& attributes,
                         const EventFacts& facts) {
  std::string packet = R"({"kind":"event","name":)" + quoted(name);
  if (facts.time > 0) packet += R"(,"time":)" + number(facts.time);
  packet += R"(,"attributes":{)";
  const auto add = [&](std::string_view key, const std::string& json) {
    if (packet.back() != '{') packet += ',';
    packet += quoted(key) + ':' + json;
  };
  for (const auto& [key, value] : attributes) add(key, value.json());
  const auto& place = span_place();
  const bool given = !facts.span.empty();
  const auto text = [&](std::string_view key, std::string_view value) {
    if (!value.empty()) add(key, quoted(value));
  };
  text("severity", facts.severity);
  text("event.id", facts.id);
  text("span.id", given ? facts.span : std::string_view(place.span));
  text("span.parent", given ? facts.parent : std::string_view(place.parent));
  return packet + "}}";
}
}  // namespace detail

/// Something happened.
inline void event(std::string_view name, std::initializer_list<Attribute> attributes = {},
                  const EventFacts& facts = {}) {
  tell([&] { return detail::event_packet(name, attributes, facts); });
}

/// Whether an agent may hear what is told: before something that is expensive to make.
inline bool is_enabled() {
  return Channel::instance().configured();
}

/// 16 hexadecimal digits, as ids of events and spans are.
inline std::string new_id() {
  static std::atomic<std::uint64_t> count{0};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  // splitmix64 of what no other process has at this moment.
  auto bits = (static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
               static_cast<std::uint64_t>(now.tv_nsec)) ^
              (static_cast<std::uint64_t>(::getpid()) << 40);
  bits += (count.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  std::string id;
  for (int shift = 60; shift >= 0; shift -= 4) id += "0123456789abcdef"[(bits >> shift) & 15];
  return id;
}

/// From here to the end of the block is a span: two events, its start and its end, of which the
/// agent makes a span of OTLP and of Perfetto. Spans in it are below it, and events in it know it;
/// one that an exception ends has failed. To be ended by its thread, the newest first.
///
///     elastrun::worker::Span epoch("epoch", {{"number", 3}});
class Span {
 public:
  explicit Span(std::string name, std::initializer_list<Attribute> attributes = {})
      : name_(std::move(name)), before_(detail::span_place()) {
    for (const auto& [key, value] : attributes) attributes_.emplace_back(key, value);
    detail::span_place() = {new_id(), before_.span};
    tell_end("start");
  }
  ~Span() {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    attributes_.emplace_back("span.seconds", Value(took.count()));
    if (std::uncaught_exceptions() > exceptions_) {
      attributes_.emplace_back("span.error", Value("exception"));
    }
    tell_end("stop");
    detail::span_place() = before_;
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  const std::string& id() const { return detail::span_place().span; }

 private:
  void tell_end(const char* phase) {
    attributes_.emplace_back("span.phase", Value(phase));
    tell([&] { return detail::event_packet(name_, attributes_, {}); });
    attributes_.pop_back();
  }
  std::string name_;
  std::vector<std::pair<std::string, Value>> attributes_;
  const detail::SpanPlace before_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const int exceptions_ = std::uncaught_exceptions();
};

namespace detail {
/// How many samples this process may still tell one by one in this second: ELASTRUN_SAMPLES, where
/// a sink shows them.
class Singles {
 public:
  bool wanted() const { return most_ > 0; }
  bool take(std::int64_t second) {
    if (second_.exchange(second, std::memory_order_relaxed) != second) {
      left_.store(most_, std::memory_order_relaxed);
    }
    return left_.fetch_sub(1, std::memory_order_relaxed) > 0;
  }
  static Singles& instance() {
    static Singles singles;
    return singles;
  }

 private:
  static std::int64_t given() {
    const char* const text = std::getenv("ELASTRUN_SAMPLES");
    return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  }
  const std::int64_t most_ = given();
  std::atomic<std::int64_t> second_{0}, left_{0};
};

/// The values of one stretch as a histogram whose buckets grow by 2^(1/32), as the agent's:
/// quantiles are within 1.09 %.
class Sketch {
 public:
  void add(double value) {
    if (value == 0) {
      ++zeros_;
      return;
    }
    const double index = std::ceil(std::log2(std::fabs(value)) * kBuckets) - 1;
    ++(value < 0 ? negative_ : positive_)[static_cast<int>(index)];
  }
  double quantile(double rank) const {
    std::uint64_t all = zeros_;
    for (const auto& [index, count] : positive_) all += count;
    for (const auto& [index, count] : negative_) all += count;
    auto left = static_cast<std::int64_t>(std::ceil(rank * static_cast<double>(all)));
    left = left < 1 ? 1 : left;
    for (auto one = negative_.rbegin(); one != negative_.rend(); ++one) {
      if ((left -= static_cast<std::int64_t>(one->second)) <= 0) return -middle(one->first);
    }
    if ((left -= static_cast<std::int64_t>(zeros_)) <= 0) return 0;
    for (const auto& [index, count] : positive_) {
      if ((left -= static_cast<std::int64_t>(count)) <= 0) return middle(index);
    }
    return 0;
  }
  /// As members of a packet of type histogram, with a comma before each. Where the buckets are too
  /// many, or too far apart, each two become one, and again.
  std::string members() const {
    auto positive = positive_, negative = negative_;
    int scale = 5;
    for (; scale > -8 && (is_large(positive) || is_large(negative)); --scale) {
      positive = halved(positive);
      negative = halved(negative);
    }
    return R"(,"scale":)" + std::to_string(scale) + R"(,"zeros":)" + std::to_string(zeros_) +
           R"(,"buckets":)" + list(positive) + R"(,"negative":)" + list(negative);
  }

 private:
  using Counts = std::map<int, std::uint64_t>;
  static constexpr double kBuckets = 32;
  static double middle(int index) {
    return std::exp2((index + 1) / kBuckets) * (2 / (std::exp2(1 / kBuckets) + 1));
  }
  static bool is_large(const Counts& counts) {
    return counts.size() > 200 ||
           (!counts.empty() && counts.rbegin()->first - counts.begin()->first >= 640);
  }
  static Counts halved(const Counts& counts) {
    Counts coarse;
    for (const auto& [index, count] : counts) coarse[index >> 1] += count;
    return coarse;
  }
  static std::string list(const Counts& counts) {
    std::string text = "[";
    for (const auto& [index, count] : counts) {
      if (text.size() > 1) text += ',';
      text += '[' + std::to_string(index) + ',' + std::to_string(count) + ']';
    }
    return text + ']';
  }
  Counts positive_, negative_;
  std::uint64_t zeros_ = 0;
};
}  // namespace detail

/// Samples of one series, summed up in this process and told to the agent once a second, and one by
/// one where a sink shows that; the last value is in the page at once. For all threads,
/// and cheap enough for an inner loop:
///
///     static elastrun::worker::Metric loss("loss", "model");
///     loss.put(0.5);
///
/// What was put since it was last told goes with the next value of a later second, or at the end of
/// the object. NaN and infinities count in no sum.
class Metric {
 public:
  explicit Metric(std::string name, std::string group = "torchelastic", About about = {})
      : Metric(std::move(name), std::move(group), std::move(about), false) {}
  ~Metric() { flush(); }
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  void put(double value) {
    Page::instance().put(place_, value);
    if (!Channel::instance().configured()) return;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const bool single = !is_histogram_ && detail::Singles::instance().wanted();
    Cell told;
    if (!take_turn()) return Channel::instance().count_lost();
    cell_.add(value);
    if (is_histogram_ && std::isfinite(value)) cell_.sketch.add(value);
    if (single) cell_.keep(value, detail::Singles::instance().take(now.tv_sec));
    if (now.tv_sec != second_) told = take(now.tv_sec);
    lock_.unlock();
    tell(told);
  }
  /// Tells now what has not been told.
  void flush() {
    if (!take_turn()) return;
    const Cell told = take(second_);
    lock_.unlock();
    tell(told);
  }

 protected:
  Metric(std::string name, std::string group, About about, bool is_histogram)
      : name_(std::move(name)),
        group_(std::move(group)),
        about_(std::move(about)),
        is_histogram_(is_histogram) {
    detail::count_forks();
    if (!is_histogram_) place_ = Page::instance().series(group_, name_);
  }

 private:
  struct Cell {
    double last = 0, sum = 0, min = 0, max = 0;
    std::uint64_t count = 0, not_finite = 0, suppressed = 0;
    std::vector<std::string> single{};  // "TIME,VALUE,STEP", as rows of a packet have them
    detail::Sketch sketch{};
    void add(double value) {
      last = value;
      if (!std::isfinite(value)) {
        ++not_finite;
        return;
      }
      min = count == 0 || value < min ? value : min;
      max = count == 0 || value > max ? value : max;
      sum += value;
      ++count;
    }
    void keep(double value, bool there_is_room) {
      if (!there_is_room) {
        ++suppressed;
        return;
      }
      const auto step = detail::last_step.load(std::memory_order_relaxed);
      single.push_back(detail::time_now() + ',' + number(value) +
                       (step < 0 ? std::string() : ',' + std::to_string(step)));
    }
  };

  /// What the parent has not told is the parent's to tell. Its memory is left alone: another thread
  /// may have been changing it.
  bool take_turn() {
    const auto taken = lock_.lock();
    if (taken == detail::Lock::Taken::Stale) new (&cell_) Cell;
    return taken != detail::Lock::Taken::Not;
  }
  Cell take(std::int64_t second) {
    second_ = second;
    return std::exchange(cell_, {});
  }
  void tell(const Cell& cell) const {
    if (cell.count + cell.not_finite == 0) return;
    tell_single(cell);
    worker::tell([&] {
      std::string packet = R"({"kind":"metric","name":)" + quoted(name_) + R"(,"value":)" +
                           number(cell.last) + R"(,"group":)" + quoted(group_) +
                           detail::step_member(-1) + detail::about_members(about_);
      if (cell.count > 1 || is_histogram_) {
        packet += R"(,"count":)" + std::to_string(cell.count) + R"(,"sum":)" + number(cell.sum) +
                  R"(,"min":)" + number(cell.min) + R"(,"max":)" + number(cell.max);
      }
      if (is_histogram_ && cell.count > 0) {
        packet += R"(,"type":"histogram")" + cell.sketch.members();
      }
      if (!cell.single.empty() || cell.suppressed > 0) packet += R"(,"each":true)";
      if (cell.not_finite > 0) packet += R"(,"not_finite":)" + std::to_string(cell.not_finite);
      return packet + '}';
    });
  }
  void tell_single(const Cell& cell) const {
    constexpr std::size_t kRows = 150;  // of a packet, which the agent takes up to 16 KiB
    const auto begin = R"({"kind":"samples","series":[[)" + quoted(group_) + ',' + quoted(name_) +
                       ',' + detail::labels_object(about_) + ',' +
                       quoted(detail::cut(about_.unit, 64)) + ',' +
                       quoted(detail::cut(about_.help, 1024)) + "]],\"samples\":[";
    for (std::size_t i = 0; i < cell.single.size() || (i == 0 && cell.suppressed > 0); i += kRows) {
      std::string packet = begin;
      for (std::size_t k = i; k < cell.single.size() && k < i + kRows; ++k) {
        packet += (k == i ? "[0," : ",[0,") + cell.single[k] + ']';
      }
      packet += ']';
      if (i == 0 && cell.suppressed > 0) {
        packet +=
            R"(,"suppressed":{)" + quoted(group_) + ':' + std::to_string(cell.suppressed) + '}';
      }
      worker::tell([&] { return packet + '}'; });
    }
  }

  std::string name_, group_;
  About about_;
  bool is_histogram_;
  std::size_t place_ = 0;
  detail::Lock lock_;  // for what follows
  std::int64_t second_ = 0;
  Cell cell_;
};

/// Values of a histogram, such as the seconds of a step: Prometheus and OTLP see histograms, others
/// count, sum and quantiles within 1.09 %. Told as a Metric is.
class Histogram : public Metric {
 public:
  explicit Histogram(std::string name, std::string group = "torchelastic", About about = {})
      : Metric(std::move(name), std::move(group), std::move(about), true) {}
};

/// Measures from here to its end: BASE.success or, when an exception ends the scope, BASE.failure,
/// then BASE.duration.ms in whole milliseconds, as torchelastic's prof.
class Prof {
 public:
  explicit Prof(std::string base, std::string group = "torchelastic")
      : base_(std::move(base)), group_(std::move(group)) {}
  ~Prof() {
    using std::chrono::milliseconds;
    const auto took = std::chrono::steady_clock::now() - begin_;
    const bool failed = std::uncaught_exceptions() > exceptions_;
    metric(base_ + (failed ? ".failure" : ".success"), 1, group_);
    metric(base_ + ".duration.ms",
           static_cast<double>(std::chrono::duration_cast<milliseconds>(took).count()), group_);
  }
  Prof(const Prof&) = delete;
  Prof& operator=(const Prof&) = delete;

 private:
  std::string base_, group_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int exceptions_ = std::uncaught_exceptions();
};

enum class Aggregation {
  Value,
  Mean,
  Count,
  Sum,
  Max,
  Min,
  Stddev,  // of all values, not of a sample of them
  P50,
  P90,
  P95,
  P99,
  P999,
  Histogram
};

namespace detail {
constexpr const char* kAggregations[] = {"value", "mean",   "count",    "sum", "max",
                                         "min",   "stddev", "p50",      "p90", "p95",
                                         "p99",   "p999",   "histogram"};

/// With `*` for any text.
inline bool fits(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') {
    return !name.empty() && pattern[0] == name[0] && fits(pattern.substr(1), name.substr(1));
  }
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (fits(pattern.substr(1), name.substr(i))) return true;
  }
  return false;
}

/// Those of --aggregations, PATTERN=NAME[+NAME...] with commas between them, or what was chosen.
inline std::vector<Aggregation> chosen_for(std::string_view name, std::vector<Aggregation> chosen) {
  const char* const given = std::getenv("ELASTRUN_AGGREGATIONS");
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const auto one = rest.substr(0, rest.find(','));
    rest.remove_prefix(one.size() < rest.size() ? one.size() + 1 : rest.size());
    const auto equals = one.rfind('=');
    if (equals == one.npos || !fits(one.substr(0, equals), name)) continue;
    std::vector<Aggregation> instead;
    for (std::size_t i = 0; i < sizeof kAggregations / sizeof kAggregations[0]; ++i) {
      const auto list = '+' + std::string(one.substr(equals + 1)) + '+';
      const auto found = list.find('+' + std::string(kAggregations[i]) + '+');
      if (found != list.npos) instead.push_back(static_cast<Aggregation>(i));
    }
    return instead.empty() ? chosen : instead;
  }
  return chosen;
}
}  // namespace detail

/// Values summarised in windows, as torch.monitor's Stat: a window that is over is the event
/// "torch.monitor.Stat" with NAME.mean and so on. It ends with the next value, with close_due(), or
/// with the object. A window with `max_samples` values ends at once, and takes no more until its
/// time is over; without a time each `max_samples` values are a window, and none is dropped. Values
/// that are not finite are dropped. One thread at a time.
class Stat {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::chrono::milliseconds window{};  // 0: none
    std::uint64_t max_samples = 0;       // 0: no limit
    std::string unit{}, help{};
  };
  /// `window`: at least 1 ms, less is taken for that. `max_samples` 0: no limit.
  Stat(std::string name, std::initializer_list<Aggregation> aggregations,
       std::chrono::milliseconds window, std::uint64_t max_samples = 0)
      : Stat(std::move(name), aggregations,
             Options{window < std::chrono::milliseconds(1) ? std::chrono::milliseconds(1) : window,
                     max_samples}) {}
  Stat(std::string name, std::initializer_list<Aggregation> aggregations, Options options)
      : name_(std::move(name)),
        aggregations_(detail::chosen_for(name_, aggregations)),
        options_(std::move(options)) {
    for (const auto one : aggregations_) sketched_ |= one >= Aggregation::P50;
  }
  ~Stat() { close(); }
  Stat(const Stat&) = delete;
  Stat& operator=(const Stat&) = delete;

  void add(double value) { add(value, Clock::now()); }
  /// With a time of one's own, for tests.
  void add(double value, Clock::time_point now) {
    close_due(now);
    take(value);
  }
  /// Ends the window if its time is over: where values may stay away.
  void close_due(Clock::time_point now = Clock::now()) {
    if (options_.window.count() == 0) return;
    const auto id = now.time_since_epoch() / options_.window;
    if (id == id_) return;
    if (callback_ && id_ >= 0) take(callback_());
    close();
    id_ = id;
    full_ = false;
  }
  /// Its value is taken once for each window, when that ends: for what costs something to measure,
  /// such as memory in use.
  void observe(std::function<double()> callback) { callback_ = std::move(callback); }
  /// Values in the open window, and those that are in none.
  std::uint64_t count() const { return count_; }
  std::uint64_t dropped() const { return dropped_; }
  const std::string& name() const { return name_; }

  /// Adds the seconds from here to its end, however that comes.
  class Timing {
   public:
    explicit Timing(Stat& stat) : stat_(stat) {}
    ~Timing() { stat_.add(std::chrono::duration<double>(Clock::now() - begin_).count()); }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;

   private:
    Stat& stat_;
    const Clock::time_point begin_ = Clock::now();
  };
  [[nodiscard]] Timing add_time() { return Timing(*this); }

 private:
  void take(double value) {
    if (full_ || !std::isfinite(value)) {
      ++dropped_;
      return;
    }
    min_ = count_ == 0 || value < min_ ? value : min_;
    max_ = count_ == 0 || value > max_ ? value : max_;
    last_ = value;
    sum_ += value;
    ++count_;
    const double away = value - mean_;
    mean_ += away / static_cast<double>(count_);
    squares_ += away * (value - mean_);
    if (sketched_) sketch_.add(value);
    if (count_ != options_.max_samples) return;
    full_ = options_.window.count() > 0;
    close();
  }
  double of(Aggregation aggregation) const {
    const auto quantile = [this](double rank) {
      const double found = sketch_.quantile(rank);  // a bucket may be wider than what is in it
      return found < min_ ? min_ : found > max_ ? max_ : found;
    };
    switch (aggregation) {
      case Aggregation::Value:
        return last_;
      case Aggregation::Mean:
        return sum_ / static_cast<double>(count_);
      case Aggregation::Sum:
        return sum_;
      case Aggregation::Max:
        return max_;
      case Aggregation::Min:
        return min_;
      case Aggregation::Stddev:
        return std::sqrt(squares_ / static_cast<double>(count_));
      case Aggregation::P50:
        return quantile(0.5);
      case Aggregation::P90:
        return quantile(0.9);
      case Aggregation::P95:
        return quantile(0.95);
      case Aggregation::P99:
        return quantile(0.99);
      case Aggregation::P999:
        return quantile(0.999);
      default:  // Count, and Histogram, whose buckets are told apart
        return static_cast<double>(count_);
    }
  }
  void close() {
    if (count_ == 0) return;
    std::string packet = R"({"kind":"event","name":"torch.monitor.Stat","attributes":{)";
    for (const auto aggregation : aggregations_) {
      if (aggregation == Aggregation::Histogram) continue;
      const auto name = name_ + '.' + detail::kAggregations[static_cast<int>(aggregation)];
      if (packet.back() != '{') packet += ',';
      packet += quoted(name) + ':' + number(of(aggregation));
      Page::instance().put(Page::instance().series("torch.monitor", name), of(aggregation));
    }
    const auto add = [&](const char* key, const std::string& text, std::size_t most) {
      if (text.empty()) return;
      if (packet.back() != '{') packet += ',';
      packet += quoted(key) + ':' + quoted(detail::cut(text, most));
    };
    add("stat.unit", options_.unit, 64);
    add("stat.help", options_.help, 1024);
    tell([&] { return packet + "}}"; });
    tell_histogram();
    count_ = 0;
    sum_ = mean_ = squares_ = 0;
    sketch_ = {};
  }
  void tell_histogram() const {
    bool wanted = false;
    for (const auto one : aggregations_) wanted |= one == Aggregation::Histogram;
    if (!wanted) return;
    tell([&] {
      return R"({"kind":"metric","type":"histogram","group":"torch.monitor","name":)" +
             quoted(name_) + R"(,"value":)" + number(last_) + R"(,"count":)" +
             std::to_string(count_) + R"(,"sum":)" + number(sum_) + R"(,"min":)" + number(min_) +
             R"(,"max":)" + number(max_) + sketch_.members() +
             detail::about_members({{}, options_.unit, options_.help}) + '}';
    });
  }

  std::string name_;
  std::vector<Aggregation> aggregations_;
  Options options_;
  std::function<double()> callback_;
  bool sketched_ = false;
  std::int64_t id_ = -1;
  bool full_ = false;
  std::uint64_t count_ = 0, dropped_ = 0;
  double last_ = 0, sum_ = 0, min_ = 0, max_ = 0, mean_ = 0, squares_ = 0;
  detail::Sketch sketch_;
};

namespace detail {
/// What this process is about, and until when it may be, if that was said: else max().
struct EnteredPhase {
  using Clock = std::chrono::steady_clock;
  std::string name = "train";
  Clock::time_point until = Clock::time_point::max();
};

/// As it last said.
class LastPhase {
 public:
  constexpr LastPhase() = default;
  /// Returns the one before.
  EnteredPhase exchange(std::string_view name, EnteredPhase::Clock::time_point until) {
    count_forks();
    const auto taken = lock_.lock();
    if (taken == Lock::Taken::Not) return {};  // a signal has come within this very call
    if (taken == Lock::Taken::Stale) size_ = 0;
    EnteredPhase before;
    if (size_ > 0) before = {std::string(name_, size_), until_};
    size_ = cut(name, sizeof name_).copy(name_, sizeof name_);
    until_ = until;
    lock_.unlock();
    return before;
  }

 private:
  Lock lock_;  // for what follows
  std::size_t size_ = 0;
  char name_[256] = {};  // the agent takes no more
  EnteredPhase::Clock::time_point until_{};
};
inline LastPhase last_phase;

inline EnteredPhase enter_phase(std::string_view name, EnteredPhase::Clock::time_point until) {
  EnteredPhase before = last_phase.exchange(name, until);
  Page::instance().phase(name);
  if (!Channel::instance().configured()) return before;
  std::string packet = R"({"kind":"phase","phase":)" + quoted(cut(name, 256));
  if (until != EnteredPhase::Clock::time_point::max()) {
    const std::chrono::duration<double> left = until - EnteredPhase::Clock::now();
    packet += R"(,"at_most":)" + number(left.count() > 0.001 ? left.count() : 0.001);
  }
  // One that is lost would make a hang of an evaluation, or hide one.
  Channel::instance().send_surely(packet + '}');
  return before;
}

/// 0, or an invalid time: not said.
inline EnteredPhase::Clock::time_point end_after(std::chrono::duration<double> at_most) {
  constexpr double kLongest = 1e9;  // seconds; more does not fit the clock's nanoseconds
  if (!(at_most.count() > 0)) return EnteredPhase::Clock::time_point::max();
  const std::chrono::duration<double> bounded(at_most.count() < kLongest ? at_most.count()
                                                                         : kLongest);
  return EnteredPhase::Clock::now() +
         std::chrono::duration_cast<EnteredPhase::Clock::duration>(bounded);
}
}  // namespace detail

/// From now on this process does something else than training steps ("eval"), and may take its
/// time for it: hang detection waits until it says "train". After `at_most` it waits no longer;
/// without it, after a time that it learns from earlier phases of that name (elastrun-timers(7)).
inline void phase(std::string_view name, std::chrono::duration<double> at_most = {}) {
  detail::enter_phase(name, detail::end_after(at_most));
}
/// The same until the end of a block, then what it was before, "train" mostly:
///
///     elastrun::worker::Phase eval("eval", std::chrono::minutes(30));
class Phase {
 public:
  explicit Phase(std::string_view name, std::chrono::duration<double> at_most = {})
      : before_(detail::enter_phase(name, detail::end_after(at_most))) {}
  ~Phase() { detail::enter_phase(before_.name, before_.until); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  const detail::EnteredPhase before_;
};

/// What the time goes to, for the account of goodput; as ml-goodput-measurement's recorder. A step
/// lasts until the next one, or EndJob; other things have an end.
enum class Event {
  StartJob,
  EndJob,
  StartStep,
  StartDeviceInit,
  EndDeviceInit,
  StartPreparation,
  EndPreparation,
  StartDataLoading,
  EndDataLoading,
  StartCustom,
  EndCustom,
  StartSave,
  EndSave,
  StartRestore,
  EndRestore,
};

/// The entries of this process on their way to the agent: what is recorded within a millisecond
/// goes in one packet, with the first entry after it or at the end of the process; what may take
/// longer than a step goes at once. For all threads.
class Recorder {
 public:
  constexpr Recorder() = default;
  static Recorder& instance();
  ~Recorder() { flush(); }

  void put(Event event, std::int64_t step, std::string_view name) {
    if (!Channel::instance().configured()) return;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::int64_t microseconds = now.tv_sec * 1'000'000LL + now.tv_nsec / 1000;
    if (!take_turn()) {
      interrupted_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (size_ + 256 + 6 * name.size() > sizeof text_) send();
    append(event, step, name, microseconds);
    const bool due = microseconds - sent_ >= 1000 || microseconds < sent_;
    if (due || excuses(event)) send(), sent_ = microseconds;
    lock_.unlock();
  }
  void flush() {
    if (!take_turn()) return;
    send();
    lock_.unlock();
  }

 private:
  static constexpr const char* kMembers[] = {"job_start",
                                             "job_end",
                                             "step_start",
                                             "tpu_init_start",
                                             "tpu_init_end",
                                             "training_prep_start",
                                             "training_prep_end",
                                             "data_loading_start",
                                             "data_loading_end",
                                             "custom_badput_event_start",
                                             "custom_badput_event_end",
                                             "checkpoint_save_start",
                                             "checkpoint_save_end",
                                             "checkpoint_restore_start",
                                             "checkpoint_restore_end"};

  /// What --hang-timeout has to hear of before it takes its time.
  static bool excuses(Event event) {
    return event == Event::StartDeviceInit || event == Event::StartPreparation ||
           event == Event::StartCustom || event == Event::StartSave || event == Event::StartRestore;
  }
  bool take_turn() {  // as Metric's
    detail::count_forks();
    const auto taken = lock_.lock();
    if (taken == detail::Lock::Taken::Stale) size_ = 0, count_ = 0, lost_ = 0, interrupted_ = 0;
    return taken != detail::Lock::Taken::Not;
  }
  void add(std::string_view text) {
    std::memcpy(text_ + size_, text.data(), text.size());
    size_ += text.size();
  }
  void add(std::int64_t value) {
    size_ = static_cast<std::size_t>(std::to_chars(text_ + size_, text_ + sizeof text_, value).ptr -
                                     text_);
  }
  void append(Event event, std::int64_t step, std::string_view name, std::int64_t time) {
    add(count_ == 0 ? "{" : ",{");
    if (event == Event::StartStep) {
      add(R"("step_count":)");
      add(step);
      add(",");
    } else if (event == Event::StartCustom || event == Event::EndCustom) {
      add(R"("custom_badput_event_type":)");
      add(quoted(name));
      add(",");
    }
    add("\"");
    add(kMembers[static_cast<int>(event)]);
    add(R"(_time":)");
    add(time / 1'000'000);
    add(".");
    for (std::int64_t unit = 100'000; unit > 0; unit /= 10) {
      text_[size_++] = static_cast<char>('0' + time / unit % 10);
    }
    add("}");
    ++count_;
  }
  void send() {
    lost_ += interrupted_.exchange(0, std::memory_order_relaxed);
    if (count_ == 0) return;
    std::string packet = R"({"kind":"goodput","lost":)" + std::to_string(lost_) + R"(,"entries":[)";
    packet.append(text_, size_).append("]}");
    lost_ = Channel::instance().try_send(packet) ? 0 : lost_ + count_;
    size_ = 0;
    count_ = 0;
  }

  std::atomic<std::uint64_t> interrupted_{0};  // entries of handlers that came in between
  detail::Lock lock_;                          // for what follows
  std::uint64_t count_ = 0, lost_ = 0;
  std::int64_t sent_ = 0;
  std::size_t size_ = 0;
  char text_[15000] = {};
};

namespace detail {
inline Recorder recorder;
}

inline Recorder& Recorder::instance() {
  return detail::recorder;
}

/// Rank 0 is enough. `step`: of StartStep.
inline void record_event(Event event, std::int64_t step = 0) {
  Recorder::instance().put(event, step, "unknown");
}
/// Of StartCustom and EndCustom, which belong together by their name: "eval". 256 bytes of it
/// count.
inline void record_event(Event event, std::string_view name) {
  Recorder::instance().put(event, 0, detail::cut(name, 256));
}

/// A block that is an event: recorded as begun now, and as ended with this object, also by an
/// exception. A step lasts until the next one.
///
///     { EventScope restore(Event::StartRestore); load(); }
///     { EventScope eval(Event::StartCustom, "eval"); evaluate(); }
class EventScope {
 public:
  explicit EventScope(Event start, std::int64_t step = 0) : start_(start), name_("unknown") {
    record_event(start, step);
  }
  EventScope(Event start, std::string_view name) : start_(start), name_(name) {
    record_event(start, name_);
  }
  ~EventScope() {
    if (start_ == Event::StartStep) return;
    // In the list each end follows its start; an end by itself has none.
    const auto next = static_cast<Event>(static_cast<int>(start_) + 1);
    for (const Event end :
         {Event::EndJob, Event::EndDeviceInit, Event::EndPreparation, Event::EndDataLoading,
          Event::EndCustom, Event::EndSave, Event::EndRestore}) {
      if (end == next) record_event(end, name_);
    }
  }
  EventScope(const EventScope&) = delete;
  EventScope& operator=(const EventScope&) = delete;

 private:
  const Event start_;
  const std::string name_;
};

/// This process is ended by `signal` (0: the agent only tells), with its stack in the agent's
/// report, unless this object has ended `after` seconds from now:
///
///     elastrun::worker::Expires timer(60);
///     all_reduce(gradients);
///
/// `scope` names it there; empty: file and line. Timers inside each other are separate; only a
/// function that calls itself arms the timer of its scope again, with the whole time once the
/// inner call has returned. To be ended by the thread that has made it, the newest first.
class Expires {
 public:
  explicit Expires(double after, std::string_view scope = {}, int signal = SIGKILL,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : after_(after),
        signal_(signal),
        scope_(scope.empty() ? std::string(file) + '#' + std::to_string(line) : scope),
        number_(numbers().fetch_add(1, std::memory_order_relaxed)),
        around_(std::exchange(innermost(), this)) {
    if (scope_.size() > kLongest) {
      auto first = scope_.size() - kLongest;  // of a character, not in the middle of one
      while (first < scope_.size() && (static_cast<unsigned char>(scope_[first]) & 0xc0) == 0x80) {
        ++first;
      }
      scope_.erase(0, first);
    }
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
