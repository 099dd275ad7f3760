// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/duty_cycle.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::agent {

void DutyCycle::take(const system::MachineSample& sample) {
  if (last_ && sample.at <= *last_) return;
  if (last_) {
    compared_ = true;
    // A look tells of the time before it: processors by what was used since the last one, GPUs by
    // their last moments, which stand for the rest.
    if (is_busy(sample)) busy_ += sample.at - *last_;
  }
  last_ = sample.at;
}

/// All of those that work for the job must be: a job waits for its slowest rank. GPUs whose driver
/// does not tell are not asked.
bool DutyCycle::is_busy(const system::MachineSample& sample) {
  if (sample.workers.empty()) return false;
  const auto told = [](const system::GpuUse& gpu) { return gpu.utilization.has_value(); };
  if (std::ranges::any_of(sample.gpus, told)) {
    // Those without memory in use are not this job's.
    return std::ranges::all_of(sample.gpus, [&](const system::GpuUse& gpu) {
      return !told(gpu) || gpu.memory_used == 0U || *gpu.utilization > kIdle;
    });
  }
  return std::ranges::all_of(sample.workers, [](const system::WorkerUse& worker) {
    return worker.cores.value_or(0) > kIdle;
  });
}

std::optional<Duration> DutyCycle::busy() const {
  return compared_ ? std::optional(busy_) : std::nullopt;
}

}  // namespace elastrun::agent
