// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/node_policy.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/loop/saving.hpp"
#include "agent/round/round_store.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "workers/group.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// When the workers of a preempted job are stopped: at the end of the time that they have to save;
/// once the job has saved, after a moment in which they may end by themselves. Who still writes by
/// then, as a rank does whose part of a checkpoint is larger, may go on until the end of the time.
class LeaveTime {
 public:
  /// To leave a process group of GPUs, and for Python to end, takes seconds.
  static constexpr Duration kMoment = std::chrono::seconds(5);
  static constexpr Duration kSilence = std::chrono::seconds(1);
  /// From one look to the next; less may be a log.
  static constexpr std::uint64_t kWrites = 1u << 20;

  explicit LeaveTime(RunContext& run) : run_(run), alarm_(run.clock.make_alarm()) {}

  /// They are asked to save, and have so long.
  void begin(Duration left) {
    until_ = run_.clock.now() + left;
    // Later, since the coordinator says the same then: this is for one that is silent.
    alarm_->arm(until_ + kSilence, [this] { run_.post(LeaveOver{}); });
  }
  /// The job has saved, or its time is over.
  void saved() {
    before_ = run_.written();
    arm();
  }
  void end() { alarm_->disarm(); }
  /// Of the time to save.
  Duration left() const { return std::max(until_ - run_.clock.now(), Duration::zero()); }

 private:
  void arm() {
    alarm_->arm(std::min(until_, run_.clock.now() + kMoment), [this] { look(); });
  }
  void look() {
    const auto now = run_.written();
    if (left() == Duration::zero() || now < before_ + kWrites) return run_.post(LeaveOver{});
    before_ = now;
    arm();
  }

  RunContext& run_;
  std::unique_ptr<Alarm> alarm_;
  TimePoint until_{};
  std::uint64_t before_ = 0;
};

/// The loop of one node: joins rounds, starts and stops groups of workers, tells and obeys the
/// rendezvous, until the job is over. All that decides is in NodePolicy; this carries facts in
/// and actions out. Facts that come while another is acted upon wait in a queue.
class Agent final : public workers::Group::Owner {
 public:
  struct Settings {
    rendezvous::Node self{};  // store_port is filled in
    /// How long a group may go on whose first failure does not tell who was first
    /// (workers::is_first_known), so that the others who are about to end can.
    Duration settle = std::chrono::milliseconds(50);
    /// How much later than another node this one may be told to end.
    Duration linger = std::chrono::seconds(2);
    /// How long a worker that died by a signal which ends jobs may wait for its verdict: when a
    /// batch system signals every process of a step, ours is on its way.
    Duration signal_wait = std::chrono::milliseconds(250);
    std::vector<int> job_signals{};  // those
    Duration stuck_after{};          // of uninterruptible sleep; 0: not watched
    workers::Group::Limits limits{};
  };

  /// Borrows all.
  Agent(RunContext& run, rendezvous::Session& session, RoundStore& store, Observer& observer,
        Saving& saving, Settings settings);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Begins. `on_end` runs once on the loop when nothing of the job runs on this node any more.
  void run(std::function<void(JobResult)> on_end);
  /// Puts a fact into the queue. Nothing happens inside this call, so observers may post, too.
  void post(Fact fact);

  /// `insisted`: the one who asked for the end before does not want to wait for it.
  void signal(int number, bool insisted) { post(SignalCame{number, insisted}); }
  /// A child of this process has ended.
  void child_ended() {
    if (group_) group_->look_again();
  }
  void guardian_gone() { post(GuardianGone{}); }
  Phase phase() const { return policy_.phase(); }
  /// Those of the group; null: there is none.
  const std::vector<workers::Worker>* workers() const {
    return group_ ? &group_->workers() : nullptr;
  }
  /// The job is to save and end. `deadline` 0: when its options say.
  void preempt(std::string why, Duration deadline);
  /// The worker of the group to which a process belongs, by its session or that of an ancestor;
  /// null if there is none.
  const workers::Worker* worker_of(pid_t process) const;
  /// The one with that directory (ELASTRUN_RUN_DIR); null: none of the present ones.
  const workers::Worker* worker_in(const std::string& directory) const;
  /// This worker says that its script has returned (--run-path).
  void returned(pid_t worker) {
    if (group_) group_->returned(worker);
  }

  void group_event(workers::Group::Event event) override;
  void all_returned() override { run_.release(); }

 private:
  void work_off();
  void tell_phase();
  void tell_signal(const SignalCame& fact) const;
  void observe(const Fact& fact);
  void observe(const rendezvous::Restart& restart);
  void perform(std::vector<Action> actions);
  void perform(const Join&);
  void join(std::string fault);
  void perform(const StartGroup& action);
  void perform(const ArmSettle&) {
    settle_->arm(awake_.now() + settings_.settle, [this] { post(SettleOver{}); });
  }
  void perform(const ArmLinger&) {
    linger_->arm(awake_.now() + settings_.linger, [this] { post(LingerOver{}); });
  }
  void perform(const StopGroup& action);
  void perform(const FinishGroup&);
  void perform(const KillGroup&);
  void perform(const TellStarted&) { session_.report(rendezvous::Started{round_->number}); }
  void perform(const TellFailed&);
  void perform(const TellSucceeded&) { session_.report(rendezvous::Succeeded{round_->number}); }
  void perform(const TellLeaving& action);
  void perform(const ArmBarrier&);
  void perform(const StayForOthers&);
  void look_at_barrier(Duration after);
  void perform(const TellPreempt& action);
  void perform(const TellReached&) { saving_.answer(); }
  void perform(const SaveGroup& action);
  void perform(const TellSaved&);
  void perform(const ArmLeave&) { leave_.saved(); }
  void perform(const End& action);
  void perform(const CutEnd&) { finish(std::move(result_)); }
  void tell_grace(int signal) const;
  // How long a group of this node may take to end.
  Duration grace() const { return run_.spec.shutdown_timeout + settings_.limits.kill_bound; }
  Status start_group();
  bool may_be_signalled() const;
  void post_failure();
  const std::string& own_node() const {
    return round_->members[static_cast<std::size_t>(round_->group_rank)].id;
  }
  void begin_stop();
  void note_cause(const rendezvous::Restart& restart);
  void note_workers();
  std::vector<workers::Failure> explained_failures() const;
  workers::Judgement judge_failures() const {
    return workers::judge(explained_failures(), group_->as_if_ended_now());
  }
  void look_for_failed_saves();
  void note_preemption();
  void watch_for_stuck();
  void look_for_stuck();
  void finish(JobResult result);

  RunContext& run_;
  rendezvous::Session& session_;
  RoundStore& store_;
  Observer& observer_;
  Saving& saving_;
  const Settings settings_;
  NodePolicy policy_;
  Phase told_phase_ = Phase::Ended;
  std::deque<Fact> facts_;
  bool working_ = false;
  std::optional<rendezvous::Round> round_;
  std::unique_ptr<workers::Group> group_;
  JobResult result_;
  rendezvous::KeptMemory memory_;  // of the restart policy
  TimePoint joined_at_{}, started_at_{}, stop_at_{};
  AwakeClock awake_;  // for waits
  std::unique_ptr<Alarm> settle_, linger_, stuck_, signal_wait_, unheard_, barrier_;
  LeaveTime leave_;
  int barrier_looks_ = 0;  // since its time is over
  std::vector<std::optional<TimePoint>> stuck_since_;
  std::function<void(JobResult)> on_end_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
