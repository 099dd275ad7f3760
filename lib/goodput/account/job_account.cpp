// SPDX-License-Identifier: Apache-2.0

#include "goodput/account/job_account.hpp"

#include "goodput/ledger/ledger.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <ranges>
#include <utility>

namespace elastrun::goodput {

double WorkersStart::goodput() const {
  if (ran <= Duration::zero()) return 0;
  return std::clamp(static_cast<double>(productive.count()) / static_cast<double>(ran.count()), 0.0,
                    1.0);
}

void StartLog::begin(TimePoint now, Duration productive) {
  end(now, productive);
  if (starts_.size() == kMost) starts_.pop_front();
  WorkersStart start;
  start.number = ++count_;
  start.at = now - job_start_;
  starts_.push_back(std::move(start));
  taken_.assign(starts_.size(), {});
  begun_ = now;
  open_ = true;
}

/// The last work goes first: a job resumes at a step, and what came after it is done again.
void StartLog::lose(Duration lost) {
  for (std::size_t i = starts_.size(); i-- > 0;) {
    const Duration here = std::min(lost, starts_[i].productive);
    starts_[i].productive -= here;
    taken_[i] += here;
    lost -= here;
  }
}

/// Of the oldest first: what is kept lies before what is lost.
void StartLog::regain(Duration time) {
  productive_ += time;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const Duration here = std::min(time, taken_[i]);
    starts_[i].productive += here;
    taken_[i] -= here;
    time -= here;
  }
}

void StartLog::settle(Duration productive) {
  const Duration gained = productive - std::exchange(productive_, productive);
  if (gained < Duration::zero()) return lose(-gained);
  if (!starts_.empty()) starts_.back().productive += gained;
}

void StartLog::step(std::int64_t number, Duration productive) {
  settle(productive);
  if (!open_) return;
  auto& start = starts_.back();
  if (!start.first_step) start.first_step = number;
  start.last_step = number;
}

void StartLog::end(TimePoint now, Duration productive) {
  if (!open_) return;
  settle(productive);
  open_ = false;
  starts_.back().ran = std::max(now - begun_, Duration::zero());
}

void StartLog::why(std::string text, bool better) {
  if (starts_.empty() || (!starts_.back().ended.empty() && !better)) return;
  starts_.back().ended = std::move(text);
}

std::vector<WorkersStart> StartLog::starts(TimePoint now, Duration productive) const {
  StartLog copy = *this;
  copy.settle(productive);
  if (open_) copy.starts_.back().ran = std::max(now - begun_, Duration::zero());
  // Steps that are told when the group has gone are of that start, too.
  for (auto& start : copy.starts_) start.ran = std::max(start.ran, start.productive);
  return {copy.starts_.begin(), copy.starts_.end()};
}

namespace {

constexpr std::array<std::string_view, 8> kPhases = {"joining",  "starting", "running", "settling",
                                                     "stopping", "waiting",  "barrier", "ended"};

}  // namespace

std::string_view phase_name(NodePhase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

std::optional<NodePhase> phase_of(const telemetry::Record& record) {
  if (record.name != "phase") return std::nullopt;
  const auto found = std::ranges::find(kPhases, record.text("phase"));
  return found == kPhases.end() ? std::nullopt
                                : std::optional(static_cast<NodePhase>(found - kPhases.begin()));
}

std::string_view stage_name(RestartStage stage) {
  constexpr std::array<std::string_view, kRestartStages> kNames = {
      "exit", "detect", "stop", "rendezvous", "spawn", "first_step", "redo"};
  return kNames[static_cast<std::size_t>(stage)];
}

Duration RestartPath::total() const {
  return std::accumulate(stages.begin(), stages.end(), Duration::zero());
}

RestartPath* RestartLog::going_on() {
  if (next_) return &*next_;
  return open_ ? &paths_.back() : nullptr;
}

/// What a path that is cut short was doing belongs to it; but where no step was ever reported,
/// it is unknown when its start was over.
void RestartLog::settle(TimePoint now) {
  auto* path = going_on();
  if (path == nullptr || (stage_ >= RestartStage::FirstStep && !last_step_)) return;
  path->stages[static_cast<std::size_t>(stage_)] += std::max(now - since_, Duration::zero());
  since_ = std::max(since_, now);  // what workers tell may be older
}

void RestartLog::begin(RestartStage stage, TimePoint now) {
  settle(now);
  open_ = false;
  next_.emplace();
  next_->at = now - job_start_;
  since_ = now;
  next_->last_step = last_step_;
  stage_ = stage;
}

void RestartLog::advance(RestartStage stage, TimePoint now) {
  settle(now);
  since_ = now;
  stage_ = stage;
}

void RestartLog::phase(NodePhase phase, TimePoint now) {
  switch (phase) {
    case NodePhase::Settling:
      return begin(RestartStage::Detect, now);
    case NodePhase::Stopping:
      return next_ ? advance(RestartStage::Stop, now) : begin(RestartStage::Stop, now);
    case NodePhase::Waiting:
      return advance(RestartStage::Rendezvous, now);
    case NodePhase::Joining:
      advance(RestartStage::Rendezvous, now);
      if (!next_) return;
      if (paths_.size() == kMost) paths_.erase(paths_.begin()), ++forgotten_;
      paths_.push_back(*std::exchange(next_, std::nullopt));
      open_ = true;
      return;
    case NodePhase::Starting:
      return advance(RestartStage::Spawn, now);
    case NodePhase::Running:
      return advance(RestartStage::FirstStep, now);
    case NodePhase::Barrier:
    case NodePhase::Ended:
      settle(now);
      next_.reset();
      open_ = false;
  }
}

Duration RestartLog::noticed_after(Duration time) {
  if (!next_) return {};
  const Duration before = std::max(time - next_->of(RestartStage::Detect), Duration::zero());
  // The failure was before the news of it.
  next_->at -= before;
  next_->stages[static_cast<std::size_t>(RestartStage::Detect)] += before;
  return before;
}

void RestartLog::exited_in(Duration time) {
  auto* path = going_on();
  if (path == nullptr || path->of(RestartStage::Exit) > Duration::zero()) return;
  path->at -= time;
  path->stages[static_cast<std::size_t>(RestartStage::Exit)] = time;
}

void RestartLog::restarting(std::string cause, TimePoint now) {
  // Nothing has failed on this node: its way begins with the stop.
  if (!next_) begin(RestartStage::Stop, now);
  next_->cause = std::move(cause);
}

void RestartLog::step(std::int64_t number, TimePoint now) {
  last_step_ = number;
  if (!open_ || next_) return;
  auto& path = paths_.back();
  settle(now);
  if (!path.first_step) path.first_step = number;
  stage_ = RestartStage::Redo;
  path.caught_up = !path.last_step || number >= *path.last_step;
  // Until the step of the failure is reached again all steps are done for the second time.
  open_ = !path.caught_up;
}

namespace {

void append(StepSeries::Point& point, const StepSeries::Point& next) {
  point.at = next.at;
  point.last = next.last;
  point.min = std::min(point.min, next.min);
  point.max = std::max(point.max, next.max);
  point.sum += next.sum;
  point.count += next.count;
}

constexpr std::int64_t kUntoldStep = -2;  // of a checkpoint
constexpr std::size_t kMostOpen = 64;     // that begin and do not end: names are the worker's

}  // namespace

void StepSeries::begin(std::int64_t number, Duration at) {
  const auto step = static_cast<double>(number);
  if (known_ && known_->done == step) return;  // heard after its end
  known_ = Known{step - 1, at};
}

void StepSeries::end(std::int64_t number, Duration at) {
  const auto before = known_;
  known_ = Known{static_cast<double>(number), at};
  // The same number again, or a lower one: no time of a step.
  if (!before || known_->done <= before->done || at <= before->at) return;
  const double steps = known_->done - before->done;
  add(number, at,
      Duration(static_cast<std::int64_t>(static_cast<double>((at - before->at).count()) / steps)));
}

void StepSeries::add(std::int64_t number, Duration at, Duration time) {
  const Point one{at, number, number, time, time, time, 1};
  if (!points_.empty() && points_.back().count < steps_per_point_) {
    return append(points_.back(), one);
  }
  points_.push_back(one);
  // At twice the number, so that a step costs a constant share of the halving.
  if (points_.size() <= 2 * kPoints) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) {
    Point point = points_[i];
    if (i + 1 < points_.size()) append(point, points_[i + 1]);
    points_[kept++] = point;
  }
  points_.resize(kept);
  steps_per_point_ *= 2;
}

std::optional<std::int64_t> SafeStep::done(std::int64_t rank, std::int64_t step) {
  if (done_.size() < kMost || done_.contains(rank)) done_[rank] = step;
  if (done_.size() == 1) return rank == 0 ? std::optional(step) : std::nullopt;
  return std::ranges::min(done_ | std::views::values);
}

JobAccount::JobAccount(TimePoint job_start, bool several_nodes, TimePoint now)
    : job_start_(job_start),
      ledger_(job_start),
      restarts_(job_start),
      starts_(job_start),
      several_nodes_(several_nodes) {
  if (several_nodes_) ledger_.enter(Bucket::Rendezvous, now);
}

void JobAccount::phase(NodePhase phase, TimePoint now) {
  const bool again = std::exchange(phase_, phase) == phase;
  restarts_.phase(phase, now);
  if (steps_) steps_->interrupt();
  switch (phase) {
    case NodePhase::Joining:
      if (several_nodes_) ledger_.enter(Bucket::Rendezvous, now);
      break;
    case NodePhase::Starting:
      gone_ = false;
      joining_ = Joining::None;
      forget_phases();
      step_.reset();
      job_end_.reset();
      ending_ = Duration::zero();
      unnoticed_ = {};
      noticed_ = false;
      ledger_.enter(ran_ ? Bucket::Restart : Bucket::Startup, now);
      break;
    case NodePhase::Running:
      ran_ = true;
      restarting_ = false;
      stopping_since_.reset();
      ledger_.enter(Bucket::Running, now);
      if (!again) starts_.begin(now, ledger_.productive());
      if (!open_.empty() || doing_.bucket != Bucket::Running) show(now);  // a worker was faster
      break;
    case NodePhase::Settling:
    case NodePhase::Stopping:
    case NodePhase::Waiting:
      // A restart that was ordered books this time itself.
      if (!restarting_) stopping(now);
      break;
    case NodePhase::Barrier:  // waiting for the others does not belong to a restart that may follow
      stopping_since_.reset();
      end_work(now);
      ledger_.enter(Bucket::Stopping, now);
      starts_.end(now, ledger_.productive());
      break;
    case NodePhase::Ended:
      ledger_.enter(Bucket::Stopping, now);
      break;
  }
}

void JobAccount::stopping(TimePoint now) {
  if (!stopping_since_) stopping_since_ = now;
  ledger_.enter(Bucket::Stopping, now);
}

/// The order comes some time after the failure; all since then was on the way to the next start.
void JobAccount::restarting(std::string cause, bool failure, TimePoint now) {
  if (phase_ == NodePhase::Joining) return;  // it was not running: the order is for the others
  if (failure) {
    ledger_.count_failure();
    // A worker of another node, which tells nothing of its end here.
    if (!noticed_) ending_.reset();
  }
  starts_.why(cause, true);
  restarts_.restarting(std::move(cause), now);
  restarting_ = true;
  if (stopping_since_) {
    ledger_.rebook(Bucket::Stopping, Bucket::Restart, now - *stopping_since_, now);
  }
  stopping_since_.reset();
  if (gone_)
    return lose_uncovered(Bucket::Restart, now, ending_);  // also where all had succeeded here
  ledger_.enter(Bucket::Restart, now);
}

void JobAccount::noticed_after(Duration time, std::optional<Duration> ending, std::string what) {
  ledger_.count_failure();
  noticed_ = true;
  unnoticed_ = restarts_.noticed_after(time);
  ending_ = ending;
  starts_.why(what.empty() ? "failed" : std::move(what));
}

/// Not before: workers that are told to stop may save a last checkpoint.
void JobAccount::stopped(bool failed, TimePoint now) {
  gone_ = true;
  if (restarting_ || failed) {
    lose_uncovered(restarting_ ? Bucket::Restart : Bucket::Stopping, now, ending_);
  }
  starts_.end(now, ledger_.productive());
}

void JobAccount::ended(bool succeeded, TimePoint now, std::string_view ending) {
  const bool preempted = ending == "preempted";
  // Workers that have saved and return take their time for it.
  if (preempted) {
    ending_.reset();
    ledger_.left_after_save(Bucket::Stopping, now);
  }
  if (succeeded) {
    end_work(now);
  } else {
    lose_uncovered(Bucket::Stopping, now, ending_);
  }
  starts_.end(now, ledger_.productive());
  const bool signalled = ending == "signalled";
  starts_.why(succeeded   ? "succeeded"
              : preempted ? "preempted"
              : signalled ? "stopped by a signal"
                          : "stopped",
              preempted);
}

void JobAccount::died(TimePoint now) {
  ledger_.count_failure();
  starts_.why("agent or machine died");
  ending_ = Duration::zero();
  ended(false, now);
}

void JobAccount::step(std::int64_t number, TimePoint now, bool watched) {
  end_joining(now);
  // Of a script that reports by both ways the recorder is heard later: the end of this step must
  // not be told again by the begin of the next, after that one's end. It would pass for a resume.
  if (step_ && *step_ <= number) step_.reset();
  ledger_.resume(number, now);
  // Between the two, or what the resume takes back would be set off against this step.
  starts_.settle(ledger_.productive());
  ledger_.step(number, now, watched);
  starts_.regain(ledger_.take_regained());
  stepped_at_ = now;
  end_phase(now);
  const auto counted = ledger_.last_step().value_or(number);
  starts_.step(counted, ledger_.productive());
  restarts_.step(counted, now);
  if (steps_) steps_->end(number, now - job_start_);
}

void JobAccount::keep_history() {
  ledger_.keep_timeline();
  steps_.emplace();
}

History JobAccount::history(TimePoint now) const {
  if (!steps_) return {};
  return {ledger_.timeline(now), steps_->points()};
}

void JobAccount::left(TimePoint now) {
  ledger_.enter(Bucket::Queued, now);
  restarts_.phase(NodePhase::Ended, now);
}

void JobAccount::submitted_again(TimePoint now) {
  ledger_.enter(Bucket::Startup, now);
  if (several_nodes_) ledger_.enter(Bucket::Rendezvous, now);
  phase_ = NodePhase::Joining;
  ran_ = restarting_ = false;
  joining_ = Joining::None;
  gone_ = true;
  stopping_since_.reset();
  forget_phases();
  step_.reset();
}

void JobAccount::forget_phases() {
  open_.clear();
  doing_ = {};
  safe_.start();
}

/// Where the time goes from `at` on, if the workers run; before and after that the agent knows.
void JobAccount::show(TimePoint at) {
  if (phase_ != NodePhase::Running) return;
  const auto& now = open_.empty() ? doing_ : open_.back();
  ledger_.enter(now.bucket, at, now.name);
}

void JobAccount::entered(std::string_view name, TimePoint now) {
  doing_ = {bucket_of_phase(name), std::string(name)};
  show(now);
}

void JobAccount::checkpoint(std::int64_t rank, std::int64_t number, TimePoint now) {
  if (number == kUntoldStep) {
    if (rank == 0) ledger_.untold_checkpoint(now);
    return;
  }
  const auto step = number >= 0 ? std::optional(number) : ledger_.last_step();
  // Of several ranks that save, the job can only go back to what all of them have.
  const auto safe = step ? safe_.done(rank, *step) : std::nullopt;
  const bool all = number < 0 && safe == step && (safe || rank == 0);
  if (all) return ledger_.checkpoint(-1, now);
  if (safe) ledger_.checkpoint(*safe, now);
}

/// Booked when it is over: ranks that join in part, say for an evaluation, train meanwhile.
void JobAccount::joined(bool all, TimePoint now) {
  if (phase_ != NodePhase::Running || joining_ == Joining::Over) return;
  if (all) return end_joining(now);
  // torch's ranks count in at the store that the agent serves: until the first one does, the
  // workers import and set up.
  ledger_.rebook_running(Bucket::Preparation, now);
  joining_ = Joining::Some;
}

void JobAccount::end_joining(TimePoint now) {
  const bool some = std::exchange(joining_, Joining::Over) == Joining::Some;
  if (some) ledger_.rebook_running(Bucket::Initialization, now);
}

void JobAccount::begin_step(std::int64_t number, TimePoint at) {
  if (step_ == number) return;
  end_step(at);
  end_joining(at);
  if (!open_.empty()) {  // whose end was not told
    open_.clear();
    show(at);
  }
  end_phase(at);
  ledger_.begin_step(number, at);
  if (steps_) steps_->begin(number, at - job_start_);
  starts_.settle(ledger_.productive());
  step_ = number;
}

/// A step is training, whatever the worker said before.
void JobAccount::end_phase(TimePoint at) {
  if (std::exchange(doing_, Open()).bucket != Bucket::Running) show(at);
}

void JobAccount::end_step(TimePoint at) {
  job_end_.reset();
  if (step_) step(*step_, at);
  step_.reset();
}

/// What followed the end of the job that a recorder told was the end of the workers.
Duration JobAccount::take_job_end(Bucket to, TimePoint at) {
  if (!job_end_) return {};
  const Duration since = ledger_.spent(Bucket::Preparation) - *std::exchange(job_end_, {});
  ledger_.rebook(Bucket::Preparation, to, since, at);
  return std::max(since, Duration::zero());
}

/// The workers have succeeded.
void JobAccount::end_work(TimePoint now) {
  take_job_end(Bucket::Stopping, now);
  end_step(now);
  ledger_.end_steps(Bucket::Stopping, now);
}

/// A step that is older than the end of a later one, which was told another way and heard sooner.
bool JobAccount::is_late(const MeasurementEntry& entry, TimePoint at) const {
  const bool step = entry.kind == MeasurementKind::Step || entry.kind == MeasurementKind::StepEnd;
  // A recorder's entries come together, every 50 ms, and elastrun.step() at once: taken as it
  // comes, such a begin would pass for a resume, and the steps since for lost.
  return step && at < stepped_at_ && entry.step <= ledger_.last_step();
}

void JobAccount::recorded(const MeasurementEntry& entry, std::string_view name, TimePoint at) {
  if (is_late(entry, at)) return;
  if (entry.kind == MeasurementKind::Step) return begin_step(entry.step, at);
  if (entry.kind == MeasurementKind::JobEnd) {
    // An exception may have ended the job, and the step with it: what comes next says so.
    doing_ = {Bucket::Preparation, ""};
    show(at);
    job_end_ = ledger_.spent(Bucket::Preparation);
    return;
  }
  if (entry.kind == MeasurementKind::StepEnd) {
    step_.reset();
    return step(entry.step, at, true);  // hooks tell what lies between two
  }
  // A recorder tells this itself, and more exactly than ranks that count in at the store.
  if (entry.kind == MeasurementKind::AcceleratorInitStart && phase_ == NodePhase::Running) {
    ledger_.rebook_running(Bucket::Preparation, at);
    joining_ = Joining::Over;
  }
  for (const auto& phase : kMeasuredPhases) {
    if (entry.kind != phase.start && entry.kind != phase.end) continue;
    const bool custom = phase.bucket == Bucket::Custom;
    const Open one{custom ? bucket_of_phase(name) : phase.bucket,
                   std::string(phase.name.empty() ? name : phase.name)};
    std::erase(open_, one);  // a start that comes again is the one that counts
    if (entry.kind == phase.start && open_.size() < kMostOpen) open_.push_back(one);
    return show(at);
  }
}

void JobAccount::lose_uncovered(Bucket next, TimePoint now, std::optional<Duration> ending) {
  if (ending) *ending += unnoticed_;
  if (job_end_) ending = Duration::zero();
  const Duration since_end = take_job_end(next, now);
  const Duration exit = ledger_.failed(now, next, ending) + since_end - unnoticed_;
  restarts_.exited_in(std::max(exit, Duration::zero()));
  unnoticed_ = {};
  ledger_.enter(next, now);
}

}  // namespace elastrun::goodput
