// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/agreed_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace elastrun::spec {
struct JobSpec;
}

namespace elastrun::rendezvous {

/// What a job asks of its rendezvous. Times are torchrun's keys of --rdzv-conf. What is described
/// below goes to the coordinator, under its name.
struct Rules : spec::AgreedRules {
  bool fixed_ranks = false;  // static: exactly max_nodes, each with its own node rank
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call_timeout = std::chrono::seconds(30);

  // From here on each coordinator has its own.
  /// How long newcomers of a running world are collected before it is stopped for them. Its
  /// training goes on meanwhile; without it ten nodes booting at once would cost ten restarts.
  Duration growth_delay = std::chrono::seconds(1);
  /// How long the last failure waits for what other nodes saw at the same moment, so that each
  /// reports its own workers. Well below the 100 ms in which all groups must be told to stop.
  Duration verdict_window = std::chrono::milliseconds(50);
  /// How long a failure that blames a peer waits for that peer's own one: the victim's process may
  /// end before the culprit's has.
  Duration culprit_wait = std::chrono::seconds(3);
  /// How long it takes a member at most to notice that it was lost, or is to stop. Given by the
  /// coordinator, which knows how often it hears from its members.
  Duration reaction{};
  /// After how long without a word of its coordinator a member stops its group at the latest.
  Duration silence{};
  /// Whether an agent hosts the coordinator. A standalone one may be restarted, and learns of the
  /// previous world only from the agents that come.
  bool hosted = true;
  /// How often those who wait hear who is missing.
  Duration progress_interval = std::chrono::seconds(5);
};
BOOST_DESCRIBE_STRUCT(Rules, (spec::AgreedRules), (fixed_ranks, join_timeout, last_call_timeout))

/// Those of a job.
Rules rules_of(const spec::JobSpec& job);

/// How this node is to meet the others, as the job's options say, checked and merged.
struct SessionSettings {
  std::string backend{spec::backend::kC10d};  // static, c10d, etcd, etcd-v2, file
  std::string endpoint{};                     // as --rdzv-endpoint, or MASTER_ADDR:MASTER_PORT
  std::string run_id = "none";
  std::string start{};  // which start of the job, as the scheduler tells; may be empty
  Rules rules{};        // rules_of() the job
  /// Given to every round; empty and 0: the address and the store's port of group rank 0.
  std::string master_addr{};
  std::uint16_t master_port = 0;
  int node_rank = 0;                // static only
  Duration grace{};                 // Node::grace, alike on all nodes
  std::string local_addr{};         // --local-addr
  spec::RendezvousConfig config{};  // --rdzv-conf
  std::string secret{};             // ELASTRUN_SECRET; secret_file of `config` wins
  /// Without a secret: by MUNGE, if it is installed. Under Slurm its nodes have it.
  bool try_munge = false;
  pid_t guardian = 0;  // of this process; 0: there is none

  /// After which the group of a member that does not hear its coordinator has ended (see
  /// HeartbeatLease).
  Duration time_to_stop() const {
    return config.keep_alive_interval * (config.keep_alive_max_attempt + 2) + grace;
  }
  /// How long a world may be at work without an entitled coordinator, or without a register in
  /// reach, and a new coordinator waits for a member of it: isolation_timeout, or as long as its
  /// members need at least to notice that, and to stop.
  Duration isolation() const {
    // More than the twentieth that a leader takes off, so a world always has the time to stop.
    return std::max<Duration>(config.isolation_timeout, time_to_stop() * 11 / 10);
  }
};

struct RestartSettings;
RestartSettings restart_settings(const spec::AgreedRules& rules, const std::string& run_id);

/// The nodes of a round that is being formed, by number.
struct Quorum {
  int returning = 0;        // waiting, members of the round before
  int fresh = 0;            // waiting, all others
  int stopping = 0;         // members of the round before that are still about to come back
  int previous_size = 0;    // of the round before; 0: there was none
  bool succession = false;  // the round before was another coordinator's, who may have died with it
};

/// How many nodes the round would have if it were closed now. Places of members that are still to
/// come back are not given away.
inline int candidates(const Rules& rules, const Quorum& quorum) {
  const int free_places = rules.max_nodes - quorum.returning - quorum.stopping;
  return quorum.returning + std::clamp(quorum.fresh, 0, std::max(free_places, 0));
}

/// When a round may be closed. Pure: counts and times in, answer out.
class JoinPhase {
 public:
  /// A new round is being formed from now on; the wait for its minimum ends at now + join_timeout.
  void begin(TimePoint now) {
    since_ = stopped_by_ = now;
    enough_since_.reset();
  }
  /// Adds a time in which no agent could come, because this machine stood still.
  void stand_still(Duration time) { since_ += time; }
  /// A member that is still to come back has stopped its group by then.
  void extend(TimePoint stopped_by) { stopped_by_ = std::max(stopped_by_, stopped_by); }
  /// Takes note of who is there; starts or forgets the last call.
  void update(const Rules& rules, const Quorum& quorum, TimePoint now) {
    if (candidates(rules, quorum) < rules.min_nodes) {
      enough_since_.reset();
    } else if (!enough_since_) {
      enough_since_ = now;  // later arrivals do not extend the last call, as in torchrun
    }
  }
  bool may_close(const Rules& rules, const Quorum& quorum, TimePoint now) const {
    const int there = candidates(rules, quorum);
    if (!rules.fixed_ranks && timed_out(rules, quorum, now)) {
      return enough_without_stopping(rules, quorum);
    }
    if (quorum.stopping > 0) return false;
    if (there >= rules.max_nodes) return true;
    if (rules.fixed_ranks || there < rules.min_nodes) return false;
    if (all_back(rules, quorum)) return true;
    if (quorum.succession && quorum.returning >= quorum.previous_size) return true;
    return enough_since_ && now >= *enough_since_ + last_wait(rules, quorum);
  }
  /// The end of the wait. While a group is being stopped, not before its grace is over:
  /// what it saves must not be read or written by another world.
  TimePoint given_up(const Rules& rules, const Quorum& quorum) const {
    const TimePoint end = since_ + rules.join_timeout;
    return quorum.stopping > 0 ? std::max(end, stopped_by_) : end;
  }
  bool timed_out(const Rules& rules, const Quorum& quorum, TimePoint now) const {
    return now >= given_up(rules, quorum);
  }
  /// When asking again is worthwhile although nothing happened.
  TimePoint deadline(const Rules& rules, const Quorum& quorum) const {
    const TimePoint end = given_up(rules, quorum);
    if (!enough_since_ || quorum.stopping > 0 || rules.fixed_ranks) return end;
    // A wait that had begun long ago is over now, not in the past for ever: the caller asks again.
    return std::min(end, *enough_since_ + last_wait(rules, quorum));
  }
  TimePoint since() const { return since_; }
  /// End of the last call, if one runs.
  std::optional<TimePoint> last_call(const Rules& rules) const {
    if (!enough_since_) return std::nullopt;
    return *enough_since_ + rules.last_call_timeout;
  }

 private:
  // Everybody who can come back has: nothing is gained by a last call.
  static bool all_back(const Rules& rules, const Quorum& quorum) {
    if (quorum.previous_size == 0 || quorum.stopping > 0 || quorum.succession) return false;
    return quorum.returning >= rules.min_nodes ||
           candidates(rules, quorum) >= std::max(quorum.previous_size, rules.min_nodes);
  }

  // At the end of join_timeout: a last call that still runs is over, and members that have not come
  // back keep no place from those that are there.
  static bool enough_without_stopping(const Rules& rules, Quorum quorum) {
    quorum.stopping = 0;
    return candidates(rules, quorum) >= rules.min_nodes;
  }

  // After a change of coordinators it is unknown who is still on the way, but the old one's node is
  // the most likely to be gone: with all others there, a short wait is enough.
  static Duration last_wait(const Rules& rules, const Quorum& quorum) {
    const bool nearly_all_back = quorum.succession &&
                                 quorum.returning >= quorum.previous_size - 1 &&
                                 quorum.returning >= rules.min_nodes;
    return nearly_all_back ? std::min(rules.growth_delay, rules.last_call_timeout)
                           : rules.last_call_timeout;
  }

  TimePoint since_, stopped_by_;
  std::optional<TimePoint> enough_since_;
};

}  // namespace elastrun::rendezvous
