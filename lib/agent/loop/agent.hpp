// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/fact.hpp"
#include "agent/loop/job_result.hpp"
#include "agent/loop/node_policy.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/saving.hpp"
#include "agent/round/round_store.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "workers/group.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
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

  /// `written`: bytes, so far, by the workers and what they have started; may be empty.
  LeaveTime(Clock& clock, std::function<std::uint64_t()> written, std::function<void()> over)
      : clock_(clock),
        written_(std::move(written)),
        over_(std::move(over)),
        alarm_(clock.make_alarm()) {}

  /// They are asked to save, and have so long.
  void begin(Duration left) {
    until_ = clock_.now() + left;
    // Later, since the coordinator says the same then: this is for one that is silent.
    alarm_->arm(until_ + kSilence, over_);
  }
  /// The job has saved, or its time is over.
  void saved() {
    if (written_) before_ = written_();
    arm();
  }
  void end() { alarm_->disarm(); }
  /// Of the time to save.
  Duration left() const { return std::max(until_ - clock_.now(), Duration::zero()); }

 private:
  void arm() {
    alarm_->arm(std::min(until_, clock_.now() + kMoment), [this] { look(); });
  }
  void look() {
    const auto now = written_ ? written_() : 0;
    if (left() == Duration::zero() || now < before_ + kWrites) return over_();
    before_ = now;
    arm();
  }

  Clock& clock_;
  const std::function<std::uint64_t()> written_;
  const std::function<void()> over_;
  std::unique_ptr<Alarm> alarm_;
  TimePoint until_{};
  std::uint64_t before_ = 0;
};

/// For how long a node that has finished waits for the others, and then, each second, whether they
/// still need it.
class ExitBarrier {
 public:
  using Post = std::function<void(std::int64_t round)>;

  /// `over` is called when it is time to ask (BarrierOver).
  ExitBarrier(Clock& clock, Duration time, Post over)
      : clock_(clock), time_(time), over_(std::move(over)), alarm_(clock.make_alarm()) {}

  void arm(std::int64_t round) {
    stays_ = 0;
    round_ = round;
    look_after(time_);
  }
  /// They do.
  void stay() {
    look_after(std::chrono::seconds(1));
    // At first they may have ended in the same moment, and the word of that is on its way.
    if (++stays_ != 2) return;
    log::warning("agent",
                 "The time of the exit barrier ({}) is over, but other nodes still work with the "
                 "rendezvous or the store that this node serves: it ends with the last of them",
                 format_duration(time_));
  }
  void disarm() { alarm_->disarm(); }

 private:
  void look_after(Duration time) {
    alarm_->arm(clock_.now() + time, [this] { over_(round_); });
  }

  Clock& clock_;
  const Duration time_;
  const Post over_;
  const std::unique_ptr<Alarm> alarm_;
  std::int64_t round_ = 0;
  int stays_ = 0;
};

/// The loop of one node: joins rounds, starts and stops groups of workers, tells and obeys the
/// rendezvous, until the job is over. All that decides is in NodePolicy; this carries facts in
/// and actions out. Facts that come while another is acted upon wait in a queue.
class Agent {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    process::Launcher& launcher;
    rendezvous::Session& session;
    RoundStore& store;
    Observer& observer;
    /// Everything to start the workers of a round with, in the order of local ranks.
    std::function<Result<std::vector<workers::WorkerPlan>>(const rendezvous::Round&)> plan;
    // As those of workers::Group.
    std::function<process::KillResult(Duration)> sweep;
    std::function<process::ProcessTable()> leftovers;
    std::function<void(const process::ProcessTable&, int)> signal_each;
    std::function<void()> release{};
    /// Hears what workers have said so far: before their group is forgotten. May be empty.
    std::function<void()> catch_up{};
    /// Adds to a failure what others know: an expired timer, an OOM kill; may be empty.
    std::function<void(workers::Failure&)> explain;
    /// What the rendezvous says may go through this on its way; may be empty.
    std::function<rendezvous::Session::OnPush(rendezvous::Session::OnPush)> before{};
    // As those of workers::Group.
    std::function<process::ProcessTable(const std::vector<pid_t>&)> apart{};
    std::function<process::ProcessTable()> processes{};
    workers::Summons::WrapperOf wrapper_of{};
    workers::Summons::LeavesTo leaves_to{};
    workers::ErrorFileReader::Read read_error_files{};
    /// Answers with what is wrong with this node, before it joins again; empty: nothing looks.
    std::function<void(std::function<void(std::string fault)>)> check{};
    /// Bytes that the workers and what they have started have written; may be empty.
    std::function<std::uint64_t()> written{};
    Saving* saving = nullptr;  // null: no step is known, and workers are told by signals
  };
  struct Settings {
    const spec::JobSpec& job;  // must outlive the agent
    rendezvous::Node self{};   // store_port is filled in
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

  Agent(Parts parts, Settings settings);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Begins. `on_end` runs once on the loop when nothing of the job runs on this node any more.
  void run(std::function<void(JobResult)> on_end);
  /// Puts a fact into the queue. Nothing happens inside this call, so observers may post, too.
  void post(Fact fact);

  /// `insisted`: the one who asked for the end before does not want to wait for it.
  void signal(int number, bool insisted) { post(SignalCame{number, insisted}); }
  /// A child of this process has ended.
  void child_ended();
  void guardian_gone() { post(GuardianGone{}); }
  Phase phase() const { return policy_.phase(); }
  /// Null: there is none.
  const workers::Group* group() const { return group_.get(); }
  /// The job is to save and end.
  void preempt(std::string why, Duration deadline) { post(PreemptCame{std::move(why), deadline}); }
  /// The worker of the group to which a process belongs, by its session or that of an ancestor;
  /// null if there is none.
  const workers::Worker* worker_of(pid_t process) const;
  /// The one with that directory (ELASTRUN_RUN_DIR); null: none of the present ones.
  const workers::Worker* worker_in(const std::string& directory) const;
  /// This worker says that its script has returned (--run-path).
  void returned(pid_t worker) {
    if (group_) group_->returned(worker);
  }

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
  void perform(const ArmSettle&);
  void perform(const ArmLinger&);
  void perform(const StopGroup& action);
  void perform(const FinishGroup&);
  void perform(const KillGroup&);
  void perform(const TellStarted&);
  void perform(const TellFailed&);
  void perform(const TellSucceeded&);
  void perform(const TellLeaving& action);
  void perform(const ArmBarrier&);
  void perform(const StayForOthers&);
  void perform(const TellPreempt& action);
  void perform(const TellReached&);
  void perform(const SaveGroup& action);
  void perform(const TellSaved&);
  void perform(const ArmLeave&);
  void perform(const End& action);
  void perform(const CutEnd&) { finish(std::move(result_)); }
  void tell_grace(int signal) const;
  // How long a group of this node may take to end.
  Duration grace() const { return settings_.job.shutdown_timeout + settings_.limits.kill_bound; }
  Status start_group();
  void group_event(workers::Group::Event event);
  bool may_be_signalled() const;
  void post_failure();
  const std::string& own_node() const;
  void begin_stop();
  void note_cause(const rendezvous::Restart& restart);
  void note_workers();
  std::vector<workers::Failure> explained_failures() const;
  workers::Judgement judge_failures() const;
  void look_for_failed_saves();
  void note_preemption();
  void watch_for_stuck();
  void look_for_stuck();
  void finish(JobResult result);

  const Parts parts_;
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
  std::unique_ptr<Alarm> settle_, linger_, stuck_, signal_wait_, unheard_;
  LeaveTime leave_;
  ExitBarrier barrier_;
  std::vector<std::optional<TimePoint>> stuck_since_;
  std::function<void(JobResult)> on_end_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
