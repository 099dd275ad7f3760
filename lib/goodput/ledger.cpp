// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger.hpp"

#include <algorithm>

namespace elastrun::goodput {
namespace {

// So many points between two checkpoints are told apart. Beyond it each mark stands for twice as
// many steps: at most a 2048th of them is then counted as lost though the checkpoint has it.
constexpr std::size_t kMarks = 4096;

}  // namespace

std::string_view bucket_name(Bucket bucket) {
  constexpr std::string_view kNames[kBuckets] = {"startup", "rendezvous", "running", "productive",
                                                 "lost",    "checkpoint", "restart", "stopping"};
  return kNames[static_cast<std::size_t>(bucket)];
}

Ledger::Ledger(TimePoint job_start) : start_(job_start), last_(job_start) {}

/// Books the time since the last fact.
void Ledger::settle(TimePoint now) {
  const Duration passed = std::max(now - last_, Duration::zero());
  last_ += passed;
  if (current_ != Bucket::Running) {
    of(current_) += passed;
  } else if (steps_seen_) {
    of(Bucket::Productive) += passed;
    uncovered_.productive += passed;
  } else {
    of(Bucket::Running) += passed;
    uncovered_.running += passed;
  }
}

void Ledger::enter(Bucket bucket, TimePoint now) {
  settle(now);
  const Bucket before = std::exchange(current_, bucket);
  if (bucket != Bucket::Running || before == Bucket::Running || before == Bucket::Checkpoint)
    return;
  restarts_ += std::exchange(ran_, true) ? 1 : 0;
  steps_seen_ = false;
}

void Ledger::step(std::int64_t step, TimePoint now) {
  settle(now);
  if (current_ == Bucket::Running) steps_seen_ = true;
  // A number that goes back is a resume: what was marked with higher ones is done again.
  while (!marks_.empty() && marks_.back().step >= step) marks_.pop_back();
  if (!marks_.empty() && in_last_mark_ < steps_per_mark_) {
    marks_.back() = {step, uncovered_};
    in_last_mark_ += 1;
  } else {
    if (marks_.size() == kMarks) thin_out();
    marks_.push_back({step, uncovered_});
    in_last_mark_ = 1;
  }
  last_step_ = step;
}

void Ledger::thin_out() {
  for (std::size_t i = 0; i < kMarks / 2; ++i) marks_[i] = marks_[2 * i + 1];
  marks_.resize(kMarks / 2);
  steps_per_mark_ *= 2;
}

void Ledger::forget_marks() {
  marks_.clear();
  steps_per_mark_ = 1;
}

void Ledger::cover(Uncovered covered) {
  uncovered_.running -= covered.running;
  uncovered_.productive -= covered.productive;
  for (auto& mark : marks_) {
    mark.until.running -= covered.running;
    mark.until.productive -= covered.productive;
  }
}

void Ledger::checkpoint(std::int64_t step, TimePoint now) {
  settle(now);
  checkpoint_seen_ = true;
  const auto last = step < 0 || step >= last_step_.value_or(step)
                        ? marks_.end()
                        : std::find_if(marks_.begin(), marks_.end(),
                                       [step](const Mark& mark) { return mark.step > step; });
  if (step >= 0) {
    last_checkpoint_ = step;
  } else if (last_step_) {
    last_checkpoint_ = last_step_;
  }
  if (last == marks_.end()) {
    forget_marks();
    uncovered_ = {};
  } else if (last != marks_.begin()) {
    const Uncovered covered = std::prev(last)->until;
    marks_.erase(marks_.begin(), last);
    cover(covered);
  }
}

void Ledger::failed(TimePoint now) {
  settle(now);
  if (checkpoint_seen_) {
    of(Bucket::Running) -= uncovered_.running;
    of(Bucket::Productive) -= uncovered_.productive;
    of(Bucket::Lost) += uncovered_.running + uncovered_.productive;
  } else if (uncovered_.running + uncovered_.productive > Duration::zero()) {
    loss_known_ = false;
  }
  uncovered_ = {};
  forget_marks();
  current_ = Bucket::Restart;
}

void Ledger::rebook(Bucket from, Bucket to, Duration time, TimePoint now) {
  settle(now);
  const Duration moved = std::clamp(time, Duration::zero(), of(from));
  of(from) -= moved;
  of(to) += moved;
}

std::optional<double> Ledger::Summary::goodput() const {
  return steps_known() && loss_known ? std::optional(goodput_at_most()) : std::nullopt;
}

double Ledger::Summary::goodput_at_most() const {
  if (elapsed <= Duration::zero()) return 0;
  const auto good = of(steps_known() ? Bucket::Productive : Bucket::Running);
  return static_cast<double>(good.count()) / static_cast<double>(elapsed.count());
}

Ledger::Summary Ledger::summary(TimePoint now) const {
  Ledger copy = *this;
  copy.settle(now);
  return {copy.last_ - start_, copy.buckets_, restarts_, last_step_, last_checkpoint_, loss_known_};
}

}  // namespace elastrun::goodput
