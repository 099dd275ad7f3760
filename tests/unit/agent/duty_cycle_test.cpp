// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/goodput_monitor.hpp"

#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

/// At a second, with workers that have used so many cores, and GPUs of such a utilisation.
system::MachineSample look(int second, std::vector<double> cores,
                           std::vector<std::optional<double>> gpus = {}) {
  system::MachineSample sample;
  sample.at = TimePoint() + std::chrono::seconds(second);
  for (const double one : cores) {
    system::WorkerUse use;
    use.cores = one;
    sample.workers.push_back(std::move(use));
  }
  for (const auto& one : gpus) {
    system::GpuUse use;
    use.utilization = one;
    use.memory_used = 1 << 20;
    sample.gpus.push_back(std::move(use));
  }
  return sample;
}

}  // namespace

TEST_CASE("duty cycle: without accelerators all workers must use their processors") {
  DutyCycle duty;
  CHECK_FALSE(duty.busy());
  duty.take(look(10, {1, 1}));
  CHECK_FALSE(duty.busy());
  duty.take(look(20, {1, 0.5}));
  CHECK(duty.busy() == 10s);
  duty.take(look(30, {1, 0.05}));  // a rank that waits
  duty.take(look(40, {}));         // between two starts
  CHECK(duty.busy() == 10s);
  duty.take(look(35, {1, 1}));  // too late
  CHECK(duty.busy() == 10s);
  duty.take(look(50, {0.2, 4}));
  CHECK(duty.busy() == 20s);
}

TEST_CASE("duty cycle: accelerators count, whatever processors do, but not those of others") {
  DutyCycle duty;
  duty.take(look(0, {1}, {0.9, 0.9}));
  duty.take(look(10, {0.01}, {0.9, 0.2}));
  CHECK(duty.busy() == 10s);
  duty.take(look(20, {1}, {0.9, 0.05}));
  CHECK(duty.busy() == 10s);
  auto shared = look(30, {1}, {0.9, 0.0});
  shared.gpus[1].memory_used = 0;
  duty.take(shared);
  CHECK(duty.busy() == 20s);
  duty.take(look(40, {1}, {std::nullopt}));  // a driver that says nothing
  CHECK(duty.busy() == 30s);
}

}  // namespace elastrun::agent
