// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <deque>
#include <optional>

namespace elastrun::rendezvous {

/// A member's proof that its coordinator still counts on it. Pure. Proof is as old as the heartbeat
/// that was answered, not as the answer: an answer that the network has kept for a minute proves
/// nothing of that minute. So when a coordinator replaces a silent member, after `silence` without
/// a word from it, the member has stopped its group by itself not later than two heartbeat
/// intervals after that.
///
/// The second one is for a member that was paused, which finds its proof too old when it wakes:
/// perhaps everybody was paused, so it asks once, and waits one interval for the answer. If it was
/// replaced meanwhile, it hears that instead. While it sleeps nothing bounds what workers do that
/// do not sleep with it.
class HeartbeatLease {
 public:
  enum class Look {
    Sound,
    Ask,      // we were paused: a heartbeat must be sent now, then `sent`
    Waiting,  // for the answer to that
    Over,
  };

  /// The other side has been greeted at `proof`, and has answered.
  void begin(TimePoint proof, Duration heartbeat, int heartbeats_missed) {
    proof_ = proof;
    heartbeat_ = heartbeat;
    silence_ = heartbeat * heartbeats_missed;
    unanswered_.clear();
    answer_until_ = {};
    due_.reset();
  }
  void sent(TimePoint now) { unanswered_.push_back(now); }
  void answered() {
    if (unanswered_.empty()) return;
    proof_ = unanswered_.front();
    unanswered_.pop_front();
  }
  /// All that was sent.
  bool is_answered() const { return unanswered_.empty(); }

  /// To be asked when the alarm rings for which `next_look` was the time, and at each word.
  Look look(TimePoint now) {
    const bool paused = due_ && now - *due_ > heartbeat_;
    if (paused) due_ = answer_until_ = now + heartbeat_;
    if (!is_over(now)) return Look::Sound;
    if (paused) return Look::Ask;
    return now < answer_until_ ? Look::Waiting : Look::Over;
  }
  /// When to look again, at the latest; if it is sound then, the next heartbeat is to be sent.
  TimePoint next_look(TimePoint now) {
    due_ = is_over(now) ? std::max(end(), answer_until_) : std::min(now + heartbeat_, end());
    return *due_;
  }

  TimePoint end() const { return proof_ + silence_ + heartbeat_; }
  bool is_over(TimePoint now) const { return now >= end(); }
  Duration silence() const { return silence_; }

 private:
  TimePoint proof_;
  Duration heartbeat_ = std::chrono::seconds(5), silence_ = std::chrono::seconds(15);
  std::deque<TimePoint> unanswered_;
  std::optional<TimePoint> due_;  // none: it is not looked at
  TimePoint answer_until_;
};

}  // namespace elastrun::rendezvous
