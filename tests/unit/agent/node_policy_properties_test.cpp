// SPDX-License-Identifier: Apache-2.0
// A policy in a random world: facts that can happen, in batches, as they wait in the agent's queue
// while another one is acted upon. What an action leads to comes after all that waits already.
#include "agent/loop/node_policy.hpp"

#include <deque>
#include <doctest/doctest.h>
#include <random>
#include <string>

namespace elastrun::agent {
namespace {

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
