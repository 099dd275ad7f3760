// SPDX-License-Identifier: Apache-2.0

#include "agent/loop/agent.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "logs/layout.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "workers/diagnostics.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr Duration kPaceLook = rendezvous::Preemption::kPaceLook;
// Over less, steps that waited to be read, and came at once, seem to be a thousand times as quick.
constexpr Duration kPaceSpan = std::chrono::milliseconds(100);

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

/// TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; zero when unset, not above 0 or no number.
Duration stuck_limit() {
  const char* text = std::getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
  const auto seconds = text == nullptr ? std::nullopt : parse_float(text);
  return seconds && *seconds > 0 ? from_seconds(*seconds) : Duration::zero();
}

}  // namespace

// What the script did between its last step and the save, as an evaluation, is none of it. That is
// known from phases, and from the hooks of --goodput auto or a recorder.
void Saving::time_save(int rank, const workers::Message& message) {
  auto& known = steps_[rank];
  if (std::holds_alternative<workers::PhaseEntered>(message)) known.save_from = run_.clock.now();
  const auto* said = std::get_if<workers::GoodputEntries>(&message);
  // The first part of a save: the model, and after it the optimizer.
  if (said == nullptr || known.save_from > known.at) return;
  const auto is_begin = [](const workers::GoodputEntry& one) {
    return one.entry.kind == goodput::MeasurementKind::SaveStart;
  };
  const auto begin = std::ranges::find_if(said->entries, is_begin);
  if (begin == said->entries.end()) return;
  const double ago = to_seconds(run_.clock.wall()) - begin->entry.time;
  const auto most = to_seconds(run_.clock.now() - known.at);
  if (ago >= 0 && ago < most) known.save_from = run_.clock.now() - from_seconds(ago);
}

// The shorter one of all so far, with what came between steps, and of the look in `answer`.
Duration Saving::pace_of(const Steps& steps) const {
  if (steps.first < 0) return {};
  const auto span = steps.at - steps.first_at;
  Duration pace{};
  if (steps.last > steps.first && span >= kPaceSpan) pace = span / (steps.last - steps.first);
  if (steps.looked < 0) return pace;
  const bool goes_on = steps.last > steps.looked;
  const Duration seen = goes_on ? kPaceLook / (steps.last - steps.looked) : kPaceLook;
  if (pace == Duration::zero()) return seen;
  return goes_on ? std::min(pace, seen) : pace;
}

void Saving::saved(int rank, std::int64_t step) {
  const auto& known = steps_[rank];
  // A checkpoint of the last step was saved since that step; one of an earlier step beside others.
  if (known.last >= 0 && known.last == step) run_.save_takes(run_.clock.now() - known.save_from);
  savers_.insert(rank);
  // One that was due anyway, on the way to the step of the order: what comes until there is not to
  // be lost.
  if (order_ && (step < 0 || step >= order_->step)) {
    saved_.insert(rank);
    const auto has_saved = [this](const auto& each) { return saved_.contains(each.second); };
    // Without --preempt-ack-all rank 0 speaks for all: as a rule it is the one that writes.
    const bool enough =
        run_.spec.preempt_ack_all ? std::ranges::all_of(ranks_, has_saved) : saved_.contains(0);
    if (!enough || account_->is_saved || !account_->failure.empty()) return;
    account_->is_saved = true;
    account_->saved = run_.clock.wall();
    account_->checkpoint = checkpoint_ = step;
    return tell();
  }
  if (order_) {
    // On the way to the step of the order, too, a checkpoint holds once rank 0, or all, told it.
    early_[rank] = step;
    auto complete = step;
    for (const auto& [_, each] : ranks_) {
      if (!run_.spec.preempt_ack_all && each != 0) continue;
      complete = std::min(complete, early_.contains(each) ? early_[each] : -1);
    }
    before_order_ = std::max(before_order_, complete);
    checkpoint_ = std::max(checkpoint_, complete);
    return;
  }
  const bool is_new = step > checkpoint_;
  checkpoint_ = std::max(checkpoint_, step);
  if (is_new && run_.spec.restart_policy_auto) tell();
}

rendezvous::Reached Saving::reached() const {
  rendezvous::Reached out{.round = round_, .checkpoint = checkpoint_};
  for (const auto& [rank, steps] : steps_) {
    out.step = std::max(out.step, steps.last);
    const auto pace = pace_of(steps);
    if (pace <= Duration::zero()) continue;
    // The fastest rank's: the step to save at must not lie behind it when the order comes.
    out.pace = out.pace == Duration::zero() ? pace : std::min(out.pace, pace);
  }
  out.saved = account_ && account_->is_saved;
  out.looks = account_ && looks();
  if (account_) out.failure = account_->failure;
  return out;
}

void Saving::answer() {
  look_at_pages();
  if (reached().step < 0) return tell();
  // The second look may show a faster pace than the mean so far, see pace_of().
  for (auto& [rank, steps] : steps_) steps.looked = steps.last;
  look_->arm(run_.clock.now() + kPaceLook, [this] {
    look_at_pages();
    tell();
  });
}

void Saving::failed_to_save(std::vector<workers::Failure> failures) {
  if (!order_) return;
  std::erase_if(failures, [this](const workers::Failure& one) {
    // Once it has saved at SIGTERM a script may end with any code: its exception tells that it has
    // not.
    const bool by_itself =
        !one.stopped_by_us || (one.status.how == process::ExitStatus::How::Exited &&
                               one.exception && one.exception->type != "KeyboardInterrupt");
    // With the save of rank 0 the others' is complete, but of those that write a part of it.
    const bool matters = !account_->is_saved || savers_.contains(one.rank);
    return !by_itself || !matters || saved_.contains(one.rank);
  });
  if (failures.empty()) return;
  if (std::exchange(account_->is_saved, false)) {
    checkpoint_ = before_order_, account_->checkpoint = -1;
  }
  const auto judgement = workers::judge(std::move(failures));
  account_->failure = fmt::format("rank {} failed to save: it {}", judgement.first().rank,
                                  workers::what_happened(judgement.first()));
}

void Saving::order(const rendezvous::SaveAt& order) {
  asked({});
  look_at_pages();
  order_ = order;
  before_order_ = checkpoint_;
  // Saves from before the order hold less than is asked for.
  saved_.clear(), early_.clear();
  for (const auto& [local_rank, rank] : ranks_) {
    if (const auto* page = pages_.find(local_rank)) page->tell_save(order.step);
  }
  const auto when = order.step < 0 ? std::string("now") : fmt::format("after step {}", order.step);
  log::info("preempt", "The workers are to save {}, {}", when,
            order.by_signal ? "and are asked by SIGTERM" : "which they ask for");
}

Agent::Agent(RunContext& run, rendezvous::Session& session, RoundStore& store, Observer& observer,
             Saving& saving, rendezvous::Node self, bool alone)
    : run_(run),
      session_(session),
      store_(store),
      observer_(observer),
      saving_(saving),
      self_(std::move(self)),
      // About what torchrun's next look at its workers would still have seen; more than a second is
      // too long for a person to wait, however seldom they want torchrun to look.
      settle_time_(
          std::min<Duration>(from_seconds(run.spec.monitor_interval / 2), std::chrono::seconds(1))),
      job_signals_(process::parse_signals(run.spec.signals_to_handle).numbers),
      stuck_after_(stuck_limit()),
      policy_(self_.unable, self_.role),
      awake_(run.clock),
      settle_(awake_.make_alarm()),
      linger_(awake_.make_alarm()),
      signal_wait_(awake_.make_alarm()),
      // By the real clock: the time that a preemption leaves goes on in a pause.
      unheard_(run.clock.make_alarm()),
      barrier_(awake_.make_alarm()),
      leave_(run) {
  limits_.with_pauses = !alone;
}

Agent::~Agent() = default;

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

void Agent::group_event(workers::Group::Event event) {
  using Event = workers::Group::Event;
  switch (event) {
    case Event::WorkerFailed:
      // A signal for the whole job reaches workers a moment before the agent: their deaths must not
      // count as failures, which would spend a restart.
      if (!may_be_signalled()) return post_failure();
      return signal_wait_->arm(awake_.now() + kSignalWait, [this] { post_failure(); });
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

/// The user who asked for the end should know why it takes time, and how to have it sooner.
void Agent::tell_grace(int signal) const {
  const auto how = signal == SIGINT
                       ? "press Ctrl+C again to kill them now"
                       : fmt::format("{} once more kills them now", process::signal_name(signal));
  log::warning(kArea, "The workers have up to {} to end; {}",
               format_duration(run_.spec.shutdown_timeout), how);
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

void Agent::watch_for_stuck() {
  if (stuck_after_ <= Duration::zero()) return;
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
                   self_.role, worker.pid, to_seconds(stuck_after_));
    } else if (now - *stuck_since_[i] >= stuck_after_) {
      log::error(kArea,
                 "[{}] Worker pid={} stuck in uninterruptible sleep (D-state) for {:.1f}s, more "
                 "than the {:.1f}s allowed: ending the job, without restarts.",
                 self_.role, worker.pid, to_seconds(now - *stuck_since_[i]),
                 to_seconds(stuck_after_));
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
  const bool ours = restart.is_for(self_.role);
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

}  // namespace elastrun::agent
