// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/node_policy.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/system_clock.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "workers/group.hpp"
#include "workers/shared_page.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// How far the workers of this node are, in steps and checkpoints, and what tells them to save:
/// for the restart policy and for a preemption.
class Saving final : public Observes<Saving> {
 public:
  /// Borrows all. It tells each new checkpoint where the restart policy goes by them, and waits for
  /// every rank to save with --preempt-ack-all, else for rank 0.
  Saving(RunContext& run, rendezvous::Session& session, workers::SharedPages& pages)
      : run_(run), session_(session), pages_(pages), look_(run.clock.make_alarm()) {}

  void on(const moment::RoundReady& seen) {
    round_ = seen.round.number;
    steps_.clear(), ranks_.clear(), saved_.clear(), savers_.clear();
  }
  void on(const moment::Started& seen) {
    for (const auto& worker : seen.group) ranks_.emplace_back(worker.local_rank, worker.rank);
    // A coordinator that has taken over may not have heard of it.
    if (run_.spec.restart_policy_auto && checkpoint_ >= 0) tell();
  }
  void on(const moment::WorkerSaid& seen) {
    if (const auto* done = std::get_if<workers::CheckpointDone>(&seen.said)) {
      // -1: of everything so far; -2: of a step that is not known.
      const auto known = steps_.find(seen.worker.rank);
      const auto so_far = known != steps_.end() ? known->second.last : -1;
      return saved(seen.worker.rank, done->step >= 0 ? done->step : so_far);
    }
    time_save(seen.worker.rank, seen.said);
    if (const auto step = workers::step_of(seen.said)) heard_step(seen.worker.rank, *step);
  }

  /// Adds to the cause of a failure at which step it was, and what was saved.
  void describe(rendezvous::Cause& cause) const {
    const auto known = steps_.find(cause.rank);
    if (cause.step < 0 && known != steps_.end()) cause.step = known->second.last;
    // Rank 0 is enough to tell steps: the others of its node are at the same.
    if (cause.step < 0) cause.step = reached().step;
    cause.checkpoint = checkpoint_;
  }
  /// Tells the coordinator how far they are, after a moment in which it looks how quick they are.
  void answer();
  /// A preemption has been asked for.
  void asked(const std::string& why) {
    if (account_) return;
    account_.emplace();
    account_->why = why;
    account_->asked = run_.clock.wall();
  }
  /// Writes into the pages of the workers when to save.
  void order(const rendezvous::SaveAt& order);
  /// Whether a worker asks if it is to save, or may come to ask.
  bool looks() const {
    return std::ranges::any_of(ranks_, [this](const auto& each) {
      const auto page = pages_.read(each.first);
      return page && (page->looks_for_save || may_ask(each.second, *page));
    });
  }
  /// Workers that have ended badly since the order: one that has not saved has failed to.
  void failed_to_save(std::vector<workers::Failure> failures);
  /// Tells the coordinator of a save that has failed, if one has.
  void tell_failure() {
    if (account_ && !account_->failure.empty()) tell();
  }
  /// Of a preemption; none was asked for.
  std::optional<PreemptionAccount> account() const {
    auto account = account_;
    if (account) account->step = reached().step, account->holds = checkpoint_;
    return account;
  }

 private:
  struct Steps {
    std::int64_t first = -1, last = -1;
    TimePoint first_at{}, at{};
    TimePoint save_from{};     // of the last step, or what came after it but a save
    std::int64_t looked = -1;  // the last one when a preemption asked; -1: none has
  };
  rendezvous::Reached reached() const;
  Duration pace_of(const Steps& steps) const;
  // It has imported the library and not got to its second step without asking: SIGTERM, unless the
  // script does something at it, would end it where its next step saves.
  bool may_ask(int rank, const workers::PageContents& page) const {
    const auto known = steps_.find(rank);
    const bool goes_on = known != steps_.end() && known->second.last > known->second.first;
    return page.importer != 0 && !goes_on && !process::read_status(page.importer).survives(SIGTERM);
  }
  void look_at_pages() {
    for (const auto& [local_rank, rank] : ranks_) {
      const auto page = pages_.read(local_rank);
      if (page && page->step) heard_step(rank, *page->step);
    }
  }
  void tell() { session_.report(reached()); }
  void saved(int rank, std::int64_t step);
  void heard_step(int rank, std::int64_t step) {
    auto& known = steps_[rank];
    const auto now = run_.clock.now();
    // Page and channel tell the same step; its time is that of the first news.
    if (step == known.last) return;
    // Below the first one the script has resumed, and its pace begins there.
    if (known.first < 0 || step < known.first) known.first = step, known.first_at = now;
    known.last = step, known.at = known.save_from = now;
  }
  void time_save(int rank, const workers::Message& message);

  RunContext& run_;
  rendezvous::Session& session_;
  workers::SharedPages& pages_;
  std::int64_t round_ = 0;
  std::map<int, Steps> steps_;              // by rank, of this attempt
  std::vector<std::pair<int, int>> ranks_;  // local ranks and ranks of the group
  std::int64_t checkpoint_ = -1, before_order_ = -1;
  std::optional<rendezvous::SaveAt> order_;
  std::set<int> saved_;                // ranks, since the order
  std::map<int, std::int64_t> early_;  // what ranks have saved since then, before its step
  std::set<int> savers_;               // those that have ever told of a checkpoint
  std::optional<PreemptionAccount> account_;
  std::unique_ptr<Alarm> look_;
};

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
  /// How much later than another node this one may be told to end.
  static constexpr Duration kLinger = std::chrono::seconds(2);
  /// How long a worker that died by a signal which ends jobs may wait for its verdict: when a batch
  /// system signals every process of a step, ours is on its way.
  static constexpr Duration kSignalWait = std::chrono::milliseconds(250);

  /// Borrows all. `self`: its store_port is filled in. `alone`: no other node can ever take part.
  Agent(RunContext& run, rendezvous::Session& session, RoundStore& store, Observer& observer,
        Saving& saving, rendezvous::Node self, bool alone);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Begins. `on_end` runs once on the loop when nothing of the job runs on this node any more.
  void run(std::function<void(JobResult)> on_end) {
    on_end_ = std::move(on_end);
    result_.started = run_.clock.wall();
    result_.local_world_size = self_.local_world_size;
    result_.restarts_left = run_.spec.max_restarts;
    memory_.keep(self_.memory, run_.clock.now());
    session_.open([this](rendezvous::Push push) { run_.pushed(std::move(push)); });
    const auto actions = policy_.begin();
    tell_phase();
    perform(actions);
  }
  /// Puts a fact into the queue. Nothing happens inside this call, so observers may post, too.
  void post(Fact fact) {
    facts_.push_back(std::move(fact));
    // In batches: a fact that comes from within a step must find the policy in its new state.
    if (working_) return;
    working_ = true;
    const auto alive = lifetime_.token();
    boost::asio::post(run_.loop, [this, alive] {
      if (alive) work_off();
    });
  }

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
  void preempt(std::string why, Duration deadline) {
    const auto own = run_.spec.preempt_timeout.value_or(run_.spec.shutdown_timeout);
    post(PreemptCame{std::move(why), deadline > Duration::zero() ? deadline : own});
  }
  /// The worker of the group to which a process belongs, by its session or that of an ancestor;
  /// null if there is none.
  const workers::Worker* worker_of(pid_t process) const;
  /// The one with that directory (ELASTRUN_RUN_DIR); null: none of the present ones.
  const workers::Worker* worker_in(const std::string& directory) const {
    if (!group_ || directory.empty()) return nullptr;
    const auto& all = group_->workers();
    const auto found =
        std::ranges::find(all, logs::error_file(directory), &workers::Worker::error_file);
    return found != all.end() ? &*found : nullptr;
  }
  /// This worker says that its script has returned (--run-path).
  void returned(pid_t worker) {
    if (group_) group_->returned(worker);
  }

  void group_event(workers::Group::Event event) override;
  void all_returned() override { run_.release(); }

 private:
  void work_off() {
    while (!facts_.empty()) {
      const Fact fact = std::move(facts_.front());
      facts_.pop_front();
      observe(fact);
      const auto actions = policy_.step(fact);
      tell_phase();  // first: what is performed belongs to the new phase
      perform(actions);
    }
    working_ = false;
  }
  void tell_phase() {
    if (told_phase_ == policy_.phase()) return;
    told_phase_ = policy_.phase();
    observer_.heard(moment::PhaseChanged{told_phase_, run_.clock.now()});
  }
  void tell_signal(const SignalCame& fact) const;
  void observe(const Fact& fact);
  void observe(const rendezvous::Restart& restart);
  void perform(std::vector<Action> actions) {
    for (const auto& action : actions) {
      std::visit([this](const auto& one) { perform(one); }, action);
    }
  }
  void perform(const Join&) {
    group_.reset();
    const bool again = !result_.attempts.empty();
    if (!again) return join({});
    run_.check([this, alive = lifetime_.token()](std::string fault) {
      // Meanwhile the job may have ended.
      if (alive && policy_.phase() == Phase::Joining) join(std::move(fault));
    });
  }
  void join(std::string fault) {
    // The port first, since the join tells it: the others learn it with the round.
    const auto port = store_.prepare();
    if (!port) return post(StartFailed{port.error()});
    auto self = self_;
    self.store_port = *port;
    self.grace = grace();
    self.memory = memory_.at(run_.clock.now());
    self.fault = std::move(fault);
    joined_at_ = run_.clock.now();
    session_.join(std::move(self));
  }
  void perform(const StartGroup& action);
  void perform(const ArmSettle&) {
    settle_->arm(awake_.now() + settle_time_, [this] { post(SettleOver{}); });
  }
  void perform(const ArmLinger&) {
    linger_->arm(awake_.now() + kLinger, [this] { post(LingerOver{}); });
  }
  void perform(const StopGroup& action) {
    begin_stop();
    signal_wait_->disarm();
    group_->stop(action.signal, std::min(action.grace, run_.spec.shutdown_timeout));
    if (action.by_signal) tell_grace(action.signal);
  }
  void perform(const FinishGroup&) {
    begin_stop();
    group_->finish(run_.spec.shutdown_timeout);
  }
  void perform(const KillGroup&) {
    begin_stop();
    group_->kill();
  }
  void perform(const TellStarted&) { session_.report(rendezvous::Started{round_->number}); }
  void perform(const TellFailed&);
  void perform(const TellSucceeded&) { session_.report(rendezvous::Succeeded{round_->number}); }
  void perform(const TellLeaving& action) {
    // Without workers no new round has to wait for this node.
    session_.report(rendezvous::Leaving{action.why, group_ ? grace() : Duration::zero(), false,
                                        action.unable, action.killed});
  }
  void perform(const ArmBarrier&) {
    barrier_looks_ = 0;
    look_at_barrier(run_.spec.exit_barrier_timeout);
  }
  void perform(const StayForOthers&);
  void look_at_barrier(Duration after) {
    barrier_->arm(awake_.now() + after, [this, round = round_->number] {
      post(BarrierOver{round, store_.serves_others() || session_.serves_others()});
    });
  }
  void perform(const TellPreempt& action);
  void perform(const TellReached&) { saving_.answer(); }
  void perform(const SaveGroup& action) {
    saving_.order(action.order);
    leave_.begin(action.order.left);
    // The workers read the order from their pages.
    if (!action.order.by_signal) return;
    begin_stop();
    group_->stop(SIGTERM, action.order.left);
  }
  void perform(const TellSaved&) {
    // Who ends behind its save has told that before.
    run_.catch_up();
    look_for_failed_saves();
    saving_.tell_failure();
    // Whatever they ended with, the coordinator waits for no more from them.
    session_.report(rendezvous::Succeeded{round_->number});
  }
  void perform(const ArmLeave&) { leave_.saved(); }
  void perform(const End& action);
  void perform(const CutEnd&) { finish(std::move(result_)); }
  void tell_grace(int signal) const;
  // How long a group of this node may take to end.
  Duration grace() const { return run_.spec.shutdown_timeout + limits_.kill_bound; }
  Status start_group() {
    auto plans = run_.plan(*round_);
    if (!plans) return std::unexpected(plans.error());
    group_ = std::make_unique<workers::Group>(run_.loop, run_.clock, run_.launcher, run_.processes,
                                              *this, limits_, run_.error_file_reader());
    return group_->start(std::move(*plans));
  }
  // Whether all that failed so far may have died of an end that is meant for the whole job.
  bool may_be_signalled() const {
    if (policy_.phase() != Phase::Running) return false;
    return std::ranges::all_of(group_->workers(), [this](const workers::Worker& worker) {
      return !worker.failed() || std::ranges::any_of(job_signals_, [&](int signal) {
        return worker.exit->status.by_signal(signal);
      });
    });
  }
  void post_failure() {
    signal_wait_->disarm();
    if (!group_) return;
    look_for_failed_saves();
    // As if all had ended now: those that still run might blame another one, unless their words so
    // far cannot.
    const bool known = workers::is_first_known(group_->failures(), group_->as_if_ended_now());
    post(WorkerFailed{known, group_->any_running()});
  }
  const std::string& own_node() const { return round_->self().id; }
  void begin_stop() {
    auto& attempt = result_.attempts.back();
    if (attempt.ran != Duration::zero()) return;  // asked already, now more firmly
    stop_at_ = run_.clock.now();
    attempt.ran = stop_at_ - started_at_;
  }
  // The first one counts: what comes later follows from it.
  void note_cause(const rendezvous::Restart& restart) {
    memory_.keep(restart.memory, run_.clock.now());
    if (!result_.attempts.empty() && !result_.attempts.back().cause) {
      result_.attempts.back().cause = restart.cause;
      result_.attempts.back().delay = restart.delay;
    }
  }
  void note_workers() {
    if (!group_) return;
    for (const auto& worker : group_->workers()) {
      result_.workers.push_back(
          {worker.rank, worker.local_rank, worker.pid, worker.exit, worker.stopped_by_us});
      // Who is out of reach has been named, and does not hang.
      if (worker.abandoned && !worker.out_of_reach) result_.abandoned.push_back(worker.pid);
    }
  }
  std::vector<workers::Failure> explained_failures() const {
    auto failures = group_->failures();
    for (auto& failure : failures) run_.explain(failure);
    return failures;
  }
  workers::Judgement judge_failures() const {
    return workers::judge(explained_failures(), group_->as_if_ended_now());
  }
  void look_for_failed_saves() {
    const bool asked = saving_.account().has_value();
    if (asked && group_) saving_.failed_to_save(explained_failures());
  }
  void note_preemption();
  void watch_for_stuck();
  void look_for_stuck();
  void finish(JobResult result) {
    // Once: an insisting signal (CutEnd) may come before the session has closed.
    if (!on_end_) return;
    result.finished = run_.clock.wall();
    observer_.heard(moment::Ended{result, workers()});
    group_.reset();
    std::exchange(on_end_, {})(std::move(result));
  }

  RunContext& run_;
  rendezvous::Session& session_;
  RoundStore& store_;
  Observer& observer_;
  Saving& saving_;
  const rendezvous::Node self_;
  /// How long a group may go on whose first failure does not tell who was first
  /// (workers::is_first_known), so that the others who are about to end can.
  const Duration settle_time_;
  const std::vector<int> job_signals_;
  const Duration stuck_after_;  // of uninterruptible sleep; 0: not watched
  workers::Group::Limits limits_{};
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
