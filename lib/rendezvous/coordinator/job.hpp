// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "net/link.hpp"
#include "rendezvous/membership/job_decider.hpp"
#include "rendezvous/wire/messages.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace elastrun::rendezvous {

/// A world that may be at work for so long.
struct KnownWorld {
  std::string run_id;
  WorldId id;
  int nodes = 0;
  Duration at_work{};
};

/// Runs a coordinator that has successors, and must know or allow what that one does. The
/// defaults are those of one that has none.
class CoordinatorOwner {
 public:
  virtual ~CoordinatorOwner() = default;
  /// Asked before every decision: may this process still decide? A process that was paused finds
  /// the messages of its agents before any timer has run, and must not act on them.
  virtual bool may_decide() { return true; }
  /// Whether each world is recorded, where a successor finds it, before it is given out.
  virtual bool records_worlds() const { return false; }
  /// Does that, and runs `recorded` later.
  virtual void record_world(const std::string& /*run_id*/, const WorldRecord&, Then /*recorded*/) {}
  /// A job is over, or has no agents any more and nothing of it is at work.
  virtual void job_over(const std::string& /*run_id*/) {}
  /// More agents have been lost to silence than are left, and nothing is decided yet: perhaps it is
  /// we who are cut off.
  virtual void cut_off() {}
  /// Coordinator::stopping_groups has changed: a successor must find them recorded, too.
  virtual void stopping_changed() {}
  /// While a round is being formed, Coordinator::survivors has changed.
  virtual void survivors_changed() {}
  /// An agent says, once, that it has seen a higher epoch than ours.
  virtual void newer_epoch(std::int64_t) {}
};

struct CoordinatorSettings {
  /// The job it serves. Empty: any number of jobs, each forgotten when its last agent has gone.
  std::string run_id;
  /// Which start of it, as the scheduler tells; agents of another one are refused. Empty:
  /// unknown.
  std::string start;
  /// Not hosted by an agent (`elastrunctl store`): each job goes by the rules of the agent that
  /// comes first, and agents that lose this coordinator wait for it to come back.
  bool stand_alone = false;
  Rules rules;
  std::string master_addr;  // given to every round; empty: that of group rank 0
  std::uint16_t master_port = 0;
  /// 0: not elected yet. Agents that come first, by an entry whose writer does not know yet that
  /// it has won, are greeted once it does: what they say of the last world goes with its record.
  std::int64_t epoch = 1;
  Duration heartbeat = std::chrono::seconds(5);  // keep_alive_interval
  int heartbeats_missed = 3;                     // keep_alive_max_attempt
  CoordinatorOwner* owner = nullptr;             // borrowed; null: without successors
  /// What an earlier life of this coordinator has recorded.
  std::vector<KnownWorld> known_worlds{};
};

/// One job at a coordinator: its state, the links of its agents, and what drives the one and feeds
/// the others. After each fact that `state` is given, `deliver` must be called.
class Job {
 public:
  /// `before_deciding` runs before anything is decided because time has passed or an answer has
  /// come.
  Job(Rules rules, const CoordinatorSettings& settings, std::string run_id, Clock& clock,
      Then before_deciding);
  ~Job() { lifetime_.end(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// What an agent that has joined says.
  void report(Peer peer, FromAgent message);
  /// Answers a client that is not an agent of the job with a StacksReport: where its workers stand.
  void ask_stacks(Peer peer, const std::shared_ptr<net::Link>& link);
  /// Workers that are stopped or traced, by rank, and by what.
  std::map<int, std::string> held() const { return decider.held(); }
  /// The link of an agent has ended, and why.
  void lost(Peer peer, const std::string& why, Loss loss);

  /// Before a fact: if this machine stood still, the wait for nodes goes on for as long. Facts of
  /// that time are read before any alarm rings.
  void note_pause();
  /// Tells the agents what the state has to tell, has the world recorded that waits for it, and
  /// arms the alarm.
  void deliver();
  /// Agents on this very machine come over loopback, an address that is of no use to the others: in
  /// a world with other machines they get the address under which those have found us.
  void note_reachable(const net::Link& link);

  JobDecider decider;
  State& state = decider.state;
  std::unordered_map<Peer, std::shared_ptr<net::Link>> links;

 private:
  void record_world();
  void arm();

  Clock& clock_;
  CoordinatorOwner* const owner_;
  const Then before_deciding_;
  const std::unique_ptr<Alarm> alarm_;
  std::optional<TimePoint> armed_;
  TimePoint expected_;  // when that rings
  bool recording_ = false, told_end_ = false;
  int stopping_groups_ = 0, stopping_ = 0;
  std::unordered_map<Peer, std::weak_ptr<net::Link>> askers_;
  // Answers of the register outlive the job; this tells them that it has gone.
  Lifetime lifetime_;
};

}  // namespace elastrun::rendezvous
