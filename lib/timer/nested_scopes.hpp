// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timer/deadlines.hpp"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::timer {

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
