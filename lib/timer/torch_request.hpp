// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "timer/deadlines.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::timer {

/// PIPE_BUF and its LF: the longest line that torch's FileTimerClient sends.
constexpr std::size_t kLongestLine = 4097;

/// One line of torch's FileTimerClient, without its end: a JSON object with pid, scope_id,
/// expiration_time (seconds since the epoch by the wall clock; negative: released) and signal.
/// Other members mean nothing to us.
///
/// The expiration is turned into a deadline of the monotonic clock at once, so that a wall clock
/// that is set later neither kills nor spares anybody. One in the past has expired already.
/// Where a writer has died in the middle of its line, the request that follows on the same line
/// counts. Hostile until parsed: anything else fails with Protocol and one sentence. Pure.
Result<Request> parse_torch_request(std::string_view line, TimePoint now, WallTime wall);

/// Cuts the bytes of a pipe into lines. Of a line longer than kLongestLine only its beginning is
/// kept, which is not a request. Pure.
class RequestLines {
 public:
  /// Calls `take` for each line that is complete now, without its LF.
  template <class Take>
  void feed(std::string_view bytes, Take take) {
    while (!bytes.empty()) {
      const auto end = bytes.find('\n');
      held_ += bytes.substr(0, std::min(end, kLongestLine - held_.size()));
      if (end == std::string_view::npos) break;
      bytes.remove_prefix(end + 1);
      take(std::string_view(held_));
      held_.clear();
    }
  }

 private:
  std::string held_;  // what has no end yet
};

/// The expired timers of each worker, by its pid: each a JSON text as torch's clients send them.
using ExpiredTexts = std::map<std::int64_t, std::vector<std::string>>;
using DebugInfoHook = std::function<void(const std::string& run_id, const ExpiredTexts& timers)>;

/// torch's hook of the same name: called when timers have expired, before anybody is reaped. Writes
/// them to the log at level info, or does what set_debug_info_hook() was given.
void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers);
/// For launchers of your own; empty: back to the log. It must not wait.
void set_debug_info_hook(DebugInfoHook hook);

}  // namespace elastrun::timer
