// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace elastrun::timer {

/// The expired timers of each worker, by its pid: each a JSON text as torch's clients send them.
using ExpiredTexts = std::map<std::int64_t, std::vector<std::string>>;
using DebugInfoHook = std::function<void(const std::string& run_id, const ExpiredTexts& timers)>;

/// torch's hook of the same name: called when timers have expired, before anybody is reaped. Writes
/// them to the log at level info, or does what set_debug_info_hook() was given.
void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers);
/// For launchers of your own; empty: back to the log. It must not wait.
void set_debug_info_hook(DebugInfoHook hook);

}  // namespace elastrun::timer
