// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/node_policy.hpp"

#include <csignal>
#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using EndingKind = Ending::Kind;
using Words = std::vector<std::string>;

/// One word for each action, so that a test reads as a script.
struct Wording {
  std::string operator()(const Join&) const { return "join"; }
  std::string operator()(const StartGroup&) const { return "start"; }
  std::string operator()(const ArmSettle&) const { return "settle"; }
  std::string operator()(const ArmLinger&) const { return "linger"; }
  std::string operator()(const StopGroup& one) const {
    return one.signal == SIGTERM ? "stop" : "stop by " + std::to_string(one.signal);
  }
  std::string operator()(const FinishGroup&) const { return "finish"; }
  std::string operator()(const KillGroup&) const { return "kill"; }
  std::string operator()(const TellStarted&) const { return "started!"; }
  std::string operator()(const TellFailed&) const { return "failed!"; }
  std::string operator()(const TellSucceeded&) const { return "succeeded!"; }
  std::string operator()(const TellLeaving&) const { return "leaving!"; }
  std::string operator()(const ArmBarrier&) const { return "barrier"; }
  std::string operator()(const StayForOthers&) const { return "stay"; }
  std::string operator()(const TellPreempt& one) const { return "preempt! " + one.why; }
  std::string operator()(const TellReached&) const { return "reached!"; }
  std::string operator()(const SaveGroup&) const { return "save"; }
  std::string operator()(const TellSaved&) const { return "saved!"; }
  std::string operator()(const ArmLeave&) const { return "leave"; }
  std::string operator()(const End&) const { return "end"; }
  std::string operator()(const CutEnd&) const { return "cut"; }
};

/// A policy and the ending it came to.
struct PolicyNode {
  NodePolicy policy{};
  std::optional<Ending> ending{};

  Words words(const std::vector<Action>& actions) {
    Words all;
    for (const auto& action : actions) {
      all.push_back(std::visit(Wording{}, action));
      if (const auto* end = std::get_if<End>(&action)) ending = end->ending;
    }
    return all;
  }
  Words on(Fact fact) { return words(policy.step(fact)); }
  Words push(rendezvous::Push push) { return on(Pushed{std::move(push)}); }
  /// Brings it to where the workers run.
  void run() {
    CHECK(words(policy.begin()) == Words{"join"});
    again();
  }
  void again() {
    CHECK(push(rendezvous::RoundReady{}) == Words{"start"});
    CHECK(on(GroupStarted{}) == Words{"started!"});
    CHECK(policy.phase() == Phase::Running);
  }
  EndingKind ended() {
    REQUIRE(ending.has_value());
    CHECK(policy.phase() == Phase::Ended);
    return ending->kind;
  }
};

rendezvous::Done failed_elsewhere() {
  rendezvous::Done done;
  done.failed = true;
  done.cause.text = "rank 7 ended with exit code 3";
  return done;
}

TEST_CASE(
    "policy: a job that has lost its nodes is to be submitted again; one that never met is not") {
  for (const bool ran : {false, true}) {
    CAPTURE(ran);
    PolicyNode node;
    if (ran) {
      node.run();
      node.push(rendezvous::Restart{});
      node.on(GroupGone{});
    }
    rendezvous::Done done;
    done.failed = true;
    done.cause.kind = rendezvous::Cause::Kind::Timeout;
    CHECK(node.push(done) == Words{"end"});
    CHECK(node.ended() == EndingKind::JobFailed);
    CHECK(node.ending->requeue == ran);
  }
}

TEST_CASE("policy: a failure is told and the group stopped at the same moment") {
  PolicyNode node;
  node.run();
  CHECK(node.on(WorkerFailed{true, true}) == Words{"failed!", "stop"});
  CHECK(node.push(rendezvous::Restart{}).empty());
  CHECK_MESSAGE(node.on(GroupGone{}) == Words{"join"}, "no new round while old workers run");
  node.again();
}

TEST_CASE("policy: after a victim the culprit is given a moment to end") {
  PolicyNode node;
  node.run();
  CHECK(node.on(WorkerFailed{false, true}) == Words{"settle"});
  CHECK(node.on(WorkerFailed{false, true}).empty());
  CHECK(node.on(SettleOver{}) == Words{"failed!", "stop"});
}

TEST_CASE("policy: the moment is over when the culprit has ended, or nobody is left") {
  PolicyNode known, alone, last;
  known.run();
  CHECK(known.on(WorkerFailed{false, true}) == Words{"settle"});
  CHECK(known.on(WorkerFailed{true, true}) == Words{"failed!", "stop"});
  CHECK(known.on(SettleOver{}).empty());
  alone.run();
  CHECK(alone.on(WorkerFailed{false, false}) == Words{"failed!", "stop"});
  last.run();
  last.on(WorkerFailed{false, true});
  CHECK(last.on(AllEnded{}) == Words{"failed!", "stop"});
  CHECK(last.on(SettleOver{}).empty());
}

TEST_CASE("policy: a restart of a round that it was never told makes it join again") {
  PolicyNode node;
  node.words(node.policy.begin());
  CHECK(node.push(rendezvous::Restart{}) == Words{"join"});
  node.again();
}

TEST_CASE("policy: the verdict wins over a restart that came before it") {
  PolicyNode node;
  node.run();
  node.push(rendezvous::Restart{});
  CHECK(node.push(failed_elsewhere()).empty());
  CHECK(node.on(GroupGone{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::JobFailed);
}

TEST_CASE("policy: nobody insists on what nobody has asked for") {
  PolicyNode node;
  node.run();
  CHECK(node.on(SignalCame{SIGTERM, true}) == Words{"leaving!", "stop"});
}

TEST_CASE("policy: a signal after the verdict changes nothing but the time") {
  PolicyNode node;
  node.run();
  node.on(AllSucceeded{});
  node.push(rendezvous::Done{});
  CHECK(node.on(SignalCame{SIGTERM}) == Words{"stop"});
  CHECK(node.on(SignalCame{SIGTERM, true}) == Words{"kill"});
  CHECK(node.on(GroupGone{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::Succeeded);
}

TEST_CASE("policy: a signal during a wait ends that wait") {
  PolicyNode joining, barrier;
  joining.words(joining.policy.begin());
  CHECK(joining.on(SignalCame{SIGTERM}) == Words{"leaving!", "end"});
  barrier.run();
  barrier.on(AllSucceeded{});
  barrier.on(GroupGone{});
  CHECK(barrier.on(SignalCame{SIGTERM}) == Words{"leaving!", "end"});
  CHECK(barrier.ended() == EndingKind::Signalled);
}

TEST_CASE("policy: a signal while a failed group is stopped is passed on as well") {
  PolicyNode node;
  node.run();
  node.on(WorkerFailed{});
  CHECK(node.on(SignalCame{SIGHUP}) == Words{"leaving!", "stop by " + std::to_string(SIGHUP)});
  node.push(rendezvous::Restart{});
  CHECK(node.on(GroupGone{}) == Words{"end"});
}

TEST_CASE("policy: a node that is known to be unable to start waits until the others know") {
  PolicyNode node{NodePolicy("no such program"), {}};
  CHECK(node.words(node.policy.begin()) == Words{"join"});
  SUBCASE("and that has failed the job") {
    CHECK(node.push(failed_elsewhere()) == Words{"end"});
  }
  SUBCASE("and they go on") {
    CHECK(node.push(rendezvous::Lost{"the others have been told", true}) == Words{"end"});
  }
  SUBCASE("or a coordinator that does not know such nodes gives it a round") {
    CHECK(node.push(rendezvous::RoundReady{}) == Words{"leaving!", "end"});
  }
  SUBCASE("or somebody ends it") {
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leaving!", "end"});
    CHECK(node.ended() == EndingKind::Signalled);
    return;
  }
  CHECK(node.ended() == EndingKind::NoStart);
  CHECK(node.ending->why == "no such program");
  CHECK(!node.ending->requeue);
}

TEST_CASE("policy: who has said why it goes does not say it again when the guardian dies") {
  PolicyNode node;
  node.run();
  node.on(SignalCame{SIGTERM});
  CHECK(node.on(GuardianGone{}) == Words{"kill"});
}

TEST_CASE("policy: a barrier of an earlier round rings in vain") {
  PolicyNode node;
  node.run();
  node.on(AllSucceeded{});
  node.on(GroupGone{});
  node.push(rendezvous::Restart{});
  node.again();
  CHECK(node.on(BarrierOver{}).empty());
  CHECK(node.policy.phase() == Phase::Running);
}

TEST_CASE("policy: whoever serves the others stays until the last of them has ended") {
  PolicyNode node;
  node.run();
  node.on(AllSucceeded{});
  CHECK(node.on(BarrierOver{0, true}) == Words{"stay"});
  CHECK(node.on(GroupGone{}).empty());
  CHECK(node.policy.phase() == Phase::Barrier);
  SUBCASE("which is told by the verdict") {
    CHECK(node.push(rendezvous::Done{}) == Words{"end"});
    CHECK(node.ended() == EndingKind::Succeeded);
    CHECK(node.ending->why.empty());
  }
  SUBCASE("or by a signal to itself") {
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leaving!", "end"});
    CHECK(node.ended() == EndingKind::Signalled);
  }
  SUBCASE("and is at work again if one of them fails") {
    CHECK(node.push(rendezvous::Restart{}) == Words{"join"});
    node.again();
  }
}

TEST_CASE("policy: a barrier that ends before the group is gone does not outdo a restart") {
  PolicyNode node;
  node.run();
  node.on(AllSucceeded{});
  CHECK(node.on(BarrierOver{}).empty());
  node.push(rendezvous::Restart{});
  CHECK(node.on(GroupGone{}) == Words{"join"});
}

TEST_CASE("policy: whatever comes while a group is being started is done once it has") {
  PolicyNode node;
  node.words(node.policy.begin());
  node.push(rendezvous::RoundReady{});
  SUBCASE("a restart") {
    CHECK(node.push(rendezvous::Restart{}).empty());
    CHECK(node.on(GroupStarted{}) == Words{"stop"});
    CHECK(node.on(GroupGone{}) == Words{"join"});
    node.again();
  }
  SUBCASE("a signal") {
    CHECK(node.on(SignalCame{SIGINT}) == Words{"leaving!"});
    CHECK(node.on(GroupStarted{}) == Words{"stop by " + std::to_string(SIGINT)});
    CHECK(node.on(GroupGone{}) == Words{"end"});
    CHECK(node.ended() == EndingKind::Signalled);
  }
  SUBCASE("a signal, and then it could not be started") {
    node.on(SignalCame{SIGINT});
    CHECK(node.on(StartFailed{{Code::Spawn, "no such file"}}) == Words{"end"});
    CHECK(node.ended() == EndingKind::Signalled);
  }
  SUBCASE("the end of the guardian") {
    CHECK(node.on(GuardianGone{}) == Words{"leaving!"});
    CHECK(node.on(GroupStarted{}) == Words{"kill"});
    CHECK(node.on(GroupGone{}) == Words{"end"});
  }
}

TEST_CASE("policy: a success that is to be done again is none, whoever is lost then") {
  PolicyNode node;
  node.run();
  node.on(AllSucceeded{});
  node.on(GroupGone{});
  node.push(rendezvous::Restart{});
  CHECK(node.push(rendezvous::Lost{"connection refused", true}) == Words{"linger"});
  CHECK(node.on(LingerOver{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::RendezvousLost);
}

TEST_CASE("policy: whoever ends the job at all nodes ends this one, though the first to hear led") {
  const rendezvous::Lost lost{"the node that hosts the rendezvous has left", true};
  for (const bool gone : {true, false}) {
    CAPTURE(gone);
    PolicyNode node;
    node.run();
    CHECK(node.push(lost) == Words{"linger", "stop"});
    if (gone) CHECK(node.on(GroupGone{}).empty());
    node.on(SignalCame{SIGTERM});
    if (!gone) CHECK(node.on(GroupGone{}) == Words{"end"});
    CHECK(node.ended() == EndingKind::Signalled);
    CHECK(node.on(LingerOver{}).empty());
  }
  PolicyNode late;
  late.run();
  late.push(lost);
  CHECK(late.on(LingerOver{}).empty());
  CHECK(late.on(GroupGone{}) == Words{"end"});
  CHECK(late.ended() == EndingKind::RendezvousLost);
}

TEST_CASE("policy: a lost coordinator stops the group, but spares who has finished") {
  PolicyNode running, finished;
  rendezvous::Lost lost{"connection refused", true};
  running.run();
  CHECK(running.push(lost) == Words{"linger", "stop"});
  CHECK(running.on(GroupGone{}).empty());
  CHECK(running.on(LingerOver{}) == Words{"end"});
  CHECK(running.ended() == EndingKind::RendezvousLost);
  CHECK(running.ending->requeue);
  finished.run();
  finished.on(AllSucceeded{});
  finished.on(GroupGone{});
  CHECK(finished.push(lost) == Words{"end"});
  CHECK(finished.ended() == EndingKind::Succeeded);
}

TEST_CASE("policy: after the end nothing moves any more") {
  PolicyNode node;
  node.run();
  node.on(SignalCame{SIGTERM});
  node.on(GroupGone{});
  CHECK(node.push(rendezvous::RoundReady{}).empty());
  CHECK(node.on(SignalCame{SIGTERM}).empty());
  CHECK(node.on(GroupGone{}).empty());
}

rendezvous::Done preempted() {
  rendezvous::Done done;
  done.failed = true;
  done.cause.kind = rendezvous::Cause::Kind::Preempted;
  done.cause.text = "preempted (SIGTERM): saved at step 3";
  return done;
}

TEST_CASE("policy: a preempted job tells, saves, and ends so that a requeue helps") {
  PolicyNode node;
  node.run();
  CHECK(node.on(PreemptCame{"SIGTERM"}) == Words{"preempt! SIGTERM"});
  // What comes second may leave less time.
  CHECK(node.on(PreemptCame{"a file"}) == Words{"preempt! a file"});
  CHECK(node.push(rendezvous::AskReached{}) == Words{"reached!"});
  CHECK(node.push(rendezvous::SaveAt{4}) == Words{"save"});
  CHECK(node.policy.phase() == Phase::Running);
  CHECK(node.on(WorkerFailed{true, true}).empty());  // the others may be saving
  CHECK(node.on(AllEnded{}) == Words{"saved!", "finish"});
  CHECK(node.on(GroupGone{}).empty());
  CHECK(node.push(preempted()) == Words{"end"});
  CHECK(node.ended() == EndingKind::Preempted);
  CHECK(node.ending->requeue);
}

TEST_CASE("policy: once the checkpoint is there, workers that stay are stopped") {
  PolicyNode node;
  node.run();
  node.push(rendezvous::SaveAt{4});
  CHECK(node.push(preempted()) == Words{"leave"});
  CHECK(node.on(LeaveOver{}) == Words{"stop"});
  CHECK(node.on(GroupGone{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::Preempted);
}

TEST_CASE("policy: a signal while it saves is the same end, a repeated one kills") {
  PolicyNode node;
  node.run();
  node.on(PreemptCame{"SIGUSR1"});
  CHECK(node.on(SignalCame{SIGTERM}).empty());
  CHECK(node.on(SignalCame{SIGTERM, true}) == Words{"kill"});
  CHECK(node.on(GroupGone{}) == Words{"saved!"});
}

TEST_CASE("policy: the coordinator does not answer to a preemption: this node saves alone") {
  PolicyNode node;
  node.run();
  node.on(PreemptCame{"SIGTERM"});
  CHECK(node.on(PreemptUnheard{{.step = -1}}) == Words{"leaving!", "save"});
  CHECK(node.on(SignalCame{SIGTERM}).empty());
  CHECK(node.on(AllSucceeded{}) == Words{"finish"});
  CHECK(node.on(GroupGone{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::Preempted);
  CHECK(node.ending->requeue);
}

TEST_CASE("policy: its coordinator goes while it saves: it saves, and is no success") {
  for (const bool finally : {false, true}) {
    PolicyNode node;
    node.run();
    node.push(rendezvous::AskReached{"SIGTERM", {}});  // another node was asked to
    node.push(rendezvous::SaveAt{4});
    if (finally) {
      CHECK(node.on(AllSucceeded{}) == Words{"saved!", "finish"});
      node.push(rendezvous::Lost{"gone", true});
      CHECK(node.on(GroupGone{}).empty());
      CHECK(node.on(LingerOver{}) == Words{"end"});
    } else {
      rendezvous::Restart lost;
      lost.cause.kind = rendezvous::Cause::Kind::CoordinatorLost;
      CHECK(node.push(lost) == Words{"leaving!"});
      CHECK(node.policy.phase() == Phase::Running);
      CHECK(node.on(AllSucceeded{}) == Words{"finish"});
      CHECK(node.on(GroupGone{}) == Words{"end"});
    }
    CHECK(node.ended() == EndingKind::Preempted);
    CHECK(node.ending->requeue);
  }
}

TEST_CASE("policy: preempted, and its coordinator goes: it ends by itself") {
  PolicyNode node;
  node.run();
  node.on(PreemptCame{"SIGTERM"});
  rendezvous::Restart lost;
  lost.cause.kind = rendezvous::Cause::Kind::CoordinatorLost;
  CHECK(node.push(lost) == Words{"leaving!", "stop"});
  CHECK(node.on(GroupGone{}) == Words{"end"});
  CHECK(node.ended() == EndingKind::Preempted);
  CHECK(node.ending->requeue);
}

}  // namespace
}  // namespace elastrun::agent
