// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace elastrun::timer {

/// A worker's request: "kill me with `signal` unless I take this back before `expiry`", or, without
/// an expiry, that it is taken back.
struct Request {
  std::int64_t worker = 0;  // its pid
  std::string scope;        // "train.py#57"
  std::optional<TimePoint> expiry{};
  int signal = SIGKILL;      // 0 or less: told, but not killed
  std::uint64_t number = 0;  // tells apart timers of one worker and scope, where a client does
  TimePoint armed{};         // when the worker asked, or was heard
};

struct Expired {
  std::string scope;
  TimePoint expiry;
  int signal = SIGKILL;
  TimePoint armed{};
  Duration after() const { return expiry - armed; }  // as the worker had asked
  bool operator==(const Expired&) const = default;
};
/// The expired timers of one worker, by the time of expiry.
struct ExpiredWorker {
  std::int64_t worker = 0;
  std::vector<Expired> timers;
  /// The first timer that has a signal, else the first: the one to be named as the reason.
  const Expired& reason() const;
  /// Its signal; 0: no timer asked for a kill.
  int signal() const { return reason().signal > 0 ? reason().signal : 0; }
};

/// Who must report by when: the expiration timers of all workers, pure. A timer is named by worker,
/// scope and number; registering it again replaces it.
class Deadlines {
 public:
  static constexpr std::size_t kMostOfWorker = 4096;  // no script needs so many at a time

  /// False if it was ignored: this worker has as many timers as it may have.
  bool apply(const Request& request);
  /// The earliest expiry, for the one alarm that is needed.
  std::optional<TimePoint> next() const;
  /// Takes out what has expired by `now` (including), grouped by worker, those with the earliest
  /// expiry first. All other timers of a worker that is to be killed go with them: it is handled
  /// once.
  std::vector<ExpiredWorker> take_expired(TimePoint now);
  /// The worker has ended: its timers mean nothing any more.
  void forget(std::int64_t worker);
  std::size_t size() const;
  bool has(std::int64_t worker, const std::string& scope, std::uint64_t number = 0) const;

 private:
  struct Timer {
    TimePoint expiry;
    int signal;
    TimePoint armed;
  };
  using Key = std::tuple<std::int64_t, std::string, std::uint64_t>;
  void erase(std::map<Key, Timer>::iterator timer);

  std::map<Key, Timer> timers_;
  std::map<std::int64_t, std::size_t> count_;  // of timers, by worker
  std::multimap<TimePoint, Key> by_expiry_;    // each timer once
};

/// True if this is the scope that torch's expires() makes up when it is given none: it means the
/// caller's file and line, but finds always those of the context manager, ".../contextlib.py#137".
bool is_torch_default(std::string_view scope);

/// Makes separate timers of those that torch's expires() without a scope has put into one scope:
/// with torch, an inner one takes the place of the outer, and its end disarms both.
///
/// The requests of a process are taken as nested, in order: the end is that of the newest. A timer
/// that expires no later than one that begins inside it is suspended: a function that calls itself
/// arms its timer again, as with torch. When the inner one has ended, the outer is armed again,
/// with its whole time, but not for earlier than what it was suspended for. Requests of threads may
/// overlap instead; whatever their order, no timer is armed for earlier than all those whose blocks
/// have not ended: so a process that is in time is never killed. Pure.
class NestedScopes {
 public:
  /// Translates a request for Deadlines, in order; one whose scope was given, as it is.
  std::vector<Request> translate(const Request& request, TimePoint now);
  /// The worker has ended.
  void forget(std::int64_t worker);
  void clear() { open_.clear(); }

 private:
  static constexpr std::size_t kDeepest = 1000;  // Python's own limit of recursion
  static constexpr std::size_t kMost = 10000;    // processes with such a scope at a time

  struct Block {
    Duration after;
    TimePoint expiry;
    int signal;
    bool suspended = false;
  };
  using Blocks = std::vector<Block>;
  void begin(Blocks& blocks, const Request& request, std::vector<Request>& out);
  void end(Blocks& blocks, const Request& request, TimePoint now, std::vector<Request>& out);

  std::map<std::pair<std::int64_t, std::string>, Blocks> open_;
};

}  // namespace elastrun::timer
