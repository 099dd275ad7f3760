// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/work_counts.hpp"

namespace elastrun::goodput {
namespace {

// A number that jumps further does not count steps that were done.
constexpr std::uint64_t kFarthestStep = 1 << 20;

}  // namespace

std::optional<Duration> WorkCounts::mean_save() const {
  return saves > 0 ? std::optional(saving / saves) : std::nullopt;
}

std::optional<Duration> WorkCounts::mean_step() const {
  return steps > 0 ? std::optional(stepping / steps) : std::nullopt;
}

std::optional<double> WorkCounts::checkpoint_interval() const {
  const auto all = checkpoints > 0 ? checkpoints : saves;
  if (all == 0 || steps == 0) return std::nullopt;
  return static_cast<double>(steps) / static_cast<double>(all);
}

void WorkCounter::start() {
  last_step_.reset();
  last_checkpoint_.reset();
  since_step_ = {};
  saved_ = true;
  failed_ = hangs_ = false;
}

void WorkCounter::failed() {
  if (failed_) return;
  failed_ = true;
  ++counts_.failures;
}

void WorkCounter::passed(Bucket bucket, Duration time) {
  // What comes before the first step of a start says nothing about the pace.
  if (!last_step_) return;
  if (bucket == Bucket::Running || bucket == Bucket::DataLoading) since_step_ += time;
  if (bucket == Bucket::Checkpoint) counts_.saving += time;
}

/// What comes before the first step of a start is loading.
void WorkCounter::save_begins() {
  if (!last_step_ || saved_) return;
  saved_ = true;
  ++counts_.saves;
}

void WorkCounter::step(std::int64_t number) {
  if (last_step_ && number > *last_step_ && !hangs_) {
    const auto done = static_cast<std::uint64_t>(number) - static_cast<std::uint64_t>(*last_step_);
    if (done <= kFarthestStep) {
      counts_.steps += static_cast<std::int64_t>(done);
      counts_.stepping += since_step_;
    }
  }
  if (last_step_ == number) return;  // it was told already
  last_step_ = number;
  since_step_ = {};
  saved_ = hangs_ = false;
}

void WorkCounter::checkpoint(std::optional<std::int64_t> number) {
  if (number && number == last_checkpoint_) return;
  last_checkpoint_ = number;
  ++counts_.checkpoints;
}

}  // namespace elastrun::goodput
