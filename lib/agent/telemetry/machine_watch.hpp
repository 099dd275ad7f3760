// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "system/machine.hpp"
#include "telemetry/registry.hpp"
#include "workers/group.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <vector>

namespace elastrun::agent {

/// Looks at the machine and the workers of this node on request, on a separate thread: a
/// GPU that has fallen off the bus may not answer at all, and what else there is to tell must not
/// wait for it.
class MachineWatch {
 public:
  using Then = std::function<void(const system::MachineSample&)>;
  /// How long a caller waits for a look.
  static constexpr Duration kTimeLimit = std::chrono::seconds(1);

  explicit MachineWatch(RunContext& run);
  ~MachineWatch();
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;

  /// `then` runs once, never inside this call. One look at a time; all who ask meanwhile get the
  /// same. Who has waited long enough gets the last one, while the thread goes on waiting.
  void look(Then then);
  /// Hears each new sample, for whichever part it was taken.
  void on_sample(Then hear) { hear_ = std::move(hear); }
  /// A sample as series; totals count from the time that this was made.
  std::vector<telemetry::Point> points_of(const system::MachineSample& sample) const;

 private:
  std::vector<system::WatchedWorker> watched() const;
  void answer();

  RunContext& run_;
  Clock& clock_;
  const TimePoint begun_;
  files::BlockingCalls calls_;
  std::shared_ptr<system::Machine> machine_ = std::make_shared<system::Machine>();  // with a call
  std::vector<Then> waiting_;  // for the same look
  Then hear_;
  system::MachineSample sample_;
  std::unique_ptr<Alarm> limit_;
  bool looking_ = false;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
