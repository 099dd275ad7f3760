// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// How a job that must go saves before that (elastrun-preemption(7)): all nodes are asked how far
/// their workers are, and told one step to save at which none has done yet, so that ranks agree
/// without talking to each other. It is over when rank 0, or every rank, has saved, at the latest
/// at the deadline. Pure: what is to be told to whom piles up until `take`.
class Preemption {
 public:
  /// For the answers of all nodes. Those that come later are not waited for.
  static constexpr Duration kTimeToAnswer = std::chrono::milliseconds(500);
  /// Of it a node looks for so long at the steps that its workers do now.
  static constexpr Duration kPaceLook = std::chrono::milliseconds(20);
  /// How long news may be on the way to a worker, which must not do that step meanwhile: so many
  /// times what the answers took beyond that look, there and back, within these bounds.
  static constexpr int kTimesAnswer = 4;
  static constexpr Duration kShortestNews = std::chrono::milliseconds(30);
  static constexpr Duration kLongestNews = std::chrono::seconds(1);

  /// `all`: every rank is to save, not only rank 0.
  explicit Preemption(bool all = false) : all_(all) {}

  /// A member of a round that is given out. The first one of a new round forgets the last one.
  void assigned(Peer peer, std::int64_t round, int group_rank) {
    if (round != round_) members_.clear();
    round_ = round;
    members_[peer] = {group_rank};
  }
  void gone(Peer peer, TimePoint now) {
    if (members_.erase(peer) == 0 || !asked_) return;
    if (members_.empty()) over_ = true;
    tick(now);
    look_whether_saved();
  }
  /// The first one counts; a later one may only shorten the time. False: it was not the first.
  bool ask(const std::string& why, Duration deadline, TimePoint now) {
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
  void says(Peer peer, const Reached& reached, TimePoint now) {
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
  void tick(TimePoint now) {
    if (!asked_ || over_) return;
    if (now >= until_) over_ = true;
    if (!over_ && !target_ && now >= asked_at_ + kTimeToAnswer) choose(now);
  }

  bool is_asked() const { return asked_; }
  /// Once: the job is to end now.
  bool take_over() { return over_ && !std::exchange(told_over_, true); }
  /// "preempted (SIGTERM): saved at step 12"; what is not so is not said.
  std::string text() const {
    std::string text = cause().text;
    if (!failure_.second.empty()) return text;
    if (!saved_) return text + " without a checkpoint";
    if (checkpoint_ < 0) return text + ": saved";
    return text + fmt::format(": saved at step {}", checkpoint_);
  }
  /// Of the end that it asks for: "preempted (SIGTERM)", and who failed to save: "preempted
  /// (SIGTERM), but rank 0 failed to save: it ended with exit code 1".
  Cause cause() const {
    const auto& failure = failure_.second;
    return {
        .kind = Cause::Kind::Preempted,
        .text = fmt::format("preempted ({}){}{}", why_, failure.empty() ? "" : ", but ", failure)};
  }
  std::optional<TimePoint> deadline() const {  // of `tick`
    if (!asked_ || over_) return std::nullopt;
    return target_ ? until_ : std::min(until_, asked_at_ + kTimeToAnswer);
  }
  using Told = std::vector<std::pair<Peer, std::shared_ptr<const Push>>>;
  Told take() { return std::exchange(told_, {}); }

 private:
  struct Member {
    int group_rank = 0;
    std::optional<Reached> reached{};
  };
  void tell_all(Push push) {
    const auto shared = std::make_shared<const Push>(std::move(push));
    for (const auto& [peer, member] : members_) told_.emplace_back(peer, shared);
  }
  // The highest step that any worker has done, and as many more as may be done until all know.
  void choose(TimePoint now) {
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
    const bool some_look = std::ranges::any_of(members_, [](const auto& each) {
      return each.second.reached && each.second.reached->looks;
    });
    tell_all(SaveAt{*target_, std::max(until_ - now, Duration::zero()), !some_look});
  }
  void look_whether_saved() {
    if (!target_ || members_.empty()) return;
    const auto has_saved = [](const auto& each) {
      return each.second.reached && each.second.reached->saved;
    };
    const auto first = std::ranges::find_if(
        members_, [](const auto& each) { return each.second.group_rank == 0; });
    const bool enough = all_ || first == members_.end() ? std::ranges::all_of(members_, has_saved)
                                                        : has_saved(*first);
    if (!enough || !failure_.second.empty()) return;
    saved_ = over_ = true;
  }

  const bool all_;
  std::map<Peer, Member> members_;
  std::int64_t round_ = 0;
  bool asked_ = false, over_ = false, told_over_ = false, saved_ = false;
  std::string why_;
  TimePoint asked_at_, until_;
  std::optional<std::int64_t> target_;  // told
  std::int64_t checkpoint_ = -1;
  std::pair<int, std::string> failure_;  // of the lowest group rank that told one
  Told told_;
};

}  // namespace elastrun::rendezvous
