// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "goodput/account/job_account.hpp"
#include "process/signals.hpp"
#include "rendezvous/membership/round.hpp"

#include <csignal>
#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::agent {

/// Where an agent stands: what a person asks when a job seems to hang.
using Phase = goodput::NodePhase;
/// "waiting for other nodes", ...
std::string_view phase_text(Phase phase);

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

// What the agent is to do.
struct Join {};
struct StartGroup {
  rendezvous::Round round;
};
struct ArmSettle {};
/// The coordinator has gone. If the whole job is being ended, its node heard of that first, and
/// this one is about to: which of both it is decides the exit code.
struct ArmLinger {};
struct StopGroup {
  int signal = 0;
  bool by_signal = false;            // it was sent to us, and may be repeated
  Duration grace = Duration::max();  // at most; as a rule that of the job
};
/// Tells the coordinator that the job is to save and end.
struct TellPreempt {
  std::string why;
  Duration deadline{};
};
/// Tells it how far the workers are.
struct TellReached {};
/// Tells the workers to save: who does not ask for that gets a signal.
struct SaveGroup {
  rendezvous::SaveAt order;
};
/// Its workers have ended in a preemption, well or not.
struct TellSaved {};
/// They have saved, or had their time: a moment to end by themselves, then LeaveOver.
struct ArmLeave {};
struct FinishGroup {};  // all ended: clear up what they left
struct KillGroup {};
struct TellStarted {};
struct TellFailed {};
struct TellSucceeded {};
struct TellLeaving {
  std::string why;
  bool unable = false;  // its workers could not be started
  bool killed = false;  // without a request
};
struct ArmBarrier {};
struct StayForOthers {};  // past the exit barrier's time: they would lose what this node serves
struct End {
  Ending ending;
};
struct CutEnd {};  // after End: wait for the goodbyes to other nodes no longer
using Action =
    std::variant<Join, StartGroup, ArmSettle, ArmLinger, StopGroup, FinishGroup, KillGroup,
                 TellStarted, TellFailed, TellSucceeded, TellLeaving, ArmBarrier, StayForOthers,
                 TellPreempt, TellReached, SaveGroup, TellSaved, ArmLeave, End, CutEnd>;

/// What one node does about each fact. Whether the job restarts is decided by the rendezvous, once
/// for all nodes; this policy says what follows from that here, and never joins a new round or ends
/// before the old group is gone. Pure: stepped with facts, gives actions in order.
///
/// Facts come in batches: whatever is told between StartGroup and its answer (GroupStarted or
/// StartFailed) is kept until that answer, because until then it is unknown whether there is a
/// group to stop.
class NodePolicy {
 public:
  /// `unable`: why its workers cannot be started, known before the first round: it tells that, and
  /// takes no part. Empty: they can. `role`: of its workers, which may restart alone.
  explicit NodePolicy(std::string unable = {}, std::string role = {})
      : unable_(std::move(unable)), role_(std::move(role)) {}

  /// The first actions of all.
  std::vector<Action> begin() { return {Join{}}; }
  std::vector<Action> step(const Fact& fact) {
    if (phase_ == Phase::Ended) {
      const auto* signal = std::get_if<SignalCame>(&fact);
      // A user who insists ends the wait for the other nodes; all else comes too late.
      return signal != nullptr && signal->insisted ? Actions{CutEnd{}} : Actions{};
    }
    return std::visit([this](const auto& one) { return on(one); }, fact);
  }
  Phase phase() const { return phase_; }

 private:
  using Actions = std::vector<Action>;
  Actions on(const Pushed& fact) {
    return std::visit([this](const auto& push) { return ordered(push); }, fact.push);
  }
  Actions on(const GroupStarted&) {
    // Kept until now, since before this answer it is unknown whether there is a group to stop.
    if (hurried_ || ending_ || order_) return stop_new_group();
    phase_ = Phase::Running;
    // The order to save may have come while the group was being started.
    if (!saving_) return {TellStarted{}};
    if (saving_->by_signal) phase_ = Phase::Stopping;
    return {TellStarted{}, SaveGroup{*saving_}};
  }
  Actions on(const StartFailed& fact);
  Actions on(const WorkerFailed& fact) {
    if (phase_ != Phase::Running && phase_ != Phase::Settling) return {};
    // The others may still be saving; one that ends by the signal that asked for it has not failed.
    if (saving_) return fact.others_run ? Actions{} : have_saved();
    failed_ = true;
    // Settling would only delay a restart.
    if (fact.first_is_known || !fact.others_run) return fail_now();
    if (phase_ == Phase::Settling) return {};
    phase_ = Phase::Settling;
    return {ArmSettle{}};
  }
  Actions on(const AllSucceeded&) {
    if (phase_ != Phase::Running) return {};
    if (saving_) return have_saved();
    succeeded_ = true;
    phase_ = Phase::Stopping;
    // Told first: the others wait for it at their barriers while this group is finished.
    return {TellSucceeded{}, ArmBarrier{}, FinishGroup{}};
  }
  Actions on(const AllEnded&) {
    if (saving_ && phase_ == Phase::Running) return have_saved();
    // No culprit can come any more.
    return phase_ == Phase::Settling ? fail_now() : Actions{};
  }
  Actions on(const GroupGone&) {
    gone_ = true;
    // In a preemption the coordinator waits for the save of each node: one whose workers have gone
    // must say so.
    const bool goes = saving_ || preempted_;
    if (goes && !order_ && !ending_ && !succeeded_ && !std::exchange(told_saved_, true)) {
      phase_ = Phase::Waiting;
      return {TellSaved{}};
    }
    return resolve();
  }
  Actions on(const SettleOver&) { return phase_ == Phase::Settling ? fail_now() : Actions{}; }
  Actions on(const LingerOver&) {
    lingers_ = false;
    return resolve();
  }
  Actions on(const BarrierOver& fact) {
    // The alarm may belong to an earlier round, whose success was taken back by a restart.
    if (!succeeded_ || ending_ || fact.round != round_) return {};
    // The others' store or coordinator is here: they would be killed with it.
    if (fact.needed) return {StayForOthers{}};
    past_barrier_ = true;
    return resolve();
  }
  Actions on(const SignalCame& fact);
  // After a signal that only announced the end, and at which the workers may have gone on.
  Actions ask_again(int signal) {
    if (!ending_ || !process::only_announces_end(ending_->signal)) return {};
    // The group will be stopped with it as soon as it has been started.
    if (phase_ == Phase::Starting) ending_->signal = signal;
    if (phase_ != Phase::Stopping || gone_) return {};
    return {StopGroup{signal, true}};
  }
  // Told again where the job is preempted already: less time may be left than the first one said.
  Actions on(const PreemptCame& fact) {
    const bool known = order_ && !std::holds_alternative<rendezvous::Restart>(*order_);
    if (known || ending_) return {};
    if (!preempted_) preempted_ = fact.why;
    return {TellPreempt{fact.why, fact.deadline}};
  }
  Actions on(const PreemptUnheard& fact);
  Actions on(const LeaveOver&);
  Actions on(const GuardianGone&);
  Actions on(const WorkerStuck& fact);
  Actions on(const auto&) { return {}; }  // for observers alone
  Actions ordered(const rendezvous::RoundReady& push);
  Actions ordered(const rendezvous::Restart& push);
  Actions ordered(const rendezvous::Done& push) {
    order_ = push;
    return obey();
  }
  Actions ordered(const rendezvous::Lost& push);
  Actions ordered(const rendezvous::AskReached& push) {
    if (!preempted_) preempted_ = push.why;
    return {TellReached{}};
  }
  Actions ordered(const rendezvous::SaveAt& push) {
    if (saving_ || order_ || ending_) return {};
    saving_ = push;
    // GroupStarted takes the order up.
    if (phase_ != Phase::Running && phase_ != Phase::Settling) return {};
    phase_ = push.by_signal ? Phase::Stopping : Phase::Running;
    return {SaveGroup{push}};
  }
  Actions ordered(const auto&) { return {}; }  // stacks, and what is shown to people

  // While it was being started, an order or the end of the job came.
  Actions stop_new_group() {
    phase_ = Phase::Stopping;
    if (hurried_) return {KillGroup{}};
    if (ending_ && ending_->signal != 0) return {StopGroup{ending_->signal, true}};
    return {StopGroup{SIGTERM}};
  }
  // All workers have ended, while the others' may be saving: the coordinator ends the job for all.
  Actions have_saved() {
    phase_ = Phase::Stopping;
    if (order_ || ending_ || std::exchange(told_saved_, true)) return {FinishGroup{}};
    return {TellSaved{}, FinishGroup{}};
  }
  Ending preempted_ending() const {
    // The job goes on elsewhere: the exit code asks the scheduler for that
    // (elastrun-preemption(7)).
    return {
        .kind = Ending::Kind::Preempted, .why = "preempted (" + *preempted_ + ")", .requeue = true};
  }
  Actions fail_now() {
    phase_ = Phase::Stopping;
    return {TellFailed{}, StopGroup{SIGTERM}};
  }
  Actions kill() {
    if (gone_) return {};
    if (phase_ == Phase::Starting) {
      // The group does not exist yet; GroupStarted kills it.
      hurried_ = true;
      return {};
    }
    phase_ = Phase::Stopping;
    return {KillGroup{}};
  }
  Actions obey();
  Actions resolve();
  Actions end(Ending ending) {
    phase_ = Phase::Ended;
    return {End{std::move(ending)}};
  }
  Ending ending_of(const rendezvous::Done& done) const;
  Ending ending_of(const rendezvous::Lost& lost) const {
    Ending ending;
    ending.why = lost.why;
    ending.cause.misuse = lost.misuse;
    if (succeeded_) return ending;  // our part is done; no coordinator is left to tell about others
    if (preempted_) return preempted_ending();
    ending.kind = failed_ ? Ending::Kind::WorkersFailed : Ending::Kind::RendezvousLost;
    ending.requeue = lost.requeue;
    return ending;
  }

  using Order = std::variant<rendezvous::Restart, rendezvous::Done, rendezvous::Lost>;

  const std::string unable_, role_;
  Phase phase_ = Phase::Joining;
  std::int64_t round_ = 0;  // of the last group
  bool gone_ = true;        // no group exists, or is being started
  bool failed_ = false;     // workers of this node failed in this round
  bool succeeded_ = false;  // all of them succeeded in this round, and no other one is wanted
  bool past_barrier_ = false;
  bool hurried_ = false;  // to be killed as soon as it has started
  bool ran_ = false;      // at least one round was begun
  bool signalled_ = false;
  std::optional<rendezvous::SaveAt> saving_;  // the workers end by themselves once they have saved
  bool told_saved_ = false;
  std::optional<std::string> preempted_;  // the job is to save and end, and why
  bool lingers_ = false;          // the coordinator has gone; waits for a signal that says why
  std::optional<Order> order_;    // told to us, to be obeyed once the group is gone
  std::optional<Ending> ending_;  // decided here, for then too; wins over orders
};

}  // namespace elastrun::agent
