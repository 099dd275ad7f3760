// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/rules.hpp"

#include <algorithm>
#include <optional>

namespace elastrun::rendezvous {

/// The nodes of a round that is being formed, by number.
struct Quorum {
  int returning = 0;        // waiting, members of the round before
  int fresh = 0;            // waiting, all others
  int stopping = 0;         // members of the round before that are still about to come back
  int previous_size = 0;    // of the round before; 0: there was none
  bool succession = false;  // the round before was another coordinator's, who may have died with it
};

/// When a round may be closed. Pure: counts and times in, answer out.
class JoinPhase {
 public:
  /// A new round is being formed from now on; the wait for its minimum ends at now + join_timeout.
  void begin(TimePoint now);
  /// Adds a time in which no agent could come, because this machine stood still.
  void stand_still(Duration time) { since_ += time; }
  /// A member that is still to come back has stopped its group by then.
  void extend(TimePoint stopped_by) { stopped_by_ = std::max(stopped_by_, stopped_by); }
  /// Takes note of who is there; starts or forgets the last call.
  void update(const Rules& rules, const Quorum& quorum, TimePoint now);
  bool may_close(const Rules& rules, const Quorum& quorum, TimePoint now) const;
  /// The end of the wait. While a group is being stopped, not before its grace is over:
  /// what it saves must not be read or written by another world.
  TimePoint given_up(const Rules& rules, const Quorum& quorum) const;
  bool timed_out(const Rules& rules, const Quorum& quorum, TimePoint now) const {
    return now >= given_up(rules, quorum);
  }
  /// When asking again is worthwhile although nothing happened.
  TimePoint deadline(const Rules& rules, const Quorum& quorum) const;
  TimePoint since() const { return since_; }
  /// End of the last call, if one runs.
  std::optional<TimePoint> last_call(const Rules& rules) const;

 private:
  TimePoint since_, stopped_by_;
  std::optional<TimePoint> enough_since_;
};

/// How many nodes the round would have if it were closed now. Places of members that are still to
/// come back are not given away.
int candidates(const Rules& rules, const Quorum& quorum);

}  // namespace elastrun::rendezvous
