// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <optional>

namespace elastrun::rendezvous {

/// What a job asks of its rendezvous. Times are torchrun's keys of --rdzv-conf.
struct Rules {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  bool fixed_ranks = false;  // static: exactly max_nodes, each with its own node rank
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call_timeout = std::chrono::seconds(30);
  /// How long newcomers of a running world are collected before it is stopped for them. Its
  /// training goes on meanwhile; without it ten nodes booting at once would cost ten restarts.
  Duration growth_delay = std::chrono::seconds(1);
  /// How long the last failure waits for what other nodes saw at the same moment, so that each
  /// reports its own workers. Well below the 100 ms in which all groups must be told to stop.
  Duration verdict_window = std::chrono::milliseconds(50);
  /// How long it takes a member at most to notice that it was lost, or is to stop. Given by the
  /// coordinator, which knows how often it hears from its members.
  Duration reaction{};
  /// After how long without a word of its coordinator a member stops its group at the latest.
  Duration silence{};
  /// Whether an agent hosts the coordinator. One that stands alone may be begun again, and has
  /// nobody to tell it of the world that was before but those who come.
  bool hosted = true;
  /// How often those who wait hear who is missing.
  Duration progress_interval = std::chrono::seconds(5);
};

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
  /// For so long nobody could come, because this machine stood still.
  void stand_still(Duration time) { since_ += time; }
  /// A member that is still to come back has stopped its group by then.
  void extend(TimePoint stopped_by) { stopped_by_ = std::max(stopped_by_, stopped_by); }
  /// Takes note of who is there; starts or forgets the last call.
  void update(const Rules& rules, const Quorum& quorum, TimePoint now);
  bool may_close(const Rules& rules, const Quorum& quorum, TimePoint now) const;
  /// The end of the wait. While somebody's group is being stopped, not before its grace is over:
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
