// SPDX-License-Identifier: Apache-2.0
#include "workers/passing_signals.hpp"

#include "process/wrapper.hpp"
#include "workers/summons.hpp"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string_view>

namespace elastrun::workers {
namespace {

// As long as a guardian's word may be late for process::Insistence.
constexpr auto kEcho = std::chrono::seconds(10);

}  // namespace

bool PassingSignals::heard(const process::SignalEvent& event, TimePoint now) {
  auto& order = orders_[event.number];
  const bool by_agent = event.route == process::Route::Process;
  bool& mine = by_agent ? order.by_agent : order.by_guardian;
  const bool known = order.by_agent || order.by_guardian;
  if (order.waits || (known && !mine && now - order.since < kEcho)) {
    mine = true;
    return false;
  }
  order = {now, by_agent, !by_agent, true};
  return true;
}

bool PassingSignals::is_for_workers(int number) {
  auto& order = orders_[number];
  order.waits = false;
  return !(order.by_agent && order.by_guardian);
}

bool survives(pid_t pid, int signal, const std::string& proc) {
  std::ifstream status(proc + "/" + std::to_string(pid) + "/status");
  std::uint64_t kept = 0;
  for (std::string line; std::getline(status, line);) {
    const std::string_view text(line);
    if (!text.starts_with("SigBlk:") && !text.starts_with("SigIgn:") &&
        !text.starts_with("SigCgt:")) {
      continue;
    }
    std::uint64_t mask = 0;
    const auto digits = text.substr(text.find_last_of("\t ") + 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), mask, 16);
    kept |= mask;
  }
  return (kept >> (signal - 1) & 1) != 0;
}

process::ProcessTable receivers(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                int signal) {
  const auto wrapper_of = [](const auto& one) { return process::wrapper_of(one); };
  auto found = Summons(wrapper_of, workers, job, process::kNever).next(job);
  std::erase_if(found, [signal](const auto& one) { return !survives(one.pid, signal); });
  return found;
}

}  // namespace elastrun::workers
