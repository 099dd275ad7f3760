// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <boost/intrusive/list.hpp>
#include <charconv>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace elastrun::store {

/// Who asks: a connection of the server, a caller of the memory store. Numbers may be used
/// again after forget().
using Peer = std::uint32_t;

/// From this size on a value is kept behind a shared pointer, so that a thousand peers that fetch
/// it wait for the network with one copy and not with a thousand.
constexpr std::size_t kShareFrom = 4096;

/// A stored value.
class Value {
 public:
  Value() = default;
  explicit Value(std::string_view bytes) { assign(bytes); }
  void assign(std::string_view bytes);
  void append(std::string_view bytes);
  std::string_view view() const { return large_ ? std::string_view(*large_) : small_; }
  /// The bytes as they are now, whatever happens to this value later; empty for a small value.
  std::shared_ptr<const std::string> shared() const { return large_; }

 private:
  std::string small_;
  std::shared_ptr<std::string> large_;
};

/// The change of a watched key (torch 1.13's WATCH_KEY), with its numbers on the wire.
enum class ChangeKind : std::uint8_t { Updated = 0, Created = 1, Deleted = 2 };
struct Change {
  ChangeKind kind = ChangeKind::Updated;
  std::string key, before, after;
  bool operator==(const Change&) const = default;
};

/// Something a peer is to be told although it did not ask just now.
struct Notice {
  Peer peer = 0;
  /// Empty: one wait or barrier of this peer has ended well.
  std::shared_ptr<const Change> change;
};

/// Keys, queues, waiters and barriers of one store. Pure: no sockets, no clock; after a call
/// notices() lists what is to be told to whom. Semantics: torchrun-parity 7.1, except
///   * a COMPARE_SET that stores nothing wakes no waiter;
///   * each wait of a peer ends for itself, however many it has;
///   * a barrier is complete, for all who wait at it, when as many peers as one of them wants have
///     arrived since it was last complete; who cancels or leaves has not arrived; it can be used
///     again.
class Table {
 public:
  void set(std::string_view key, std::string_view value);
  /// Nothing for a missing key. The pointer lives until the next call that changes a key.
  const Value* get(std::string_view key) const;
  /// The new number, wrapping at the ends. Nothing, and nothing changed, if the key holds text
  /// that does not begin with a number or is beyond 64 bits.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  void append(std::string_view key, std::string_view bytes);
  /// Stores `desired` if the key holds `expected`, or is missing and `expected` is empty.
  /// Answers the value now there, or nothing if the key is missing still.
  const Value* compare_set(std::string_view key, std::string_view expected,
                           std::string_view desired);
  /// True if there was such a key. A queue of that name stays.
  bool erase(std::string_view key);
  /// True if a key or a queue with something in it has this name.
  bool present(std::string_view key) const;
  std::size_t size() const { return values_; }
  /// All keys, in no order. The views live until the next call that changes a key.
  std::vector<std::string_view> keys() const;

  void queue_push(std::string_view key, std::string_view value);
  std::optional<Value> queue_pop(std::string_view key);
  std::size_t queue_size(std::string_view key) const;

  /// True if all keys are present now; otherwise one notice will follow when each has been at some
  /// time since.
  bool wait(Peer peer, std::span<const std::string_view> keys);
  enum class Arrival { Complete, Waiting, NoNumber };
  /// Counts the peer in at the barrier. Waiting: a notice follows. NoNumber: the key holds text.
  Arrival arrive(Peer peer, std::string_view key, std::int64_t wanted);
  /// Ends the peer's waits and takes back its arrivals: no notice will follow.
  void cancel(Peer peer);
  /// Tells the peer of every change of the key from now on.
  void watch(Peer peer, std::string_view key);
  /// Cancels, and ends the watches too.
  void forget(Peer peer);

  const std::vector<Notice>& notices() const { return notices_; }
  void clear_notices() { notices_.clear(); }

 private:
  struct Hash {
    using is_transparent = void;
    // Not noexcept, or libstdc++ takes it for a cheap hash and computes it again at each step.
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Slot;
  struct Wait;
  using Entry = std::pair<const std::string, Slot>;

  /// One key that one wait still misses, or the barrier at which a peer has arrived: a member of
  /// the key's list of waiters, oldest first, for as long as it lives.
  struct Link : boost::intrusive::list_base_hook<
                    boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
    Link(Entry* missed, Wait* by, std::optional<std::int64_t> number = {})
        : entry(missed), wait(by), wanted(number) {}
    Entry* entry;  // null once the key has come
    Wait* wait;
    std::optional<std::int64_t> wanted;  // at a barrier, which waits for no key
    bool counted = true;                 // and whether the key's number still includes it
  };

  struct Wait {
    Peer peer = 0;
    std::size_t missing = 0;
    std::vector<Link> links{};  // reserved once: links point at each other
  };

  /// The members that few keys have beside a value.
  struct Extra {
    boost::intrusive::list<Link, boost::intrusive::constant_time_size<false>> waiters;
    std::deque<Value> queue;
    std::int64_t base = 0;  // the number at which the barrier was last complete
    std::vector<Peer> watchers;

    bool empty() const { return waiters.empty() && queue.empty() && base == 0 && watchers.empty(); }
    /// Its number was set: the barrier begins again.
    void restart() {
      base = 0;
      for (Link& one : waiters) one.counted = false;
    }
  };

  struct Slot {
    Value value;
    bool present = false;
    std::unique_ptr<Extra> extra;
  };

  /// A peer's waits and watches, so that cancel() and forget() find them without a search.
  struct Interests {
    std::vector<std::unique_ptr<Wait>> waits;
    std::vector<Entry*> watches;
    bool empty() const { return waits.empty() && watches.empty(); }
  };
  using Slots = std::unordered_map<std::string, Slot, Hash, std::equal_to<>>;

  Slot* find(std::string_view key) const;
  Entry& touch(std::string_view key);
  Interests& interests_of(Peer peer) {
    auto& interests = interests_[peer];
    if (!interests) interests = std::make_unique<Interests>();
    return *interests;
  }
  Extra& extra(Entry& entry) {
    if (!entry.second.extra) entry.second.extra = std::make_unique<Extra>();
    return *entry.second.extra;
  }
  void tidy(Entry& entry);
  void stored(Entry& entry, bool created, std::string before);
  void tell(Entry& entry, ChangeKind kind, std::string before, std::string_view after);
  void wake(Extra& extra, bool all);
  Wait& begin_wait(Peer peer, std::size_t most);
  void satisfied(Link& link);
  void end(Wait& wait);
  void release(Entry& entry);
  void store_number(Entry& entry, std::int64_t number);
  bool watched(const Entry& entry) const {
    return entry.second.extra && !entry.second.extra->watchers.empty();
  }

  Slots slots_;
  std::size_t values_ = 0;
  std::unordered_map<Peer, std::unique_ptr<Interests>> interests_;
  std::vector<Notice> notices_;
};

/// Parses like std::stoll, which torch reads counters with: blanks, a sign, digits, no rest.
inline std::optional<std::int64_t> parse_counter(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

/// Wraps at the ends, as the recorded server does, but by rule and not by accident.
inline std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t wrapping_subtract(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

}  // namespace elastrun::store
