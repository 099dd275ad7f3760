// SPDX-License-Identifier: Apache-2.0
#include "hangs/hang_rule.hpp"

#include <algorithm>

namespace elastrun::hangs {
namespace {

constexpr int kOfMedian = 10, kOfLongest = 3;
constexpr std::size_t kMostOpen = 64;  // of one worker
constexpr Duration kLongestLook = std::chrono::seconds(15);
constexpr Duration kShortestLook = std::chrono::milliseconds(50);

}  // namespace

void HangRule::begin(TimePoint now) {
  running_ = true;
  stopped_ = group_steps_ = counts_steps_ = false;
  progress_at_ = looked_at_ = now;
  last_steps_.clear();
  phases_.clear();
  open_.clear();
}

void HangRule::step(int rank, TimePoint now) {
  if (!running_) return;
  seen_step(rank, now);
  counts_steps_ = true;
}

void HangRule::seen_step(int rank, TimePoint now) {
  if (!running_) return;
  closed_all(rank, now);
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

void HangRule::opened(int rank, const std::string& what, TimePoint now) {
  if (!running_) return;
  last_steps_.clear();
  auto& open = open_[rank];
  if (open.size() < kMostOpen) open.insert(what);
  progressed(now);
}

void HangRule::closed(int rank, const std::string& what, TimePoint now) {
  progressed(now);
  const auto open = open_.find(rank);
  if (open == open_.end() || open->second.erase(what) == 0) return;
  last_steps_.clear();
  if (open->second.empty()) open_.erase(open);
}

void HangRule::closed_all(int rank, TimePoint now) {
  if (open_.erase(rank) == 0) return;
  last_steps_.clear();
  progressed(now);
}

void HangRule::ended(int rank, TimePoint now) {
  closed_all(rank, now);
  if (phases_.contains(rank)) phase(rank, kTraining, now);
}

void HangRule::wrote(TimePoint now) {
  if (!counts_steps_) progressed(now);
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

/// What workers say may be older than what was seen of them.
void HangRule::progressed(TimePoint now) {
  progress_at_ = std::max(progress_at_, now);
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

/// What is learnt is learnt from steps; a node that has learnt nothing has no say.
bool HangRule::by_steps() const {
  return counts_steps_ || (group_steps_ && timeout_.kind == HangTimeout::Kind::Auto);
}

std::optional<NodeProgress> HangRule::progress(TimePoint now) const {
  if (!is_running()) return std::nullopt;
  if (is_excused()) return NodeProgress{NodeProgress::Kind::Excused, by_steps()};
  const auto limit = this->limit();
  if (!limit) return std::nullopt;
  const bool stands = standing(now) >= *limit;
  return NodeProgress{stands ? NodeProgress::Kind::Stands : NodeProgress::Kind::Moves, by_steps()};
}

Duration HangRule::look_interval() const {
  const auto limit = this->limit();
  return limit ? std::clamp<Duration>(*limit / 4, kShortestLook, kLongestLook) : kLongestLook;
}

}  // namespace elastrun::hangs
