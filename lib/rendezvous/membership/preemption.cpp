// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/preemption.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::rendezvous {

void Preemption::assigned(Peer peer, std::int64_t round, int group_rank) {
  if (round != round_) members_.clear();
  round_ = round;
  members_[peer] = {group_rank};
}

void Preemption::gone(Peer peer, TimePoint now) {
  if (members_.erase(peer) == 0 || !asked_) return;
  if (members_.empty()) over_ = true;
  tick(now);
  look_whether_saved();
}

bool Preemption::ask(const std::string& why, Duration deadline, TimePoint now) {
  const TimePoint until = now + std::clamp<Duration>(deadline, Duration::zero(), kLongestGrace);
  if (asked_) {
    until_ = std::min(until_, until);
    tick(now);
    return false;
  }
  asked_ = true;
  why_ = why;
  asked_at_ = now, until_ = until;
  if (members_.empty()) over_ = true;
  tell_all(AskReached{why, deadline});
  return true;
}

void Preemption::says(Peer peer, const Reached& reached, TimePoint now) {
  const auto member = members_.find(peer);
  if (member == members_.end() || reached.round != round_ || !asked_) return;
  const bool saved = reached.saved || (member->second.reached && member->second.reached->saved);
  member->second.reached = reached;
  member->second.reached->saved = saved;
  const int group_rank = member->second.group_rank;
  if (!reached.failure.empty() && (failure_.second.empty() || group_rank < failure_.first)) {
    failure_ = {group_rank, reached.failure};
  }
  if (saved) checkpoint_ = std::max(checkpoint_, reached.checkpoint);
  const bool all_answered = std::ranges::all_of(
      members_, [](const auto& each) { return each.second.reached.has_value(); });
  if (!target_ && all_answered) choose(now);
  look_whether_saved();
}

// The highest step that any worker has done, and as many more as may be done until all know.
void Preemption::choose(TimePoint now) {
  std::int64_t highest = -1;
  Duration pace{};
  for (const auto& [peer, member] : members_) {
    if (!member.reached) continue;
    highest = std::max(highest, member.reached->step);
    if (member.reached->step < 0 || member.reached->pace <= Duration::zero()) continue;
    pace = pace == Duration::zero() ? member.reached->pace : std::min(pace, member.reached->pace);
  }
  target_ = -1;
  if (highest >= 0 && highest < INT64_MAX / 2) {
    // A network on which answers are slow delays the news, too; on a fast one each step more than
    // is needed is time that the deadline may lack.
    const Duration news = std::clamp<Duration>((now - asked_at_ - kPaceLook) * kTimesAnswer,
                                               kShortestNews, kLongestNews);
    const std::int64_t meanwhile = pace > Duration::zero() ? (news + pace) / pace : 1;
    target_ = highest + 1 + std::min<std::int64_t>(meanwhile, 1'000'000);
  }
  // Where one rank asks, a signal would end others before it has saved.
  const bool some_look = std::ranges::any_of(
      members_, [](const auto& each) { return each.second.reached && each.second.reached->looks; });
  tell_all(SaveAt{*target_, std::max(until_ - now, Duration::zero()), !some_look});
}

void Preemption::look_whether_saved() {
  if (!target_ || members_.empty()) return;
  const auto has_saved = [](const auto& each) {
    return each.second.reached && each.second.reached->saved;
  };
  const auto first =
      std::ranges::find_if(members_, [](const auto& each) { return each.second.group_rank == 0; });
  const bool enough = all_ || first == members_.end() ? std::ranges::all_of(members_, has_saved)
                                                      : has_saved(*first);
  if (!enough || !failure_.second.empty()) return;
  saved_ = over_ = true;
}

void Preemption::tick(TimePoint now) {
  if (!asked_ || over_) return;
  if (now >= until_) over_ = true;
  if (!over_ && !target_ && now >= asked_at_ + kTimeToAnswer) choose(now);
}

std::optional<TimePoint> Preemption::deadline() const {
  if (!asked_ || over_) return std::nullopt;
  return target_ ? until_ : std::min(until_, asked_at_ + kTimeToAnswer);
}

Cause Preemption::cause() const {
  const auto& failure = failure_.second;
  return {
      .kind = Cause::Kind::Preempted,
      .text = fmt::format("preempted ({}){}{}", why_, failure.empty() ? "" : ", but ", failure)};
}

std::string Preemption::text() const {
  std::string text = cause().text;
  if (!failure_.second.empty()) return text;
  if (!saved_) return text + " without a checkpoint";
  if (checkpoint_ < 0) return text + ": saved";
  return text + fmt::format(": saved at step {}", checkpoint_);
}

void Preemption::tell_all(Push push) {
  const auto shared = std::make_shared<const Push>(std::move(push));
  for (const auto& [peer, member] : members_) told_.emplace_back(peer, shared);
}

}  // namespace elastrun::rendezvous
