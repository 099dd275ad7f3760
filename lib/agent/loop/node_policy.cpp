// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/node_policy.hpp"

#include "process/launcher.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <iterator>
#include <utility>

namespace elastrun::agent {
namespace {

// For a worker that has saved and does not end by itself: to flush its output.
constexpr Duration kAfterSave = std::chrono::seconds(2);

/// `first`, and then `more`.
std::vector<Action> then(std::vector<Action> first, std::vector<Action> more) {
  std::ranges::move(more, std::back_inserter(first));
  return first;
}

}  // namespace

std::string_view phase_text(Phase phase) {
  // In the order of Phase.
  constexpr std::array<std::string_view, 8> kTexts = {"waiting for other nodes",
                                                      "starting workers",
                                                      "running",
                                                      "a worker failed, waiting for the culprit",
                                                      "stopping workers",
                                                      "waiting for the decision to restart",
                                                      "done, waiting for other nodes to finish",
                                                      "ended"};
  static_assert(kTexts.size() == static_cast<std::size_t>(Phase::Ended) + 1);
  return kTexts[static_cast<std::size_t>(phase)];
}

NodePolicy::Actions NodePolicy::ordered(const rendezvous::RoundReady& push) {
  // A round that crossed our own leaving, or the loss of its coordinator, on the way.
  if (phase_ != Phase::Joining || lingers_) return {};
  // From a coordinator that does not know that such nodes come.
  if (!unable_.empty()) return on(StartFailed{{Code::Usage, unable_}});
  phase_ = Phase::Starting;
  round_ = push.round.number;
  gone_ = failed_ = succeeded_ = past_barrier_ = false;
  ran_ = true;
  order_.reset();
  return {StartGroup{push.round}};
}

NodePolicy::Actions NodePolicy::ordered(const rendezvous::Restart& push) {
  // Another role restarts alone: the round goes on here.
  if (!push.is_for(role_)) return {};
  // The first order counts: the group already stops for it.
  if (order_) return {};
  // Of a round of which it has never heard, because its directories were not made in time.
  if (phase_ == Phase::Joining) return {Join{}};
  order_ = push;
  Actions actions;
  if (preempted_ && push.cause.kind == rendezvous::Cause::Kind::CoordinatorLost) {
    // What was to end the job for all has gone. Another coordinator knows nothing of it: in its
    // round workers would save at once, and what then ends well would count as the job's success.
    actions.push_back(TellLeaving{"it was preempted"});
    ending_ = preempted_ending();
    if (saving_ && !gone_) return actions;  // LeaveOver comes with the end of their time
  }
  // What was done is to be done again: from here on, neither the barrier nor a lost coordinator may
  // make a success of it.
  succeeded_ = past_barrier_ = false;
  return then(std::move(actions), obey());
}

NodePolicy::Actions NodePolicy::ordered(const rendezvous::Lost& push) {
  // A verdict stands, also where its coordinator goes after it.
  if (order_ && std::holds_alternative<rendezvous::Done>(*order_)) return {};
  order_ = push;
  // A scheduler that ends the job reaches the coordinator's node first, and ours a moment later:
  // which of both it is decides the exit code.
  lingers_ = push.requeue && !succeeded_ && !ending_ && unable_.empty();
  return then(lingers_ ? Actions{ArmLinger{}} : Actions{}, obey());
}

NodePolicy::Actions NodePolicy::on(const StartFailed& fact) {
  gone_ = true;
  if (ending_) return resolve();  // told already that it leaves
  Ending ending{.kind = Ending::Kind::NoStart, .why = fact.error.text};
  return then({TellLeaving{"its workers could not be started: " + fact.error.text, true}},
              end(std::move(ending)));
}

// The connection to the coordinator is lost: this node alone saves.
NodePolicy::Actions NodePolicy::on(const PreemptUnheard& fact) {
  if (saving_ || order_ || ending_) return {};
  // By itself: the coordinator did not answer, and the time to save in runs out.
  saving_ = fact.order;
  ending_ = preempted_ending();
  Actions actions{TellLeaving{"it was preempted"}};
  if (phase_ == Phase::Running || phase_ == Phase::Settling) {
    phase_ = fact.order.by_signal ? Phase::Stopping : Phase::Running;
    actions.push_back(SaveGroup{fact.order});
  }
  return then(std::move(actions), resolve());
}

NodePolicy::Actions NodePolicy::on(const LeaveOver&) {
  // While workers start there is nothing to stop; GroupStarted looks at what has come meanwhile.
  if (gone_ || phase_ == Phase::Starting) return {};
  phase_ = Phase::Stopping;
  return {StopGroup{SIGTERM, false, kAfterSave}};
}

NodePolicy::Actions NodePolicy::on(const SignalCame& fact) {
  // While the job saves, another signal is the same end; a repeated one does not want to wait.
  const bool saves = ending_ ? ending_->kind == Ending::Kind::Preempted : !order_;
  if (preempted_ && saves) {
    if (fact.insisted) return kill();
    if (saving_ || phase_ == Phase::Running) return {};
  }
  const bool insisted = signalled_ && fact.insisted;
  if (std::exchange(signalled_, true)) return insisted ? kill() : ask_again(fact.signal);
  // A verdict stands: what comes later can only end sooner what is still going on.
  if (order_ && std::holds_alternative<rendezvous::Done>(*order_)) {
    if (gone_ || phase_ == Phase::Starting) return {};
    return {StopGroup{fact.signal, true}};
  }
  ending_ = {.kind = Ending::Kind::Signalled, .signal = fact.signal};
  Actions actions{TellLeaving{"it received " + process::signal_name(fact.signal)}};
  if (!gone_ && phase_ != Phase::Starting) {
    phase_ = Phase::Stopping;
    actions.push_back(StopGroup{fact.signal, true});
  }
  return then(std::move(actions), resolve());
}

NodePolicy::Actions NodePolicy::on(const GuardianGone&) {
  // The others know then, or the verdict has come.
  const bool known = ending_ || (order_ && std::holds_alternative<rendezvous::Done>(*order_));
  ending_ = {.kind = Ending::Kind::GuardianLost};
  Actions actions;
  if (!known) actions.push_back(TellLeaving{"the process that started it was killed", false, true});
  return then(std::move(actions), gone_ ? resolve() : kill());
}

NodePolicy::Actions NodePolicy::on(const WorkerStuck& fact) {
  if (phase_ != Phase::Running) return {};
  // Such a worker cannot be killed, so this node cannot put another one in its place.
  auto why =
      fmt::format("the worker with local rank {} (pid {}) has been in uninterruptible sleep for {}",
                  fact.local_rank, fact.pid, format_duration(fact.since));
  ending_ = {.kind = Ending::Kind::Stuck, .why = why};
  phase_ = Phase::Stopping;
  return {TellLeaving{std::move(why)}, StopGroup{SIGTERM}};
}

/// An order has come: stop the group if it runs, follow the order if it is gone.
NodePolicy::Actions NodePolicy::obey() {
  const auto* done = order_ ? std::get_if<rendezvous::Done>(&*order_) : nullptr;
  const bool saved = done != nullptr && done->cause.kind == rendezvous::Cause::Kind::Preempted;
  // They have saved, or had their time. What a trainer does behind its save, as to leave its
  // process group, is its own end and better than ours.
  if (saved && saving_ && !gone_ && phase_ != Phase::Starting) return {ArmLeave{}};
  if (phase_ == Phase::Running || phase_ == Phase::Settling) {
    phase_ = Phase::Stopping;
    return {saved ? StopGroup{SIGTERM, false, kAfterSave} : StopGroup{SIGTERM}};
  }
  return resolve();
}

NodePolicy::Actions NodePolicy::resolve() {
  if (!gone_) return {};
  // What this node has decided wins over orders that came meanwhile.
  if (ending_) return end(*ending_);
  if (order_ && !unable_.empty()) {
    return end({.kind = Ending::Kind::NoStart, .why = unable_});
  }
  if (!order_ && past_barrier_) {
    return end({.why = "the other nodes did not finish within the time of the exit barrier"});
  }
  const auto* lost = order_ ? std::get_if<rendezvous::Lost>(&*order_) : nullptr;
  if (!order_ || (lost != nullptr && lingers_)) {
    if (phase_ == Phase::Stopping) phase_ = succeeded_ ? Phase::Barrier : Phase::Waiting;
    return {};
  }
  if (const auto* done = std::get_if<rendezvous::Done>(&*order_)) return end(ending_of(*done));
  if (lost != nullptr) return end(ending_of(*lost));
  order_.reset();
  failed_ = false;
  phase_ = Phase::Joining;
  return {Join{}};
}

Ending NodePolicy::ending_of(const rendezvous::Done& done) const {
  Ending ending;
  ending.cause = done.cause;
  if (done.failed && done.cause.kind == rendezvous::Cause::Kind::Preempted) {
    ending.kind = Ending::Kind::Preempted;
    ending.why = done.cause.text;
    ending.requeue = true;
  } else if (done.failed) {
    ending.kind = failed_ ? Ending::Kind::WorkersFailed : Ending::Kind::JobFailed;
    ending.why = done.cause.text;
    // Workers ran, then nodes went and none came in their place: nothing is wrong with the job.
    ending.requeue = ran_ && done.cause.kind == rendezvous::Cause::Kind::Timeout;
  } else if (!succeeded_) {
    ending.kind = Ending::Kind::NotNeeded;
    if (ran_) ending.why = "the other nodes have finished the job without this one";
  }
  return ending;
}

}  // namespace elastrun::agent
