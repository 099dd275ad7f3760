// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/ledger.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace elastrun::goodput {
namespace {

/// Whether workers go on after it where they were.
bool is_within_a_start(Bucket bucket) {
  return bucket == Bucket::Running || bucket == Bucket::Checkpoint ||
         bucket >= Bucket::Initialization;
}

// A number that jumps further does not count steps that were done.
constexpr double kFarthest = 1 << 20;
// Of a worker that has failed: from its last step on, with a traceback, destructors, a core dump.
constexpr Duration kLongestExit = std::chrono::seconds(10);

/// What all starts took until their first steps, and these longer than others.
Duration until_first_steps(const std::array<Duration, kBuckets>& buckets) {
  return buckets[static_cast<std::size_t>(Bucket::Running)] +
         buckets[static_cast<std::size_t>(Bucket::Preparation)] +
         buckets[static_cast<std::size_t>(Bucket::Initialization)];
}

}  // namespace

Ledger::Ledger(TimePoint job_start) : start_(job_start), last_(job_start) {}

/// Where seconds go at the moment.
Bucket Ledger::bucket_now() const {
  if (hanging_) return Bucket::Hang;
  return current_ == Bucket::Running && steps_seen_ ? Bucket::Productive : current_;
}

/// Books the time since the last fact.
void Ledger::settle(TimePoint now) {
  const Duration passed = std::max(now - last_, Duration::zero());
  last_ += passed;
  const Bucket bucket = bucket_now();
  of(bucket) += passed;
  if (timeline_) timeline_->spend(bucket, passed);
  // Time of a hang does not count as work that could be lost, and does not lead to a step.
  if (hanging_) return;
  counter_.passed(current_, passed);
  since_progress_[static_cast<std::size_t>(bucket)] += passed;
  if (bucket == Bucket::Productive) {
    unmarked_ += passed;
    since_step_ += passed;
  }
  if (bucket == Bucket::Running) {
    running_ += passed;
    uncovered_ += passed;
    lead_ += passed;
  }
}

/// The latest `time` in `from` before `until`.
void Ledger::move(Bucket from, Bucket to, Duration time, TimePoint until) {
  of(from) -= time;
  of(to) += time;
  if (timeline_) timeline_->move(from, to, time, until - start_);
}

void Ledger::progressed() {
  since_progress_ = {};
  hanging_ = false;
}

void Ledger::world(std::int64_t ranks) {
  if (ranks == ranks_) return;
  several_worlds_ = several_worlds_ || ranks_ > 0;
  ranks_ = ranks;
  usual_.clear();  // others have another pace
}

void Ledger::enter(Bucket bucket, TimePoint now, std::string_view name) {
  settle(now);
  if (bucket == Bucket::Custom) custom_.enter(name, of(bucket));
  const Bucket before = std::exchange(current_, bucket);
  if (!begun_ && bucket != Bucket::Running) lead_ = {};
  if (bucket == Bucket::Checkpoint) counter_.save_begins();
  if (!is_within_a_start(bucket)) return progressed();
  // A phase of the script, not another start of the workers.
  if (is_within_a_start(before)) return;
  break_off(Bucket::Restart);
  // What the first start took would have been needed anyway; all later ones are repeated.
  if (ran_ && restarts_ == 0) before_restarts_ = until_first_steps(buckets_);
  restarts_ += std::exchange(ran_, true) ? 1 : 0;
  steps_seen_ = stepped_ = false;
  safe_before_ = safe_step_.value_or(0);
  first_steps_.clear();
  running_ = lead_ = {};
  numbers_.start();
  counter_.start();
  progressed();
}

/// At most `most` of what went to `from` since the last progress is Hang; how much that was.
Duration Ledger::hang_takes(Bucket from, Duration most) {
  auto& booked = since_progress_[static_cast<std::size_t>(from)];
  const Duration taken = std::clamp(most, Duration::zero(), std::min(booked, of(from)));
  booked -= taken;
  move(from, Bucket::Hang, taken, last_);
  if (from == Bucket::Running) {
    running_ -= std::min(taken, running_);
    uncovered_ -= std::min(taken, uncovered_);
    lead_ -= std::min(taken, lead_);
  }
  if (from == Bucket::Productive) {
    unmarked_ -= std::min(taken, unmarked_);
    since_step_ -= std::min(taken, since_step_);
  }
  return taken;
}

void Ledger::hang(Duration standing, TimePoint now) {
  settle(now);
  if (hanging_ || !is_within_a_start(current_)) return;
  // What it does now, it does last.
  Duration taken = hang_takes(bucket_now(), standing);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    taken += hang_takes(static_cast<Bucket>(i), standing - taken);
  }
  hanging_ = true;
  counter_.hangs();
}

void Ledger::resume(std::int64_t step, TimePoint now) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  // Only the first step of a start tells where the job resumed.
  if (!stepped_) go_back(step, broken_at_);
}

void Ledger::begin_step(std::int64_t step, TimePoint now) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  progressed();
  if (!stepped_) {
    go_back(step, broken_at_);
    begun_ = true;
    lead_ = {};
  } else if (step < kept_.last()) {
    go_back(step, stepped_at_);
  }
  since_step_ = {};
}

/// What was done from `step` on is done again.
void Ledger::go_back(std::int64_t step, TimePoint until) {
  const Duration lost = kept_.take_back(step);
  move(Bucket::Productive, Bucket::Lost, lost, until);
  if (safe_step_ >= step) safe_step_ = step - 1;  // that checkpoint is done again, too
  if (first_ && step <= first_->step) first_.reset();
  exposed_ = stalled_ = {};
  usual_.interrupt();
  broken_ = false;
}

void Ledger::step(std::int64_t step, TimePoint now) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  progressed();
  if (is_within_a_start(current_)) steps_seen_ = true;
  if (!std::exchange(stepped_, true)) {
    first_step(step);
  } else if (step == kept_.last()) {
    kept_.prolong(std::exchange(unmarked_, {}));
  } else {
    next_step(step);
  }
  counter_.step(step);
  last_step_ = step;
  stepped_at_ = last_;
  since_step_ = {};
}

void Ledger::first_step(std::int64_t step) {
  go_back(step, broken_at_);
  const auto before = std::max({kept_.last().value_or(0), safe_before_, std::int64_t{0}});
  kept_.add(step, {1, std::exchange(unmarked_, {})}, ranks_);
  first_ = {.step = step, .before = before, .most = lead_, .credited = {}, .at = last_};
  credit_first(usual_.time());
}

/// As much of the first step of this start as is usual was work, the rest led to it. Where not all
/// steps are told, it may be several.
void Ledger::credit_first(std::optional<Duration> usual) {
  if (!first_ || !usual) return;
  const auto steps = std::clamp<std::int64_t>(first_->step - first_->before, 1, stride_);
  const double all = static_cast<double>(usual->count()) * static_cast<double>(steps);
  const auto most = static_cast<double>(first_->most.count());
  const Duration work(static_cast<std::int64_t>(std::min(all, most)));
  const Duration more = work - first_->credited;
  if (!kept_.prolong(first_->step, more, steps - first_->steps)) return first_.reset();
  first_->credited += more;
  first_->steps = steps;
  if (more > Duration::zero()) move(Bucket::Running, Bucket::Productive, more, first_->at);
  if (more < Duration::zero()) move(Bucket::Productive, Bucket::Running, -more, first_->at);
}

/// No second one follows, which would say what is usual: of the only step that the job told, all
/// was work, if its begin was told, too.
void Ledger::end_first_step() {
  if (begun_ && usual_.known() == 0) credit_first(Duration::max());
}

void Ledger::next_step(std::int64_t step) {
  Duration time = std::exchange(unmarked_, {});
  const Duration covered = std::exchange(covered_, {});
  const auto before = kept_.last();
  // The script went back by itself, say after a loss that exploded.
  if (before && step < *before) {
    go_back(step, stepped_at_);
    return kept_.add(step, {1, time}, ranks_);
  }
  const double apart = static_cast<double>(step) - static_cast<double>(before.value_or(step - 1));
  const auto steps = stride_ = apart <= kFarthest ? static_cast<std::int64_t>(apart) : 1;
  if (const Duration stall = usual_.stall(time, steps); stall > Duration::zero()) {
    move(Bucket::Productive, Bucket::Stalled, stall, last_);
    counter_.stalled(stall);
    stalled_ = usual_.in_bursts() ? Duration::zero() : stall;
    kept_.add(step, {steps, time - stall}, ranks_);
    // A stall is among the usual steps as well: where all become slow, that is the new pace.
    usual_.add({step, steps, time + covered, stall});
    return explain_stalls();
  }
  // With what a checkpoint covered of this step: of steps that are saved in the middle only the
  // rest is new, and a median of such rests says nothing about the pace.
  const Duration all = time + covered;
  if (covered > Duration::zero()) stalled_ = {};
  catch_up(time, steps);
  kept_.add(step, {steps, time}, ranks_);
  const bool late = stalled_ > Duration::zero();
  usual_.add({.last = step, .count = steps, .time = all, .late = late});
  if (late) return;
  if (first_steps_.size() == kFirstSteps) return first_.reset();
  first_steps_.add(all / steps);
  credit_first(first_steps_.nth((first_steps_.size() - 1) / 2));
}

/// What was taken for stalls, and was the pace of a script that runs ahead of its devices.
void Ledger::explain_stalls() {
  for (const auto& [step, time] : usual_.take_explained()) {
    move(Bucket::Stalled, Bucket::Productive, time, last_);
    if (!kept_.prolong(step, time)) kept_.prolong(time);
    counter_.made_up(time);
    stalled_ = {};
  }
}

/// Steps that come in a rush after a stall were done in it, and told late.
void Ledger::catch_up(Duration& time, std::int64_t steps) {
  if (stalled_ <= Duration::zero()) return;
  const Duration usual = *usual_.time(steps);
  // A step that was done now, not one that is told late.
  if (time >= usual / 2) {
    stalled_ = {};
    return;
  }
  const Duration made_up = std::min(stalled_, usual - time);
  move(Bucket::Stalled, Bucket::Productive, made_up, last_);
  stalled_ -= made_up;
  time += made_up;
  usual_.made_up(made_up);
  counter_.made_up(made_up);
}

void Ledger::checkpoint(std::int64_t step, TimePoint now) {
  settle(now);
  progressed();
  checkpoint_seen_ = true;
  uncovered_ = {};
  if (step >= 0) step = numbers_.of_checkpoint(step, kept_.last());
  const auto covered = step >= 0 ? std::optional(step) : last_step_;
  if (covered) last_checkpoint_ = covered;
  counter_.checkpoint(covered);
  if (!covered) return;
  safe_step_ = std::max(safe_step_, covered);
  if ((step >= 0 && covered <= last_step_) || !stepped_) return;
  // The step under way is told after its checkpoint; its pace is that of the whole.
  if (step >= 0) covered_ += unmarked_;
  kept_.prolong(std::exchange(unmarked_, {}));  // it holds steps that were never told
  since_step_ = {};
}

void Ledger::untold_checkpoint(TimePoint now) {
  settle(now);
  progressed();
  numbers_.untold(kept_.last());
}

/// The step that was under way is done again. What lies beyond its usual time was no step, but the
/// end of the workers, or, where that would be very long, they stood still.
void Ledger::break_off(Bucket then) {
  end_first_step();
  Duration lost = std::exchange(unmarked_, {});
  covered_ = {};
  if (const auto due = usual_.due(stride_)) {
    const Duration rest = std::max(lost - *due, Duration::zero());
    const bool stood = rest > kLongestExit && usual_.stall(lost, stride_) > Duration::zero();
    move(Bucket::Productive, stood ? Bucket::Stalled : then, rest, last_);
    lost -= rest;
  }
  move(Bucket::Productive, Bucket::Lost, lost, last_);
  since_step_ = stalled_ = {};
  usual_.interrupt();
  first_.reset();
  begun_ = false;
}

void Ledger::failed(TimePoint now, Bucket then) {
  settle(now);
  current_ = then;
  progressed();
  broken_at_ = last_;
  broken_ = broken_ || kept_.last() || uncovered_ > Duration::zero();
  break_off(then);
  running_ = {};
  // Without steps it is unknown where the next start resumes: all since the last checkpoint may be
  // lost.
  exposed_ += std::exchange(uncovered_, {});
}

void Ledger::end_steps(Bucket to, TimePoint now) {
  settle(now);
  end_first_step();
  const Duration idle = std::min(std::exchange(since_step_, {}), of(Bucket::Productive));
  move(Bucket::Productive, to, idle, last_);
  unmarked_ -= std::min(idle, unmarked_);
  since_progress_[static_cast<std::size_t>(Bucket::Productive)] = {};
}

void Ledger::rebook(Bucket from, Bucket to, Duration time, TimePoint now) {
  settle(now);
  move(from, to, std::clamp(time, Duration::zero(), of(from)), last_);
}

void Ledger::rebook_running(Bucket to, TimePoint now) {
  settle(now);
  if (steps_seen_ || stepped_ || begun_) return;
  uncovered_ -= std::min(running_, uncovered_);
  move(Bucket::Running, to, std::exchange(running_, {}), last_);
  lead_ = {};
  since_progress_ = {};
}

std::optional<double> Ledger::Summary::goodput() const {
  return steps_known() && loss_known ? std::optional(goodput_at_most()) : std::nullopt;
}

double Ledger::Summary::goodput_at_most() const {
  if (elapsed <= Duration::zero()) return 0;
  const auto good = of(steps_known() ? Bucket::Productive : Bucket::Running);
  return static_cast<double>(good.count()) / static_cast<double>(elapsed.count());
}

double Ledger::Summary::goodput_at_least() const {
  if (!steps_known() || elapsed <= Duration::zero()) return 0;
  if (!loss_known && doubtful <= Duration::zero()) return 0;
  const auto sure = std::max(of(Bucket::Productive) - doubtful, Duration::zero());
  return static_cast<double>(sure.count()) / static_cast<double>(elapsed.count());
}

/// The step after which it resumes at best, as long as nothing says otherwise: of the last
/// checkpoint. None where all may be kept.
std::optional<std::int64_t> Ledger::resumes_after() const {
  return broken_ ? std::max(safe_step_, numbers_.perhaps_safe()) : std::nullopt;
}

/// What counts as lost if the job ended now.
Duration Ledger::lost_at_the_end() const {
  if (broken_ && !last_step_) return checkpoint_seen_ ? exposed_ : Duration::zero();
  const auto safe = resumes_after();
  return safe ? kept_.above(*safe) : Duration::zero();
}

/// Of what counts as kept: where the job resumed, or could, is not known.
Duration Ledger::doubtful() const {
  constexpr auto kFirst = std::numeric_limits<std::int64_t>::min();
  Duration time{};
  if (const auto until = numbers_.doubtful()) time = kept_.above(kFirst) - kept_.above(*until);
  const auto saved = numbers_.perhaps_safe();
  if (!broken_ || !saved || saved <= safe_step_) return time;
  return std::max(time, kept_.above(safe_step_.value_or(kFirst)) - kept_.above(*saved));
}

/// How long the step that is under way has stood still, `passed` after the last fact.
Duration Ledger::stands_still(Duration passed) const {
  return stepped_ ? usual_.stall(unmarked_ + passed, stride_) : Duration::zero();
}

std::optional<Duration> Ledger::at_full_pace() const {
  if (!several_worlds_ || !last_step_) return std::nullopt;
  const bool lost = broken_ && safe_step_;
  const auto done = kept_.by_ranks(lost ? *safe_step_ : kept_.last().value_or(0));
  if (done.size() < 2) return std::nullopt;
  const auto& full = std::prev(done.end())->second;
  // Of the first step of a start no time is known before the second.
  if (full.steps <= 0 || full.time <= Duration::zero()) return std::nullopt;
  const double pace = static_cast<double>(full.time.count()) / static_cast<double>(full.steps);
  Duration all{};
  for (const auto& [ranks, one] : done) {
    const double most =
        std::min(pace * static_cast<double>(one.steps), static_cast<double>(one.time.count()));
    all += Duration(static_cast<std::int64_t>(most));
  }
  return all;
}

/// By hand and not by a copy that is settled: asked while the job runs, and steps are many.
Ledger::Summary Ledger::summary(TimePoint now) const {
  Summary summary{.elapsed = last_ - start_,
                  .buckets = buckets_,
                  .restarts = restarts_,
                  .last_step = last_step_,
                  .last_checkpoint = last_checkpoint_,
                  .loss_known = !broken_ || checkpoint_seen_,
                  .work = counter_.counts(),
                  .at_full_pace = at_full_pace()};
  summary.last_kept = kept_.last();
  if (const auto safe = resumes_after(); safe && safe < summary.last_kept) {
    summary.last_kept = safe;
  }
  summary.doubtful = doubtful();
  summary.loss_known = summary.loss_known && summary.doubtful <= Duration::zero();
  summary.untold_saves = numbers_.untold_saves();
  summary.begun_again = numbers_.begun_again();
  const auto in = [&summary](Bucket bucket) -> Duration& {
    return summary.buckets[static_cast<std::size_t>(bucket)];
  };
  const Duration passed = std::max(now - last_, Duration::zero());
  const Bucket bucket = bucket_now();
  summary.elapsed += passed;
  in(bucket) += passed;
  const auto lost = lost_at_the_end();
  in(work()) -= lost;
  in(Bucket::Lost) += lost;
  summary.custom = custom_.times(summary.of(Bucket::Custom));
  const auto stalls = stands_still(bucket == Bucket::Productive ? passed : Duration::zero());
  in(Bucket::Productive) -= stalls;
  in(Bucket::Stalled) += stalls;
  if (restarts_ > 0 && last_step_) {
    const auto all = until_first_steps(summary.buckets);
    summary.repeated = std::max(all - before_restarts_, Duration::zero());
  }
  return summary;
}

std::vector<Timeline::Span> Ledger::timeline(TimePoint now) const {
  if (!timeline_) return {};
  Ledger copy = *this;
  copy.settle(now);
  copy.move(Bucket::Productive, Bucket::Stalled, copy.stands_still({}), copy.last_);
  copy.move(work(), Bucket::Lost, lost_at_the_end(), broken_at_);
  return copy.timeline_->spans();
}

}  // namespace elastrun::goodput
