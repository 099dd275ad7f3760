// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace elastrun::goodput {
namespace {

/// Whether workers go on after it where they were.
bool is_within_a_start(Bucket bucket) {
  return bucket == Bucket::Running || bucket == Bucket::Checkpoint ||
         bucket >= Bucket::Initialization;
}

// A number that jumps further is no count of steps that were done.
constexpr double kFarthest = 1 << 20;
// Of a start, after which the time of its first one is settled.
constexpr std::size_t kFirstSteps = 8;

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

void Ledger::enter(Bucket bucket, TimePoint now) {
  settle(now);
  const Bucket before = std::exchange(current_, bucket);
  if (!begun_ && bucket != Bucket::Running) lead_ = {};
  if (bucket == Bucket::Checkpoint) counter_.save_begins();
  if (!is_within_a_start(bucket)) return progressed();
  if (is_within_a_start(before)) return;
  break_off(Bucket::Restart);
  if (ran_ && restarts_ == 0) before_restarts_ = until_first_steps();
  restarts_ += std::exchange(ran_, true) ? 1 : 0;
  steps_seen_ = stepped_ = false;
  usual_here_.clear();
  running_ = lead_ = {};
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
  if (!stepped_) go_back(step, broken_at_);
}

void Ledger::begin_step(std::int64_t step, TimePoint now) {
  settle(now);
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
  broken_ = false;
}

void Ledger::step(std::int64_t step, TimePoint now) {
  settle(now);
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
  kept_.add(step, {1, std::exchange(unmarked_, {})}, ranks_);
  first_ = {step, lead_, {}, last_};
  credit_first(usual_.time());
}

/// As much of the first step of this start as is usual was work, the rest led to it.
void Ledger::credit_first(std::optional<Duration> usual) {
  if (!first_ || !usual) return;
  const Duration more = std::min(first_->most, *usual) - first_->credited;
  if (!kept_.prolong(first_->step, more)) return first_.reset();
  first_->credited += more;
  if (more > Duration::zero()) move(Bucket::Running, Bucket::Productive, more, first_->at);
  if (more < Duration::zero()) move(Bucket::Productive, Bucket::Running, -more, first_->at);
}

void Ledger::next_step(std::int64_t step) {
  Duration time = std::exchange(unmarked_, {});
  const Duration covered = std::exchange(covered_, {});
  const auto before = kept_.last();
  if (before && step < *before) {
    go_back(step, stepped_at_);
    return kept_.add(step, {1, time}, ranks_);
  }
  const double apart = static_cast<double>(step) - static_cast<double>(before.value_or(step - 1));
  const auto steps = stride_ = apart <= kFarthest ? static_cast<std::int64_t>(apart) : 1;
  if (const Duration stall = usual_.stall(time, steps); stall > Duration::zero()) {
    move(Bucket::Productive, Bucket::Stalled, stall, last_);
    counter_.stalled(stall);
    stalled_ = stall;
    usual_.add((time + covered) / steps);
    return kept_.add(step, {steps, time - stall}, ranks_);
  }
  const Duration each = (time + covered) / steps;
  if (covered > Duration::zero()) stalled_ = {};
  catch_up(time, steps);
  kept_.add(step, {steps, time}, ranks_);
  if (stalled_ > Duration::zero()) return;
  usual_.add(each);
  if (usual_here_.known() == kFirstSteps) return first_.reset();
  usual_here_.add(each);
  credit_first(usual_here_.time());
}

/// Steps that come in a rush after a stall were done in it, and told late.
void Ledger::catch_up(Duration& time, std::int64_t steps) {
  if (stalled_ <= Duration::zero()) return;
  const Duration usual = *usual_.time(steps);
  if (time >= usual / 2) {
    stalled_ = {};
    return;
  }
  const Duration made_up = std::min(stalled_, usual - time);
  move(Bucket::Stalled, Bucket::Productive, made_up, last_);
  stalled_ -= made_up;
  time += made_up;
}

void Ledger::checkpoint(std::int64_t step, TimePoint now) {
  settle(now);
  progressed();
  checkpoint_seen_ = true;
  uncovered_ = {};
  const auto covered = step >= 0 ? std::optional(step) : last_step_;
  if (covered) last_checkpoint_ = covered;
  counter_.checkpoint(covered);
  if (!covered) return;
  safe_step_ = std::max(safe_step_, covered);
  if ((step >= 0 && covered <= last_step_) || !stepped_) return;
  if (step >= 0) covered_ += unmarked_;
  kept_.prolong(std::exchange(unmarked_, {}));  // it holds steps that nobody told
  since_step_ = {};
}

/// The step that was under way is done again. What lies beyond its usual time was no step, but the
/// end of the workers, or they stood still.
void Ledger::break_off(Bucket then) {
  if (begun_) credit_first(usual_.known() > 0 ? std::nullopt : std::optional(Duration::max()));
  Duration lost = std::exchange(unmarked_, {});
  covered_ = {};
  if (const auto usual = usual_.time(stride_)) {
    const bool stood = usual_.stall(lost, stride_) > Duration::zero();
    const Duration rest = std::max(lost - *usual, Duration::zero());
    move(Bucket::Productive, stood ? Bucket::Stalled : then, rest, last_);
    lost -= rest;
  }
  move(Bucket::Productive, Bucket::Lost, lost, last_);
  since_step_ = stalled_ = {};
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
  exposed_ += std::exchange(uncovered_, {});
}

void Ledger::end_steps(Bucket to, TimePoint now) {
  settle(now);
  if (begun_) credit_first(usual_.known() > 0 ? std::nullopt : std::optional(Duration::max()));
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

/// What counts as lost if the job ended now: as long as nothing says otherwise, it resumes at its
/// last checkpoint.
Duration Ledger::lost_at_the_end() const {
  if (!broken_ || !checkpoint_seen_) return {};
  if (!last_step_) return exposed_;
  return safe_step_ ? kept_.above(*safe_step_) : Duration::zero();
}

/// How long the step that is under way has stood still, `passed` after the last fact.
Duration Ledger::stands_still(Duration passed) const {
  return stepped_ ? usual_.stall(unmarked_ + passed, stride_) : Duration::zero();
}

/// What all starts took until their first steps, and these longer than others.
Duration Ledger::until_first_steps() const {
  return buckets_[static_cast<std::size_t>(Bucket::Running)] +
         buckets_[static_cast<std::size_t>(Bucket::Preparation)] +
         buckets_[static_cast<std::size_t>(Bucket::Initialization)];
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
  Summary summary{last_ - start_,    buckets_,         restarts_,
                  last_step_,        last_checkpoint_, !broken_ || checkpoint_seen_,
                  counter_.counts(), at_full_pace(),   {}};
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
  const auto stalls = stands_still(bucket == Bucket::Productive ? passed : Duration::zero());
  in(Bucket::Productive) -= stalls;
  in(Bucket::Stalled) += stalls;
  if (restarts_ > 0 && last_step_) {
    const auto all = in(Bucket::Running) + in(Bucket::Preparation) + in(Bucket::Initialization);
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
