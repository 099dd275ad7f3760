// SPDX-License-Identifier: Apache-2.0
#include "timer/debug_info.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
#include <utility>

namespace elastrun::timer {
namespace {

DebugInfoHook& hook_of_process() {
  static DebugInfoHook hook;
  return hook;
}

}  // namespace

void set_debug_info_hook(DebugInfoHook hook) {
  hook_of_process() = std::move(hook);
}

void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers) {
  if (timers.empty()) return;
  if (hook_of_process()) return hook_of_process()(run_id, timers);
  if (!log::is_on(log::Level::Info)) return;
  std::vector<std::string> texts;
  for (const auto& [pid, requests] : timers) {
    texts.push_back(fmt::format("{}: ['{}']", pid, join(requests, "', '")));
  }
  log::info("timer", "Timers expired for run:[{}] [{{{}}}].", run_id, join(texts, ", "));
}

}  // namespace elastrun::timer
