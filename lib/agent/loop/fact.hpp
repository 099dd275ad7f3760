// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <variant>

namespace elastrun::agent {

struct ExpiredTimer;
struct JobHang;

/// What can happen to an agent. Each source (rendezvous, group of workers, signals, alarms,
/// guardian, hang watch, timers) posts such facts into the agent's one queue; what a push means
/// stands in rendezvous/membership/round.hpp.
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
/// A signal asks for the end of the job, or (`insisted`) asks again, without more waiting.
struct SignalCame {
  int signal = 0;
  bool insisted = false;
};
/// The job is to save and end within `deadline`.
struct PreemptCame {
  std::string why;
  Duration deadline{};
};
/// The coordinator has not answered to it: what is to be done here, then.
struct PreemptUnheard {
  rendezvous::SaveAt order;
};
/// The workers have had their time to save and to end by themselves.
struct LeaveOver {};
struct GuardianGone {};
/// The kernel has not let a worker's main thread go for this long.
struct WorkerStuck {
  pid_t pid = 0;
  int local_rank = 0;
  Duration since{};
};
/// No worker of the job makes progress. For observers; what follows, the rendezvous decides.
struct HangSeen {
  std::shared_ptr<const JobHang> hang;
};
/// By what workers of this node are held: stopped, or in a debugger; all of them, by rank. For
/// observers.
struct HeldSeen {
  std::map<int, std::string> ranks;
};
/// A timer of a worker has expired; and then: its process was sent the signal. For observers.
struct TimerExpired {
  std::shared_ptr<const ExpiredTimer> timer;
};
struct TimerKilled {
  std::shared_ptr<const ExpiredTimer> timer;
};
using Fact = std::variant<Pushed, GroupStarted, StartFailed, WorkerFailed, AllSucceeded, AllEnded,
                          GroupGone, SettleOver, LingerOver, BarrierOver, SignalCame, PreemptCame,
                          PreemptUnheard, LeaveOver, GuardianGone, WorkerStuck, HangSeen, HeldSeen,
                          TimerExpired, TimerKilled>;

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
    Preempted,       // asked to save and end; see why
    GuardianLost,    // the process that the user started was killed
  } kind = Kind::Succeeded;
  std::string why;  // one sentence, if there is more to say than the kind
  rendezvous::Cause cause;
  int signal = 0;
  bool requeue = false;  // the scheduler should start the job again

  bool is_everybodys_success() const { return kind == Kind::Succeeded && why.empty(); }
};

}  // namespace elastrun::agent
