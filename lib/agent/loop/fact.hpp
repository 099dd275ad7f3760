// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <variant>

namespace elastrun::agent {

/// What can happen to an agent. Each source (rendezvous, group of workers, signals, alarms,
/// guardian) posts such facts into the agent's one queue; what a push means stands in
/// rendezvous/membership/round.hpp.
struct Pushed {
  rendezvous::Push push;
};
struct GroupStarted {};
struct StartFailed {
  Error error;
};
/// A worker ended badly, by itself. `first_is_known`: the one with whom it all began is among those
/// that have ended.
struct WorkerFailed {
  bool first_is_known = true;
  bool others_run = true;
};
struct AllSucceeded {};
struct AllEnded {};   // not all of them well
struct GroupGone {};  // nothing of the group runs any more, all output is read
struct SettleOver {};
struct LingerOver {};
/// The time of the exit barrier has passed that was armed in that round. `needed`: other nodes work
/// with what this process serves (coordinator, workers' store).
struct BarrierOver {
  std::int64_t round = 0;
  bool needed = false;
};
/// Somebody wants the end of the job, or (`insisted`) has said so already and will not wait.
struct SignalCame {
  int signal = 0;
  bool insisted = false;
};
struct GuardianGone {};
/// The kernel has not let a worker's main thread go for this long.
struct WorkerStuck {
  pid_t pid = 0;
  int local_rank = 0;
  Duration since{};
};
using Fact =
    std::variant<Pushed, GroupStarted, StartFailed, WorkerFailed, AllSucceeded, AllEnded, GroupGone,
                 SettleOver, LingerOver, BarrierOver, SignalCame, GuardianGone, WorkerStuck>;

/// How the job ended, as this agent sees it.
struct Ending {
  enum class Kind {
    Succeeded,
    WorkersFailed,   // workers of this node failed, and no restart was left
    JobFailed,       // somewhere else: a worker, a node, the rendezvous; see cause
    NotNeeded,       // a spare node, let go
    Signalled,       // we were told to end
    NoStart,         // the workers could not be started
    RendezvousLost,  // the coordinator is gone for good
    Stuck,           // a worker in uninterruptible sleep
    GuardianLost,    // the process that the user started was killed
  } kind = Kind::Succeeded;
  std::string why;  // one sentence, if there is more to say than the kind
  rendezvous::Cause cause;
  int signal = 0;
  bool requeue = false;  // the scheduler should start the job again

  bool is_everybodys_success() const { return kind == Kind::Succeeded && why.empty(); }
};

}  // namespace elastrun::agent
