// SPDX-License-Identifier: Apache-2.0
#include "hangs/hang_rule.hpp"

#include <algorithm>

namespace elastrun::hangs {
namespace {

constexpr int kOfMedian = 10, kOfLongest = 3;
constexpr Duration kLongestLook = std::chrono::seconds(15);
constexpr Duration kShortestLook = std::chrono::milliseconds(50);

}  // namespace

void HangRule::begin(TimePoint now) {
  running_ = true;
  stopped_ = group_steps_ = false;
  progress_at_ = looked_at_ = now;
  last_steps_.clear();
  phases_.clear();
}

void HangRule::step(int rank, TimePoint now) {
  if (!running_) return;
  const auto [last, first] = last_steps_.try_emplace(rank, now);
  if (!first) learn(now - std::exchange(last->second, now));
  ++steps_;
  group_steps_ = true;
  progressed(now);
}

void HangRule::checkpoint(TimePoint now) {
  // What was saved lies between two steps, whose time says nothing then.
  last_steps_.clear();
  progressed(now);
}

void HangRule::phase(int rank, std::string_view name, TimePoint now) {
  if (!running_) return;
  last_steps_.clear();  // the others wait for this one
  name == kTraining || name.empty() ? void(phases_.erase(rank))
                                    : void(phases_.insert_or_assign(rank, std::string(name)));
  progressed(now);
}

void HangRule::wrote(TimePoint now) {
  if (!group_steps_) progressed(now);
}

void HangRule::looked(bool any_stopped, TimePoint now) {
  if (any_stopped || stopped_) {
    // Whoever goes on after that has the time that it had left.
    progress_at_ = std::min(now, progress_at_ + (now - std::max(looked_at_, progress_at_)));
    last_steps_.clear();
  }
  stopped_ = any_stopped;
  looked_at_ = now;
}

void HangRule::progressed(TimePoint now) {
  progress_at_ = now;
}

void HangRule::learn(Duration step) {
  if (times_.size() < kRemembered) return times_.push_back(step);
  times_[next_] = step;
  next_ = (next_ + 1) % kRemembered;
}

std::optional<Duration> HangRule::limit() const {
  using Kind = HangTimeout::Kind;
  if (timeout_.kind == Kind::Fixed) {
    return expects_steps_ && !group_steps_ ? kFirstStep * timeout_.limit : timeout_.limit;
  }
  const bool known = group_steps_ && steps_ >= kStepsToLearn && !times_.empty();
  if (timeout_.kind == Kind::Off || !known) return std::nullopt;
  auto times = times_;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  const Duration longest = *std::ranges::max_element(times);
  return std::max({kShortest, kOfMedian * *middle, kOfLongest * longest});
}

std::optional<NodeProgress> HangRule::progress(TimePoint now) const {
  if (!is_running()) return std::nullopt;
  if (!phases_.empty() || stopped_) return NodeProgress{NodeProgress::Kind::Excused, group_steps_};
  const auto limit = this->limit();
  if (!limit) return std::nullopt;
  const bool stands = standing(now) >= *limit;
  return NodeProgress{stands ? NodeProgress::Kind::Stands : NodeProgress::Kind::Moves,
                      group_steps_};
}

Duration HangRule::look_interval() const {
  const auto limit = this->limit();
  return limit ? std::clamp<Duration>(*limit / 4, kShortestLook, kLongestLook) : kLongestLook;
}

}  // namespace elastrun::hangs
