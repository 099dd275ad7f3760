// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace elastrun::goodput {
namespace {

// So many points between two checkpoints are told apart. Beyond it each mark stands for twice as
// many steps: at most a 2048th of them is then counted as lost though the checkpoint has it.
constexpr std::size_t kMarks = 4096;

/// Whether workers go on after it where they were.
bool is_within_a_start(Bucket bucket) {
  return bucket == Bucket::Running || bucket == Bucket::Checkpoint ||
         bucket >= Bucket::Initialization;
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
  if (hanging_) return;
  counter_.passed(current_, passed);
  since_progress_[static_cast<std::size_t>(bucket)] += passed;
  if (bucket == Bucket::Productive) {
    work_.uncovered.productive += passed;
    since_step_ += passed;
  }
  if (bucket == Bucket::Running) work_.uncovered.running += passed;
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

void Ledger::enter(Bucket bucket, TimePoint now) {
  settle(now);
  const Bucket before = std::exchange(current_, bucket);
  if (bucket == Bucket::Checkpoint) counter_.save_begins();
  if (!is_within_a_start(bucket)) return progressed();
  if (is_within_a_start(before)) return;
  restarts_ += std::exchange(ran_, true) ? 1 : 0;
  steps_seen_ = false;
  counter_.start();
  progressed();
}

/// At most `most` of what went to `from` since the last progress is Hang; how much that was.
Duration Ledger::take_back(Bucket from, Duration most) {
  auto& booked = since_progress_[static_cast<std::size_t>(from)];
  const Duration taken = std::clamp(most, Duration::zero(), std::min(booked, of(from)));
  booked -= taken;
  move(from, Bucket::Hang, taken, last_);
  if (from == Bucket::Running) work_.uncovered.running -= taken;
  if (from == Bucket::Productive) {
    work_.uncovered.productive -= taken;
    since_step_ -= std::min(taken, since_step_);
  }
  return taken;
}

void Ledger::hang(Duration standing, TimePoint now) {
  settle(now);
  if (hanging_ || !is_within_a_start(current_)) return;
  // What it does now, it does last.
  Duration taken = take_back(bucket_now(), standing);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    taken += take_back(static_cast<Bucket>(i), standing - taken);
  }
  hanging_ = true;
  counter_.hangs();
}

void Ledger::begin_step(std::int64_t step, TimePoint now) {
  settle(now);
  progressed();
  resume(step);
  since_step_ = {};
  if (current_ == Bucket::Running) steps_seen_ = true;
}

void Ledger::lose(Uncovered lost, TimePoint until) {
  move(Bucket::Running, Bucket::Lost, lost.running, until);
  move(Bucket::Productive, Bucket::Lost, lost.productive, until);
}

/// What broke before is kept up to the last mark before `step`, and done again from there on.
void Ledger::resume(std::int64_t step) {
  auto broken = std::exchange(broken_, std::nullopt);
  if (!broken) return;
  broken->cover(std::max(step, std::numeric_limits<std::int64_t>::min() + 1) - 1);
  lose(broken->uncovered, broken_at_);
}

void Ledger::step(std::int64_t step, TimePoint now) {
  settle(now);
  progressed();
  counter_.step(step);
  resume(step);
  if (current_ == Bucket::Running) steps_seen_ = true;
  go_back(step);
  if (!work_.marks.empty() && in_last_mark_ < steps_per_mark_) {
    work_.marks.back() = {step, work_.uncovered};
    in_last_mark_ += 1;
  } else {
    if (work_.marks.size() == kMarks) thin_out();
    work_.marks.push_back({step, work_.uncovered});
    in_last_mark_ = 1;
  }
  last_step_ = step;
  stepped_at_ = last_;
  since_step_ = {};
}

/// A lower number than the last one is a resume within the process: the steps from there on are
/// done again. The same number is the same step.
void Ledger::go_back(std::int64_t step) {
  auto& marks = work_.marks;
  if (marks.empty() || marks.back().step < step) return;
  const Uncovered done = marks.back().until;
  const bool again = marks.back().step > step;
  while (!marks.empty() && marks.back().step >= step) marks.pop_back();
  if (!again) return;
  const Uncovered kept = marks.empty() ? Uncovered{} : marks.back().until;
  const Uncovered lost{done.running - kept.running, done.productive - kept.productive};
  lose(lost, stepped_at_);
  work_.uncovered.running -= lost.running;
  work_.uncovered.productive -= lost.productive;
}

void Ledger::thin_out() {
  for (std::size_t i = 0; i < kMarks / 2; ++i) work_.marks[i] = work_.marks[2 * i + 1];
  work_.marks.resize(kMarks / 2);
  steps_per_mark_ *= 2;
}

void Ledger::forget_marks() {
  work_.marks.clear();
  steps_per_mark_ = 1;
}

/// What lies up to the last mark at or before `step` is kept.
void Ledger::Work::cover(std::int64_t step) {
  const auto last = std::ranges::upper_bound(marks, step, {}, &Mark::step);
  if (last == marks.begin()) return;
  const Uncovered covered = std::prev(last)->until;
  marks.erase(marks.begin(), last);
  uncovered.running -= covered.running;
  uncovered.productive -= covered.productive;
  for (auto& mark : marks) {
    mark.until.running -= covered.running;
    mark.until.productive -= covered.productive;
  }
}

void Ledger::checkpoint(std::int64_t step, TimePoint now) {
  settle(now);
  progressed();
  checkpoint_seen_ = true;
  const auto covered = step >= 0 ? std::optional(step) : last_step_;
  if (covered) last_checkpoint_ = covered;
  if (covered > last_step_) since_step_ = {};
  counter_.checkpoint(covered);
  if (broken_) {
    // The upload of a start that has failed took longer than it lived.
    if (step >= 0) broken_->cover(step);
  } else if (step < 0 || step >= last_step_.value_or(step)) {
    forget_marks();
    work_.uncovered = {};
  } else {
    work_.cover(step);
  }
}

void Ledger::failed(TimePoint now) {
  settle(now);
  current_ = Bucket::Restart;
  progressed();
  since_step_ = {};
  broken_at_ = last_;
  if (work_.uncovered.total() <= Duration::zero()) return;
  if (!broken_) broken_ = Work{};
  // A start without a step adds to what broke before it, whose marks stay.
  if (!work_.marks.empty()) broken_->marks = std::move(work_.marks);
  broken_->uncovered.running += work_.uncovered.running;
  broken_->uncovered.productive += work_.uncovered.productive;
  work_.uncovered = {};
  forget_marks();
}

void Ledger::end_steps(Bucket to, TimePoint now) {
  settle(now);
  const Duration idle = std::min(std::exchange(since_step_, {}), of(Bucket::Productive));
  move(Bucket::Productive, to, idle, last_);
  auto& uncovered = work_.uncovered.productive;
  uncovered -= std::min(idle, uncovered);
}

void Ledger::rebook(Bucket from, Bucket to, Duration time, TimePoint now) {
  settle(now);
  move(from, to, std::clamp(time, Duration::zero(), of(from)), last_);
}

void Ledger::rebook_running(Bucket to, TimePoint now) {
  settle(now);
  if (steps_seen_ || !work_.marks.empty()) return;
  move(Bucket::Running, to, std::exchange(work_.uncovered.running, Duration::zero()), last_);
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
Ledger::Uncovered Ledger::lost_at_the_end() const {
  return broken_ && checkpoint_seen_ ? broken_->uncovered : Uncovered();
}

/// By hand and not by a copy that is settled: asked while the job runs, and marks are many.
Ledger::Summary Ledger::summary(TimePoint now) const {
  auto buckets = buckets_;
  const auto in = [&buckets](Bucket bucket) -> Duration& {
    return buckets[static_cast<std::size_t>(bucket)];
  };
  const Duration passed = std::max(now - last_, Duration::zero());
  in(bucket_now()) += passed;
  const auto lost = lost_at_the_end();
  in(Bucket::Running) -= lost.running;
  in(Bucket::Productive) -= lost.productive;
  in(Bucket::Lost) += lost.total();
  return {last_ + passed - start_,      buckets,          restarts_, last_step_, last_checkpoint_,
          !broken_ || checkpoint_seen_, counter_.counts()};
}

std::vector<Timeline::Span> Ledger::timeline(TimePoint now) const {
  if (!timeline_) return {};
  Ledger copy = *this;
  copy.settle(now);
  copy.lose(lost_at_the_end(), broken_at_);
  return copy.timeline_->spans();
}

}  // namespace elastrun::goodput
