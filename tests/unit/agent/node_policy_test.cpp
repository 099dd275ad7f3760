// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/node_policy.hpp"

#include <csignal>
#include <deque>
#include <doctest/doctest.h>
#include <random>
#include <string>

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

// A policy in a random world: facts that can happen, in batches, as they wait in the agent's queue
// while another one is acted upon. What an action leads to comes after all that waits already.

void must(bool holds, const char* text) {
  if (!holds) FAIL(std::string(text));
}

/// What stands around a policy: the session, which gives a place to whoever asked for one and tells
/// to stop whoever has one; the group of workers; alarms; people who send signals.
class RandomWorld {
 public:
  explicit RandomWorld(unsigned seed) : random_(seed) {}

  void live() {
    obey(policy_.begin());
    for (int i = 0; i < 100 && !ended_; ++i) {
      for (int facts = 1 + draw(4); facts > 0; --facts) happen();
      work_off();
    }
    // Whatever was going on, a verdict and the end of the group end it.
    push(rendezvous::Done{true, {}});
    work_off();
    if (group_ == Group::Asked) end_group();
    work_off();
    must(ended_, "a verdict and the end of the group end the job");
  }

 private:
  enum class Place { None, Wanted, Held };
  enum class Group { None, Alive, Asked, Gone };  // Gone: its object is there until the next join

  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool rarely() { return draw(24) == 0; }
  static bool is_round(const Fact& fact) {
    const auto* pushed = std::get_if<Pushed>(&fact);
    return pushed != nullptr && std::holds_alternative<rendezvous::RoundReady>(pushed->push);
  }
  void push(rendezvous::Push word) { facts_.push_back(Pushed{std::move(word)}); }

  void happen() {
    switch (draw(10)) {
      case 0:
      case 1:
      case 2:
        return draw(2) == 0 ? give_place() : take_place();
      case 3:
        if (rarely()) say_last(rendezvous::Done{draw(2) == 0, {}});
        return;
      case 4:
        if (rarely()) say_last(rendezvous::Lost{"x", draw(2) == 0});
        if (lingers_ && draw(2) == 0) facts_.push_back(LingerOver{});
        return;
      case 5:
        if (rarely()) facts_.push_back(SignalCame{draw(2) == 0 ? 2 : 15, draw(2) == 0});
        if (rarely() && draw(4) == 0) facts_.push_back(GuardianGone{});
        return;
      case 6:
        facts_.push_back(draw(2) == 0 ? Fact(SettleOver{}) : Pushed{rendezvous::Progress{}});
        if (rarely() && draw(4) == 0) preempt();
        return;
      case 7:
        if (armed_ != 0) facts_.push_back(BarrierOver{std::exchange(armed_, 0), draw(2) == 0});
        return;
      default:
        return live_group();
    }
  }

  void preempt() {
    if (draw(2) == 0) facts_.push_back(PreemptCame{"x"});
    if (draw(2) == 0) push(rendezvous::AskReached{});
    push(rendezvous::SaveAt{3, {}, draw(2) == 0});
  }
  // A session that has said how it ends gives no rounds any more, nor takes them.
  void say_last(rendezvous::Push word) {
    over_ = true;
    push(std::move(word));
  }
  void give_place() {
    if (place_ != Place::Wanted || over_) return;
    place_ = Place::Held;
    rendezvous::RoundReady ready;
    ready.round.number = ++round_;
    push(ready);
  }
  void take_place() {
    if (place_ != Place::Held || over_) return;
    place_ = Place::None;
    // One whose directories are not made by then is dropped.
    if (draw(4) == 0) std::erase_if(facts_, is_round);
    rendezvous::Restart restart{{}, draw(2) == 0, 1};
    if (draw(2) == 0) restart.cause.kind = rendezvous::Cause::Kind::CoordinatorLost;
    push(std::move(restart));
  }

  void live_group() {
    if (group_ == Group::Asked) {
      if (draw(2) == 0) end_group();
    } else if (group_ == Group::Alive && !all_ended_) {
      const int how = draw(3);
      if (how == 0) facts_.push_back(AllSucceeded{});
      const bool others_run = draw(2) == 0;
      if (how == 1) facts_.push_back(WorkerFailed{draw(2) == 0, others_run});
      none_run_ = none_run_ || (how == 1 && !others_run);
      if (how == 2 && failed_) facts_.push_back(AllEnded{});
      failed_ = failed_ || how == 1;
      all_ended_ = how == 0 || (how == 2 && failed_);
    }
  }
  void end_group() {
    group_ = Group::Gone;
    facts_.push_back(GroupGone{});
  }

  void work_off() {
    while (!facts_.empty() && !ended_) {
      const Fact fact = std::move(facts_.front());
      facts_.pop_front();
      note(fact);
      obey(policy_.step(fact));
    }
    if (ended_) return;
    const Phase phase = policy_.phase();
    must(phase != Phase::Starting, "the answer to a start has come");
    must((phase == Phase::Running || phase == Phase::Settling) == (group_ == Group::Alive),
         "it believes that its workers run if they do");
    must(phase != Phase::Stopping || group_ == Group::Asked, "what it waits for was asked for");
    must(phase != Phase::Joining || place_ != Place::None,
         "who waits for a place has asked for one");
  }

  // Whether it would be true to say that the last work of this node has succeeded.
  void note(const Fact& fact) {
    if (std::holds_alternative<AllSucceeded>(fact) && policy_.phase() == Phase::Running) {
      success_ = true;
    }
    const auto* pushed = std::get_if<Pushed>(&fact);
    if (pushed == nullptr) return;
    if (std::holds_alternative<rendezvous::Restart>(pushed->push)) success_ = false;
  }

  void obey(const std::vector<Action>& actions) {
    for (const auto& action : actions) {
      must(!ended_ || std::holds_alternative<CutEnd>(action), "nothing is done after the end");
      std::visit([this](const auto& one) { perform(one); }, action);
    }
  }

  void perform(const Join&) {
    must(!runs(), "no new round while old workers run");
    group_ = Group::None;
    place_ = Place::Wanted;
  }
  void perform(const StartGroup&) {
    must(group_ == Group::None, "one group at a time");
    failed_ = all_ended_ = none_run_ = false;
    if (draw(40) == 0) return facts_.push_back(StartFailed{{Code::Spawn, "no such file"}});
    group_ = Group::Alive;
    facts_.push_back(GroupStarted{});
  }
  void perform(const StopGroup&) { ask(); }
  void perform(const FinishGroup&) { ask(); }
  void perform(const KillGroup&) { ask(); }
  void perform(const TellFailed&) { must(failed_, "a failure that is told has happened"); }
  void perform(const TellStarted&) { must(group_ == Group::Alive, "what has started runs"); }
  void perform(const TellSucceeded&) { must(success_, "a success that is told has happened"); }
  void perform(const ArmBarrier&) { armed_ = round_; }
  void perform(const StayForOthers&) { must(success_, "who stays has done its part"); }
  void perform(const TellPreempt&) {
    if (draw(2) == 0) facts_.push_back(PreemptUnheard{{.by_signal = draw(2) == 0}});
  }
  void perform(const ArmLeave&) { facts_.push_back(LeaveOver{}); }
  void perform(const TellReached&) {}
  void perform(const SaveGroup& action) {
    must(group_ == Group::Alive, "who is to save runs");
    if (action.order.by_signal) ask();
  }
  void perform(const TellSaved&) {
    must(!runs() || all_ended_ || none_run_, "who has saved and ended does not run");
  }
  void perform(const ArmSettle&) {}
  void perform(const ArmLinger&) { lingers_ = true; }
  void perform(const TellLeaving&) {}
  void perform(const CutEnd&) {}
  void perform(const End& action) {
    must(!runs(), "no end while workers run");
    const bool succeeded = action.ending.kind == Ending::Kind::Succeeded;
    must(!succeeded || success_, "no success that was to be done again");
    ended_ = true;
  }

  bool runs() const { return group_ == Group::Alive || group_ == Group::Asked; }
  void ask() {
    must(group_ != Group::None, "only a group that exists is stopped");
    if (group_ == Group::Alive) group_ = Group::Asked;
  }

  std::minstd_rand random_;
  NodePolicy policy_;
  std::deque<Fact> facts_;
  Place place_ = Place::None;
  Group group_ = Group::None;
  std::int64_t round_ = 0, armed_ = 0;
  bool failed_ = false, all_ended_ = false, none_run_ = false, success_ = false, over_ = false;
  bool ended_ = false, lingers_ = false;
};

TEST_CASE("policy: batches of facts leave no group behind, doubled or stopped twice, and no lie") {
  for (unsigned seed = 1; seed <= 20'000; ++seed) {
    INFO("seed ", seed);
    RandomWorld(seed).live();
  }
}

}  // namespace
}  // namespace elastrun::agent
