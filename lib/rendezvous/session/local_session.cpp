// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/local_session.hpp"

#include "core/lifetime.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr Peer kSelf = 1;

/// No other node is waited for, whatever its node rank.
Rules for_one_node(Rules rules) {
  rules.min_nodes = 1;
  rules.fixed_ranks = false;
  return rules;
}

class LocalSession final : public Session {
 public:
  LocalSession(boost::asio::io_context& loop, Clock& clock, LocalSettings settings)
      : loop_(loop),
        clock_(clock),
        settings_(std::move(settings)),
        state_(for_one_node(settings_.rules), settings_.run_id, settings_.master_addr,
               settings_.master_port),
        preemption_(settings_.rules.preempt_ack_all) {}
  ~LocalSession() override { lifetime_.end(); }

  void open(OnPush on_push) override { on_push_ = std::move(on_push); }

  void join(Node self) override {
    // Without a previous world: no other coordinator can have formed one, so nothing has to be
    // fenced.
    state_.join(kSelf, std::move(self), PreviousWorld{}, clock_.now());
    deliver();
  }

  void report(Report report) override {
    const TimePoint now = clock_.now();
    if (const auto* started = std::get_if<Started>(&report)) {
      state_.started(kSelf, started->round);
    } else if (auto* failed = std::get_if<Failed>(&report)) {
      state_.fail(kSelf, failed->round, std::move(failed->cause), now, failed->goes_on);
    } else if (const auto* succeeded = std::get_if<Succeeded>(&report)) {
      state_.succeed(kSelf, succeeded->round, now);
    } else if (const auto* leaving = std::get_if<Leaving>(&report)) {
      // Without a grace: no other node has to wait for this group.
      state_.leave(kSelf, leaving->why, now);
    }
    tell_preemption(report, now);
    tell_standstill(std::move(report), now);
    deliver();
  }

  void close(std::function<void()> on_closed) override {
    closed_ = true;
    if (alarm_) alarm_->disarm();
    // Posted, because what it calls may destroy this session, from which we have yet to return.
    boost::asio::post(loop_, std::move(on_closed));
  }

  std::string backend() const override { return settings_.backend; }
  std::string run_id() const override { return settings_.run_id; }

 private:
  void tell_preemption(const Report& report, TimePoint now) {
    if (const auto* ask = std::get_if<AskPreempt>(&report)) {
      if (preemption_.ask(ask->why, ask->deadline, now)) {
        state_.preempting(preemption_.cause(), now);
      }
    } else if (const auto* reached = std::get_if<Reached>(&report)) {
      state_.saved(reached->checkpoint);
      preemption_.says(kSelf, *reached, now);
    } else if (std::holds_alternative<Leaving>(report)) {
      preemption_.gone(kSelf, now);
    }
  }

  /// After the state, which knows by then whether there still is a round that could hang.
  void tell_standstill(Report report, TimePoint now) {
    look_at_round();
    if (std::holds_alternative<Succeeded>(report)) {
      standstill_.finished(kSelf, now);
    } else if (const auto* progress = std::get_if<ProgressReport>(&report)) {
      standstill_.says(kSelf, *progress, now);
    } else if (auto* stacks = std::get_if<NodeStacks>(&report)) {
      standstill_.answers(kSelf, std::move(*stacks), now);
    } else if (std::holds_alternative<AskStacks>(report)) {
      standstill_.asks(kSelf, now);
    }
  }

  void look_at_round() {
    if (state_.phase() != Phase::Running) standstill_.broken_up();
  }

  void deliver() {
    // First, so that what this makes the state say goes out below.
    if (preemption_.take_over()) state_.preempted(preemption_.text(), clock_.now());
    for (Delivery& delivery : state_.take()) {
      auto told = to_push(delivery.notice);
      if (const auto* ready = std::get_if<RoundReady>(&told)) {
        const auto& round = ready->round;
        standstill_.assigned(kSelf, round.number, round.members.front(), round.rank_base);
        preemption_.assigned(kSelf, round.number, round.group_rank);
      }
      push(std::move(told));
    }
    look_at_round();
    for (const auto& [peer, told] : standstill_.take()) push(*told);
    for (const auto& [peer, told] : preemption_.take()) push(*told);
    auto due = state_.deadline();
    if (const auto asked = standstill_.deadline()) due = std::min(due.value_or(*asked), *asked);
    if (const auto asked = preemption_.deadline()) due = std::min(due.value_or(*asked), *asked);
    if (!due) {
      if (alarm_) alarm_->disarm();
      return;
    }
    // Made when there is something to wait for: most jobs of one node never have a deadline.
    if (!alarm_) alarm_ = clock_.make_alarm();
    alarm_->arm(*due, [this] {
      state_.tick(clock_.now());
      look_at_round();
      standstill_.tick(clock_.now());
      preemption_.tick(clock_.now());
      deliver();
    });
  }

  void push(Push told) {
    boost::asio::post(loop_, [this, alive = lifetime_.token(), told = std::move(told)]() mutable {
      if (alive && !closed_) on_push_(std::move(told));
    });
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const LocalSettings settings_;
  State state_;
  Standstill standstill_;
  Preemption preemption_;
  OnPush on_push_;
  std::unique_ptr<Alarm> alarm_;
  bool closed_ = false;
  // Posted pushes outlive the session; this tells them that it has gone.
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Session> make_local_session(boost::asio::io_context& loop, Clock& clock,
                                            LocalSettings settings) {
  return std::make_unique<LocalSession>(loop, clock, std::move(settings));
}

}  // namespace elastrun::rendezvous
