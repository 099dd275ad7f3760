// SPDX-License-Identifier: Apache-2.0
#include "workers/passing_signals.hpp"

#include "process/process_status.hpp"
#include "process/wrapper.hpp"
#include "workers/summons.hpp"

#include <algorithm>

namespace elastrun::workers {
namespace {

// As long as a guardian's word may be late for process::SignalEscalation.
constexpr auto kEcho = std::chrono::seconds(10);

}  // namespace

void PassingSignals::heard(const process::SignalEvent& event, TimePoint now) {
  std::erase_if(orders_, [now](const Order& one) { return now - one.since >= kEcho; });
  const bool by_agent = event.route == process::Route::Process;
  const auto order = std::ranges::find_if(orders_, [&](const Order& one) {
    const bool known = by_agent ? one.by_agent : one.by_guardian;
    return one.number == event.number && one.sender == event.sender_pid && (one.waits || !known);
  });
  if (order != orders_.end()) {
    (by_agent ? order->by_agent : order->by_guardian) = true;
    return;
  }
  // A process may send as many signals as it likes, and each would be kept for ten seconds.
  if (orders_.size() >= kMostOrders) orders_.pop_front();
  orders_.push_back({event.number, event.sender_pid, now, by_agent, !by_agent});
}

std::optional<TimePoint> PassingSignals::due(int number) const {
  const auto order = std::ranges::find_if(
      orders_, [number](const Order& one) { return one.number == number && one.waits; });
  if (order == orders_.end()) return std::nullopt;
  return order->since + kWait;
}

bool PassingSignals::is_for_workers(int number, TimePoint now) {
  bool is_for_them = false;
  for (auto& one : orders_) {
    if (one.number != number || !one.waits || now < one.since + kWait) continue;
    one.waits = false;
    // Where both have it every process was signalled, and the workers have theirs.
    is_for_them = is_for_them || !(one.by_agent && one.by_guardian);
  }
  return is_for_them;
}

process::ProcessTable receivers(const process::JobProcesses& processes,
                                const std::vector<pid_t>& workers, int signal) {
  const auto job = processes.processes();
  auto found = Summons(processes, workers, job, process::kNever).next(job);
  std::erase_if(
      found, [signal](const auto& one) { return !process::read_status(one.pid).survives(signal); });
  return found;
}

}  // namespace elastrun::workers
