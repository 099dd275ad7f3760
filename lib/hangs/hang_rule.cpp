// SPDX-License-Identifier: Apache-2.0

#include "hangs/hang_rule.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::hangs {

void Excuses::open(int rank, const std::string& what, TimePoint now) {
  const auto open =
      std::ranges::count_if(all_, [rank](const auto& one) { return is_open(one.first, rank); });
  if (std::cmp_greater_equal(open, kMostOpen)) return;
  // The first begin counts: the same begin told again does not make the excuse longer.
  all_.try_emplace({true, rank, what}, Excuse{rank, what, now, learnt(what)});
}

bool Excuses::close(const Key& key, TimePoint now) {
  const auto found = all_.find(key);
  if (found == all_.end()) return false;
  const auto& excuse = found->second;
  // The names are the workers', who may invent one after the other.
  if (longest_.size() < kMostNames || longest_.contains(excuse.what)) {
    auto& longest = longest_[excuse.what];
    longest = std::max(longest, now - excuse.since);
  }
  all_.erase(found);
  return true;
}

std::optional<TimePoint> Excuses::next_end(TimePoint now) const {
  std::optional<TimePoint> next;
  for (const auto& [_, one] : all_) {
    if (now < one.end()) next = std::min(next.value_or(one.end()), one.end());
  }
  return next;
}

std::vector<Excuses::Excuse> Excuses::overdue(TimePoint now) const {
  std::vector<Excuse> over;
  for (const auto& [_, one] : all_) {
    if (now >= one.end()) over.push_back(one);
  }
  return over;
}

namespace {

constexpr Duration kLongestLook = std::chrono::seconds(15);
// A limit of milliseconds must not make the looks a busy loop.
constexpr Duration kShortestLook = std::chrono::milliseconds(50);

}  // namespace

void HangRule::begin(TimePoint now) {
  running_ = true;
  group_steps_ = counts_steps_ = false;
  progress_at_ = looked_at_ = now;
  stopped_since_.reset();
  last_steps_.clear();
  excuses_.clear();
}

void HangRule::step(int rank, TimePoint now) {
  if (!running_) return;
  seen_step(rank, now);
  counts_steps_ = true;
}

void HangRule::seen_step(int rank, TimePoint now) {
  if (!running_) return;
  closed_all(rank, now);
  // After the line above, which forgets the last steps where something was open: otherwise the time
  // of a save would be learnt as that of a step.
  const auto [last, first] = last_steps_.try_emplace(rank, now);
  if (!first) pace_.learn(now - std::exchange(last->second, now));
  pace_.count_step();
  group_steps_ = true;
  progressed(now);
}

void HangRule::checkpoint(TimePoint now) {
  // What was saved lies between two steps, whose time says nothing then.
  last_steps_.clear();
  progressed(now);
}

void HangRule::phase(int rank, std::string_view name, std::optional<Duration> at_most,
                     TimePoint now) {
  if (!running_) return;
  last_steps_.clear();  // the others wait for this one
  if (name == kTraining || name.empty()) {
    excuses_.train(rank, now);
  } else {
    excuses_.phase(rank, fmt::format("in the phase '{}'", name), at_most, now);
  }
  progressed(now);
}

void HangRule::opened(int rank, const std::string& what, TimePoint now) {
  if (!running_) return;
  last_steps_.clear();
  excuses_.open(rank, what, now);
  progressed(now);
}

void HangRule::closed(int rank, const std::string& what, TimePoint now) {
  progressed(now);
  if (excuses_.close(rank, what, now)) last_steps_.clear();
}

void HangRule::closed_all(int rank, TimePoint now) {
  if (!excuses_.close_all(rank)) return;
  last_steps_.clear();
  progressed(now);
}

void HangRule::ended(int rank, TimePoint now) {
  closed_all(rank, now);
  if (excuses_.in_phase(rank)) phase(rank, kTraining, {}, now);
}

void HangRule::wrote(TimePoint now) {
  // Threads beside the one that hangs may go on to write: where a script reports its steps, output
  // proves nothing.
  if (!counts_steps_) progressed(now);
}

void HangRule::looked(bool any_stopped, TimePoint now) {
  if (any_stopped && !stopped_since_) stopped_since_ = now;
  if (waits_for_stopped(now)) {
    // Those that go on after that have the time that they had left.
    progress_at_ = std::min(now, progress_at_ + (now - std::max(looked_at_, progress_at_)));
    last_steps_.clear();
  }
  if (!any_stopped) stopped_since_.reset();
  looked_at_ = now;
}

bool HangRule::waits_for_stopped(TimePoint now) const {
  if (!stopped_since_) return false;
  const auto limit = this->limit();
  return !limit || now - *stopped_since_ < kOfStopped * *limit;
}

/// Takes the newer time: workers' reports may be older than what was seen of them.
std::optional<Duration> HangRule::limit() const {
  if (!is_known()) return std::nullopt;
  if (timeout_.kind != HangTimeout::Kind::Fixed) return pace_.limit();
  return waits_for_first_step() ? kFirstStep * timeout_.limit : timeout_.limit;
}

/// Learns from steps only; a node that has learnt nothing has no say.
std::optional<NodeProgress> HangRule::progress(TimePoint now) const {
  if (!is_running()) return std::nullopt;
  if (is_excused(now)) return NodeProgress{NodeProgress::Kind::Excused, by_steps()};
  const auto limit = this->limit();
  if (!limit) return std::nullopt;
  const bool stands = standing(now) >= *limit;
  return NodeProgress{stands ? NodeProgress::Kind::Stands : NodeProgress::Kind::Moves, by_steps()};
}

TimePoint HangRule::next_look(TimePoint now) const {
  const auto limit = this->limit();
  if (!limit) return now + kLongestLook;
  auto next = now + std::clamp<Duration>(*limit / 4, kShortestLook, kLongestLook);
  const auto sooner = [&](TimePoint then) {
    // What lies in the past is decided already, and would make the looks a busy loop.
    if (now < then) next = std::min(next, then);
  };
  sooner(progress_at_ + *limit);
  if (const auto end = excuses_.next_end(now)) sooner(*end);
  if (stopped_since_) sooner(*stopped_since_ + kOfStopped * *limit);
  return next;
}

}  // namespace elastrun::hangs
