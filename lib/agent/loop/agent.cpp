// SPDX-License-Identifier: Apache-2.0

#include "agent/loop/agent.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "logs/layout.hpp"
#include "process/process_table.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kArea = "agent";
constexpr Duration kStuckLook = std::chrono::milliseconds(100);  // torchrun's monitor interval
// The coordinator answers at once, and tells the step when all nodes have answered it. A spot
// instance has 30 s.
constexpr Duration kTimeToHear = std::chrono::seconds(3);
constexpr int kFarthestAncestor = 32;  // of a process that speaks for a worker: scripts in scripts

/// Of those that were asked to end and had to be killed.
std::vector<int> killed_ranks(const std::vector<workers::Worker>& group) {
  std::vector<int> ranks;
  for (const auto& worker : group) {
    const bool killed = worker.exit && worker.exit->status.by_signal(SIGKILL);
    if (killed && worker.stopped_by_us) ranks.push_back(worker.rank);
  }
  return ranks;
}

std::string cost_text(const rendezvous::Restart& restart) {
  if (!restart.attempt_spent) return " (this spends no restart)";
  const int left = restart.restarts_left;
  auto text = fmt::format(", {} restart{} left", left, left == 1 ? "" : "s");
  if (restart.delay <= Duration::zero()) return text;
  return text + ", the next start in " + format_duration(restart.delay);
}

}  // namespace

Agent::Agent(RunContext& run, rendezvous::Session& session, RoundStore& store, Observer& observer,
             Saving& saving, Settings settings)
    : run_(run),
      session_(session),
      store_(store),
      observer_(observer),
      saving_(saving),
      settings_(std::move(settings)),
      policy_(settings_.self.unable, settings_.self.role),
      awake_(run.clock),
      settle_(awake_.make_alarm()),
      linger_(awake_.make_alarm()),
      signal_wait_(awake_.make_alarm()),
      // By the real clock: the time that a preemption leaves goes on in a pause.
      unheard_(run.clock.make_alarm()),
      barrier_(awake_.make_alarm()),
      leave_(run) {}

Agent::~Agent() = default;

void Agent::run(std::function<void(JobResult)> on_end) {
  on_end_ = std::move(on_end);
  result_.started = run_.clock.wall();
  result_.local_world_size = settings_.self.local_world_size;
  result_.restarts_left = run_.spec.max_restarts;
  memory_.keep(settings_.self.memory, run_.clock.now());
  session_.open([this](rendezvous::Push push) { run_.pushed(std::move(push)); });
  const auto actions = policy_.begin();
  tell_phase();
  perform(actions);
}

void Agent::post(Fact fact) {
  facts_.push_back(std::move(fact));
  // In batches: a fact that comes from within a step must find the policy in its new state.
  if (working_) return;
  working_ = true;
  const auto alive = lifetime_.token();
  boost::asio::post(run_.loop, [this, alive] {
    if (alive) work_off();
  });
}

void Agent::work_off() {
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

void Agent::tell_phase() {
  if (told_phase_ == policy_.phase()) return;
  told_phase_ = policy_.phase();
  observer_.heard(moment::PhaseChanged{told_phase_, run_.clock.now()});
}

void Agent::tell_signal(const SignalCame& fact) const {
  if (policy_.phase() == Phase::Ended) {
    log::warning(kArea, "{}: the job has ended here; {}", process::signal_name(fact.signal),
                 fact.insisted ? "waiting for the other nodes no longer"
                               : "this node waits until the others know");
  } else if (fact.insisted) {
    log::warning(kArea, "{} again: killing the workers", process::signal_name(fact.signal));
  } else {
    log::warning(kArea, "Received {} death signal, shutting down workers", fact.signal);
  }
}

/// What is of interest to observers and log, whatever the policy makes of it.
void Agent::observe(const Fact& fact) {
  if (const auto* signal = std::get_if<SignalCame>(&fact)) {
    return tell_signal(*signal);
  }
  if (const auto* seen = std::get_if<HangSeen>(&fact)) return observer_.heard(*seen);
  if (const auto* seen = std::get_if<HeldSeen>(&fact)) return observer_.heard(*seen);
  if (const auto* seen = std::get_if<TimerExpired>(&fact)) return observer_.heard(*seen);
  if (const auto* seen = std::get_if<TimerKilled>(&fact)) return observer_.heard(*seen);
  const auto* pushed = std::get_if<Pushed>(&fact);
  if (pushed == nullptr) return;
  if (const auto* ask = std::get_if<rendezvous::AskReached>(&pushed->push)) {
    saving_.asked(ask->why);
  }
  if (const auto* done = std::get_if<rendezvous::Done>(&pushed->push)) {
    memory_.keep(done->memory, run_.clock.now());
    if (done->restarts_left >= 0) result_.restarts_left = done->restarts_left;
  }
  if (const auto* progress = std::get_if<rendezvous::Progress>(&pushed->push)) {
    log::info("rendezvous", "{}", progress->text);
    observer_.heard(moment::Progress{progress->text});
  } else if (const auto* spare = std::get_if<rendezvous::Spare>(&pushed->push)) {
    log::info("rendezvous", "This node is a spare: {} before it", spare->ahead);
    observer_.heard(moment::Progress{"spare node, takes over when another one goes"});
  } else if (const auto* restart = std::get_if<rendezvous::Restart>(&pushed->push)) {
    observe(*restart);
  }
}

void Agent::perform(std::vector<Action> actions) {
  for (const auto& action : actions) {
    std::visit([this](const auto& one) { perform(one); }, action);
  }
}

void Agent::perform(const Join&) {
  group_.reset();
  const bool again = !result_.attempts.empty();
  if (!again) return join({});
  run_.check([this, alive = lifetime_.token()](std::string fault) {
    // Meanwhile the job may have ended.
    if (alive && policy_.phase() == Phase::Joining) join(std::move(fault));
  });
}

void Agent::join(std::string fault) {
  // The port first, since the join tells it: the others learn it with the round.
  const auto port = store_.prepare();
  if (!port) return post(StartFailed{port.error()});
  auto self = settings_.self;
  self.store_port = *port;
  self.grace = grace();
  self.memory = memory_.at(run_.clock.now());
  self.fault = std::move(fault);
  joined_at_ = run_.clock.now();
  session_.join(std::move(self));
}

void Agent::perform(const StartGroup& action) {
  const auto now = run_.clock.now();
  const auto wall = run_.clock.wall();
  round_ = action.round;
  result_.restarts = round_->restarts(), result_.restarts_left = round_->restarts_left;
  if (!result_.attempts.empty()) {
    // Python would find an empty script, and succeed with it.
    if (auto why = workers::why_not_again(run_.spec); !why.empty())
      return post(StartFailed{{Code::Usage, std::move(why)}});
    log::warning(kArea, "Restarting the workers");
  }
  // Before the workers, which connect to it at once.
  store_.begin(*round_);
  observer_.heard(moment::RoundReady{*round_, now - joined_at_});
  started_at_ = now;
  result_.attempts.push_back(
      {round_->number, round_->attempt, wall, now - joined_at_, {}, {}, {}, {}, {}});
  const auto started = start_group();
  if (!started) {
    group_.reset();
    return post(StartFailed{started.error()});
  }
  observer_.heard(moment::Started{*round_, group_->workers(), run_.clock.now() - now});
  watch_for_stuck();
  post(GroupStarted{});
}

Status Agent::start_group() {
  auto plans = run_.plan(*round_);
  if (!plans) return std::unexpected(plans.error());
  group_ = std::make_unique<workers::Group>(run_.loop, run_.clock, run_.launcher, run_.processes,
                                            *this, settings_.limits, run_.error_file_reader());
  return group_->start(std::move(*plans));
}

void Agent::group_event(workers::Group::Event event) {
  using Event = workers::Group::Event;
  switch (event) {
    case Event::WorkerFailed:
      // A signal for the whole job reaches workers a moment before the agent: their deaths must not
      // count as failures, which would spend a restart.
      if (!may_be_signalled()) return post_failure();
      return signal_wait_->arm(awake_.now() + settings_.signal_wait, [this] { post_failure(); });
    case Event::AllSucceeded:
      return post(AllSucceeded{});
    case Event::AllEnded:
      return post(AllEnded{});
    case Event::Gone:
      result_.attempts.back().stopping = run_.clock.now() - stop_at_;
      // Only after the whole grace: a user who insists kills workers that would still have ended.
      if (result_.attempts.back().stopping >= run_.spec.shutdown_timeout) {
        result_.attempts.back().deaf = killed_ranks(group_->workers());
      }
      // What workers said last waits in the channel, and is lost with the group.
      run_.catch_up();
      observer_.heard(moment::Stopped{group_->workers(), result_.attempts.back().stopping});
      if (stuck_) stuck_->disarm();
      return post(GroupGone{});
  }
}

/// Whether all that failed so far may have died of an end that is meant for the whole job.
bool Agent::may_be_signalled() const {
  if (policy_.phase() != Phase::Running) return false;
  return std::ranges::all_of(group_->workers(), [this](const workers::Worker& worker) {
    return !worker.failed() || std::ranges::any_of(settings_.job_signals, [&](int signal) {
      return worker.exit->status.by_signal(signal);
    });
  });
}

void Agent::post_failure() {
  signal_wait_->disarm();
  if (!group_) return;
  look_for_failed_saves();
  // As if all had ended now: those that still run might blame another one, unless their words so
  // far cannot.
  const bool known = workers::is_first_known(group_->failures(), group_->as_if_ended_now());
  post(WorkerFailed{known, group_->any_running()});
}

void Agent::begin_stop() {
  auto& attempt = result_.attempts.back();
  if (attempt.ran != Duration::zero()) return;  // asked already, now more firmly
  stop_at_ = run_.clock.now();
  attempt.ran = stop_at_ - started_at_;
}

void Agent::perform(const StopGroup& action) {
  begin_stop();
  signal_wait_->disarm();
  group_->stop(action.signal, std::min(action.grace, run_.spec.shutdown_timeout));
  if (action.by_signal) tell_grace(action.signal);
}

/// The user who asked for the end should know why it takes time, and how to have it sooner.
void Agent::tell_grace(int signal) const {
  const auto how = signal == SIGINT
                       ? "press Ctrl+C again to kill them now"
                       : fmt::format("{} once more kills them now", process::signal_name(signal));
  log::warning(kArea, "The workers have up to {} to end; {}",
               format_duration(run_.spec.shutdown_timeout), how);
}

void Agent::perform(const FinishGroup&) {
  begin_stop();
  group_->finish(run_.spec.shutdown_timeout);
}

void Agent::perform(const KillGroup&) {
  begin_stop();
  group_->kill();
}

std::vector<workers::Failure> Agent::explained_failures() const {
  auto failures = group_->failures();
  for (auto& failure : failures) run_.explain(failure);
  return failures;
}

void Agent::perform(const TellFailed&) {
  // Steps that they told before they failed.
  run_.catch_up();
  const auto judgement = judge_failures();
  const auto& first = judgement.failures[judgement.root];
  log::info(kArea, "Rank {} {}", first.rank, workers::what_happened(first));
  observer_.heard(moment::Failed{judgement});
  auto cause = cause_of(judgement.first(), own_node());
  saving_.describe(cause);
  cause.final = cause.final || !workers::why_not_again(run_.spec).empty();
  session_.report(rendezvous::Failed{round_->number, std::move(cause)});
}

void Agent::perform(const TellLeaving& action) {
  // Without workers no new round has to wait for this node.
  session_.report(rendezvous::Leaving{action.why, group_ ? grace() : Duration::zero(), false,
                                      action.unable, action.killed});
}

void Agent::perform(const ArmBarrier&) {
  barrier_looks_ = 0;
  look_at_barrier(run_.spec.exit_barrier_timeout);
}

/// They still need this node: looks again each second.
void Agent::perform(const StayForOthers&) {
  look_at_barrier(std::chrono::seconds(1));
  // At first they may have ended in the same moment, and the word of that is on its way.
  if (++barrier_looks_ != 2) return;
  log::warning(kArea,
               "The time of the exit barrier ({}) is over, but other nodes still work with the "
               "rendezvous or the store that this node serves: it ends with the last of them",
               format_duration(run_.spec.exit_barrier_timeout));
}

void Agent::look_at_barrier(Duration after) {
  barrier_->arm(awake_.now() + after, [this, round = round_->number] {
    post(BarrierOver{round, store_.serves_others() || session_.serves_others()});
  });
}

void Agent::preempt(std::string why, Duration deadline) {
  const auto own = run_.spec.preempt_timeout.value_or(run_.spec.shutdown_timeout);
  post(PreemptCame{std::move(why), deadline > Duration::zero() ? deadline : own});
}

void Agent::perform(const TellPreempt& action) {
  log::warning(kArea, "Preempted ({}): the workers are to save and end within {}", action.why,
               format_duration(action.deadline));
  session_.report(rendezvous::AskPreempt{action.why, action.deadline});
  const auto until = run_.clock.now() + action.deadline;
  unheard_->arm(std::min(run_.clock.now() + kTimeToHear, until), [this, until] {
    const auto left = std::max(until - run_.clock.now(), Duration::zero());
    // A script that never looks at its page hears of the save by a signal alone.
    const bool looks = saving_.looks();
    post(PreemptUnheard{{.step = -1, .left = left, .by_signal = !looks}});
  });
}

void Agent::perform(const TellSaved&) {
  // Who ends behind its save has told that before.
  run_.catch_up();
  look_for_failed_saves();
  saving_.tell_failure();
  // Whatever they ended with, the coordinator waits for no more from them.
  session_.report(rendezvous::Succeeded{round_->number});
}

void Agent::look_for_failed_saves() {
  const bool asked = saving_.account().has_value();
  if (asked && group_) saving_.failed_to_save(explained_failures());
}

void Agent::perform(const SaveGroup& action) {
  saving_.order(action.order);
  leave_.begin(action.order.left);
  // The workers read the order from their pages.
  if (!action.order.by_signal) return;
  begin_stop();
  group_->stop(SIGTERM, action.order.left);
}

void Agent::note_preemption() {
  const auto told = saving_.account();
  // Another rank may have failed to save its part after rank 0 had told the checkpoint.
  if (told && told->is_saved) look_for_failed_saves();
  result_.preemption = saving_.account();
  auto& ending = result_.ending;
  if (!told || ending.kind != Ending::Kind::Preempted) return;
  auto& failure = result_.preemption->failure;
  // The coordinator has named one already, maybe of another node.
  if (const auto named = ending.why.find(", but "); named != std::string::npos) {
    if (failure.empty()) failure = ending.why.substr(named + 6);
    return;
  }
  if (failure.empty()) {
    // The coordinator ends the wait so at the deadline alone.
    if (ending.why.ends_with(" without a checkpoint")) failure = kUnfinishedSave;
    return;
  }
  // What was saved as far as the coordinator knows does not hold.
  if (ending.why.contains("): saved")) ending.why.resize(ending.why.rfind("): saved") + 1);
  ending.why += ", but " + failure;
}

void Agent::perform(const End& action) {
  // Now, since the group goes before the result is told.
  note_workers();
  result_.ending = action.ending;
  result_.round = round_;
  result_.memory = memory_.at(run_.clock.now());
  note_preemption();
  // Once more: workers that have ended since the failure was told may be the ones to blame.
  if (group_ && !group_->failures().empty()) result_.judgement = judge_failures();
  result_.culprit = choose_culprit(result_.ending, result_.judgement, result_.round);
  barrier_->disarm();
  settle_->disarm();
  linger_->disarm();
  unheard_->disarm();
  leave_.end();
  // Where the whole job has succeeded, no worker is left anywhere.
  // From the end of this node, not of its session: other nodes may take their whole grace.
  result_.store_needed_until = run_.clock.now();
  if (!action.ending.is_everybodys_success()) result_.store_needed_until += grace();
  // The result is told when the goodbye is out: a program that exits before takes it along.
  session_.close([this, alive = lifetime_.token()] {
    if (alive) finish(std::move(result_));
  });
}

void Agent::finish(JobResult result) {
  // Once: an insisting signal (CutEnd) may come before the session has closed.
  if (!on_end_) return;
  result.finished = run_.clock.wall();
  observer_.heard(moment::Ended{result, workers()});
  group_.reset();
  std::exchange(on_end_, {})(std::move(result));
}

void Agent::note_workers() {
  if (!group_) return;
  for (const auto& worker : group_->workers()) {
    result_.workers.push_back(
        {worker.rank, worker.local_rank, worker.pid, worker.exit, worker.stopped_by_us});
    // Who is out of reach has been named, and does not hang.
    if (worker.abandoned && !worker.out_of_reach) result_.abandoned.push_back(worker.pid);
  }
}

const workers::Worker* Agent::worker_of(pid_t process) const {
  if (!group_) return nullptr;
  // Each worker leads a session, and its children stay in it unless they mean to leave. The process
  // may be below a script that PYTHON_EXEC names, or setsid(1).
  pid_t one = process;
  for (int step = 0; step < kFarthestAncestor && one > 1 && one != ::getpid(); ++step) {
    const pid_t session = ::getsid(one);
    for (const auto& worker : group_->workers()) {
      if (worker.pid == one || worker.pid == session) return &worker;
    }
    const auto entry = process::read_process(one);
    one = entry ? entry->parent : 0;
  }
  return nullptr;
}

const workers::Worker* Agent::worker_in(const std::string& directory) const {
  if (!group_ || directory.empty()) return nullptr;
  const auto& all = group_->workers();
  const auto found =
      std::ranges::find(all, logs::error_file(directory), &workers::Worker::error_file);
  return found != all.end() ? &*found : nullptr;
}

void Agent::watch_for_stuck() {
  if (settings_.stuck_after <= Duration::zero()) return;
  stuck_since_.assign(group_->workers().size(), std::nullopt);
  if (!stuck_) stuck_ = awake_.make_alarm();
  stuck_->arm(awake_.now() + kStuckLook, [this] { look_for_stuck(); });
}

void Agent::look_for_stuck() {
  if (!group_ || policy_.phase() != Phase::Running) return;
  const auto now = awake_.now();
  for (std::size_t i = 0; i < stuck_since_.size(); ++i) {
    const auto& worker = group_->workers()[i];
    const auto entry = worker.exit ? std::nullopt : process::read_process(worker.pid);
    // Only D without a break counts: a disk that works is in D again and again.
    if (!entry || entry->state != 'D') {
      stuck_since_[i].reset();
    } else if (!stuck_since_[i]) {
      stuck_since_[i] = now;
      log::warning(kArea,
                   "[{}] Worker pid={} is in uninterruptible sleep (D-state); the job ends if that "
                   "lasts for {:.1f}s.",
                   settings_.self.role, worker.pid, to_seconds(settings_.stuck_after));
    } else if (now - *stuck_since_[i] >= settings_.stuck_after) {
      log::error(kArea,
                 "[{}] Worker pid={} stuck in uninterruptible sleep (D-state) for {:.1f}s, more "
                 "than the {:.1f}s allowed: ending the job, without restarts.",
                 settings_.self.role, worker.pid, to_seconds(now - *stuck_since_[i]),
                 to_seconds(settings_.stuck_after));
      return post(WorkerStuck{worker.pid, worker.local_rank, now - *stuck_since_[i]});
    }
  }
  stuck_->arm(now + kStuckLook, [this] { look_for_stuck(); });
}

// What an agent tells and keeps of restarts; what it does, NodePolicy says.

void Agent::observe(const rendezvous::Restart& restart) {
  // While it joins, a round that this node never started has ended.
  const bool joining = policy_.phase() == Phase::Joining;
  // By the round's attempt, not by counting: a node that came later has missed restarts. But where
  // roles restart alone more may have been spent than when this round began.
  const bool as_told = !joining && round_ && !round_->is_divided();
  if (restart.attempt_spent) result_.restarts = (as_told ? round_->attempt : result_.restarts) + 1;
  result_.restarts_left = restart.restarts_left;
  const bool ours = restart.is_for(settings_.self.role);
  // Not "restarting": where a scheduler ends the whole job, our own signal is on its way.
  const auto doing = !ours ? "Going on; stopping" : joining ? "Not starting" : "Stopping";
  const auto whose = restart.role.empty() ? "" : " of the role " + printable(restart.role);
  log::warning(kArea, "{} the workers{}{}: {}", doing, whose, cost_text(restart),
               restart.cause.text);
  if (!restart.cause.rule.empty()) log::info(kArea, "By {}", restart.cause.rule);
  if (ours) {
    note_cause(restart);
    return observer_.heard(moment::Restarting{restart});
  }
  memory_.keep(restart.memory, run_.clock.now());
  result_.note_role_restart({restart.role, run_.clock.wall(), restart.cause});
  observer_.heard(moment::RoleRestarting{restart});
}

/// The first one counts: what comes later follows from it.
void Agent::note_cause(const rendezvous::Restart& restart) {
  memory_.keep(restart.memory, run_.clock.now());
  if (!result_.attempts.empty() && !result_.attempts.back().cause) {
    result_.attempts.back().cause = restart.cause;
    result_.attempts.back().delay = restart.delay;
  }
}

}  // namespace elastrun::agent
