// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/table.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <utility>

/// What a Table is made of: for table.cpp and table_waiting.cpp alone.
namespace elastrun::store {

/// One key that one wait still misses: a member of the key's list of waiters, oldest first.
struct Table::Link {
  Link* previous = nullptr;
  Link* next = nullptr;
  Entry* entry = nullptr;  // null once the key has come
  Wait* wait = nullptr;
};

struct Table::Wait {
  Peer peer = 0;
  std::size_t missing = 0;
  std::vector<Link> links;  // reserved once: links point at each other
};

/// What few keys have beside a value.
struct Table::Extra {
  struct Arrived {
    Peer peer = 0;
    std::int64_t wanted = 0;
    bool counted = true;  // whether the key's number still includes it
  };
  Link* first = nullptr;
  Link* last = nullptr;
  std::deque<Value> queue;
  std::vector<Arrived> arrivals;
  std::int64_t base = 0;  // the number at which the barrier was last complete
  std::vector<Peer> watchers;

  bool empty() const {
    return first == nullptr && queue.empty() && arrivals.empty() && base == 0 && watchers.empty();
  }
  void add(Link& link) {
    link.previous = last;
    (last != nullptr ? last->next : first) = &link;
    last = &link;
  }
  void remove(Link& link) {
    (link.previous != nullptr ? link.previous->next : first) = link.next;
    (link.next != nullptr ? link.next->previous : last) = link.previous;
  }
};

struct Table::Slot {
  Value value;
  bool present = false;
  std::unique_ptr<Extra> extra;
};

/// What a peer takes part in, so that cancel() and forget() find it without a search.
struct Table::Interests {
  std::vector<std::unique_ptr<Wait>> waits;
  std::vector<Entry*> arrivals;
  std::vector<Entry*> watches;
  bool empty() const { return waits.empty() && arrivals.empty() && watches.empty(); }
};

/// As std::stoll, by which torch reads its counters: blanks, a sign, digits; the rest is ignored.
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
