// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/machine_watch.hpp"

#include "core/log.hpp"
#include "core/thread.hpp"
#include "system/machine_points.hpp"

#include <utility>

namespace elastrun::agent {

MachineWatch::MachineWatch(RunContext& run)
    : run_(run),
      clock_(run.clock),
      begun_(run.clock.now()),
      calls_(run.loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse),
      limit_(run.clock.make_alarm()) {}

/// The driver's library is closed by a thread: that, too, may wait for a GPU without end.
MachineWatch::~MachineWatch() {
  if (!detach_thread([machine = std::move(machine_)] {})) {
    log::debug("machine", "the GPU driver is closed without a thread");
  }
}

std::vector<system::WatchedWorker> MachineWatch::watched() const {
  std::vector<system::WatchedWorker> watched;
  const auto* const group = run_.group();
  if (group == nullptr) return watched;
  for (const auto& worker : group->workers()) {
    if (!worker.exit) watched.push_back({worker.rank, worker.local_rank, worker.pid});
  }
  return watched;
}

void MachineWatch::answer() {
  limit_->disarm();
  for (const auto& one : std::exchange(waiting_, {})) one(sample_);
}

void MachineWatch::look(Then then) {
  waiting_.push_back(std::move(then));
  // One limit for all that wait: where the driver does not answer, they get the sample before.
  if (waiting_.size() == 1) limit_->arm(clock_.now() + kTimeLimit, [this] { answer(); });
  // A driver that hangs would otherwise hold one more thread with each look.
  if (looking_) return;
  looking_ = true;
  const auto work = [machine = machine_, watched = watched(), now = clock_.now()] {
    return Result<system::MachineSample>(machine->sample(now, watched));
  };
  calls_.make("the state of this machine", work,
              [this, alive = lifetime_.token()](Result<system::MachineSample> sample) {
                if (!alive) return;
                looking_ = false;
                if (sample) {
                  sample_ = std::move(*sample);
                  if (hear_) hear_(sample_);
                }
                answer();
              });
}

std::vector<telemetry::Point> MachineWatch::points_of(const system::MachineSample& sample) const {
  return system::points_of(sample, begun_);
}

}  // namespace elastrun::agent
