// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <cstdint>
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
  void assigned(Peer peer, std::int64_t round, int group_rank);
  void gone(Peer peer, TimePoint now);
  /// The first one counts; a later one may only shorten the time. False: it was not the first.
  bool ask(const std::string& why, Duration deadline, TimePoint now);
  void says(Peer peer, const Reached& reached, TimePoint now);
  void tick(TimePoint now);

  bool is_asked() const { return asked_; }
  /// Once: the job is to end now.
  bool take_over() { return over_ && !std::exchange(told_over_, true); }
  /// "preempted (SIGTERM): saved at step 12"; what is not so is not said.
  std::string text() const;
  /// Of the end that it asks for: "preempted (SIGTERM)", and who failed to save: "preempted
  /// (SIGTERM), but rank 0 failed to save: it ended with exit code 1".
  Cause cause() const;
  std::optional<TimePoint> deadline() const;  // of `tick`
  using Told = std::vector<std::pair<Peer, std::shared_ptr<const Push>>>;
  Told take() { return std::exchange(told_, {}); }

 private:
  struct Member {
    int group_rank = 0;
    std::optional<Reached> reached{};
  };
  void tell_all(Push push);
  void choose(TimePoint now);
  void look_whether_saved();

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
