// SPDX-License-Identifier: Apache-2.0
#include "hangs/excuses.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::hangs {

Duration Excuses::learnt(const std::string& what) const {
  const auto found = longest_.find(what);
  return found == longest_.end() ? kFirst : std::max(kShortest, kOfLongest * found->second);
}

void Excuses::learn(const Excuse& excuse, TimePoint now) {
  // The names are the workers', who may invent one after the other.
  if (longest_.size() >= kMostNames && !longest_.contains(excuse.what)) return;
  auto& longest = longest_[excuse.what];
  longest = std::max(longest, now - excuse.since);
}

void Excuses::phase(int rank, const std::string& what, std::optional<Duration> at_most,
                    TimePoint now) {
  // The phase before ends with it, and its time is learnt.
  train(rank, now);
  phases_.insert_or_assign(rank, Excuse{rank, what, now, at_most.value_or(learnt(what))});
}

void Excuses::train(int rank, TimePoint now) {
  const auto found = phases_.find(rank);
  if (found == phases_.end()) return;
  learn(found->second, now);
  phases_.erase(found);
}

void Excuses::open(int rank, const std::string& what, TimePoint now) {
  auto& open = open_[rank];
  // The first begin counts: the same begin told again does not make the excuse longer.
  if (open.size() < kMostOpen) open.try_emplace(what, Excuse{rank, what, now, learnt(what)});
}

bool Excuses::close(int rank, const std::string& what, TimePoint now) {
  const auto open = open_.find(rank);
  if (open == open_.end()) return false;
  const auto found = open->second.find(what);
  if (found == open->second.end()) return false;
  learn(found->second, now);
  open->second.erase(found);
  if (open->second.empty()) open_.erase(open);
  return true;
}

void Excuses::clear() {
  phases_.clear();
  open_.clear();
}

template <class Call>
void Excuses::each(Call call) const {
  for (const auto& [rank, one] : phases_) call(one);
  for (const auto& [rank, all] : open_) {
    for (const auto& [what, one] : all) call(one);
  }
}

bool Excuses::any(TimePoint now) const {
  return next_end(now).has_value();
}

std::optional<TimePoint> Excuses::next_end(TimePoint now) const {
  std::optional<TimePoint> next;
  each([&](const Excuse& one) {
    if (now < one.end()) next = std::min(next.value_or(one.end()), one.end());
  });
  return next;
}

std::vector<Excuses::Excuse> Excuses::overdue(TimePoint now) const {
  std::vector<Excuse> over;
  each([&](const Excuse& one) {
    if (now >= one.end()) over.push_back(one);
  });
  return over;
}

}  // namespace elastrun::hangs
