// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <deque>

namespace elastrun::rendezvous {

/// A member's proof that its coordinator still counts on it. Pure. Proof is as old as the heartbeat
/// that was answered, not as the answer: an answer that the network has kept for a minute proves
/// nothing of that minute. So when a coordinator replaces a silent member, after `silence` without
/// a word from it, the member has stopped its group by itself not later than one heartbeat interval
/// after that.
class HeartbeatLease {
 public:
  /// The other side has been greeted at `proof`, and has answered.
  void begin(TimePoint proof, Duration heartbeat, int heartbeats_missed) {
    proof_ = proof;
    heartbeat_ = heartbeat;
    silence_ = heartbeat * heartbeats_missed;
    unanswered_.clear();
  }
  void sent(TimePoint now) { unanswered_.push_back(now); }
  void answered() {
    if (unanswered_.empty()) return;
    proof_ = unanswered_.front();
    unanswered_.pop_front();
  }

  TimePoint end() const { return proof_ + silence_ + heartbeat_; }
  bool is_over(TimePoint now) const { return now >= end(); }
  TimePoint next_heartbeat(TimePoint now) const { return std::min(now + heartbeat_, end()); }
  Duration silence() const { return silence_; }

 private:
  TimePoint proof_;
  Duration heartbeat_ = std::chrono::seconds(5), silence_ = std::chrono::seconds(15);
  std::deque<TimePoint> unanswered_;
};

}  // namespace elastrun::rendezvous
