// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "hangs/hang_rule.hpp"
#include "hangs/stacks.hpp"
#include "spec/agreed_rules.hpp"

#include <boost/describe/class.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {

/// One decision, as the ledger keeps it.
struct RestartEntry {
  Duration age{};  // before now
  spec::CauseClass cause = spec::CauseClass::Error;
  std::string fingerprint{}, place{};
  std::int64_t step = -1, checkpoint = -1;  // -1: not known
  std::string decision{};                   // for people: what follows, and by which rule
  bool operator==(const RestartEntry&) const = default;
};

/// A node that something is held against.
struct NodeMark {
  std::string place{};
  Duration age{};
  std::string why{};
  bool operator==(const NodeMark&) const = default;
};

/// A restart that a rule with a number has allowed: the first, second, ... of --restart-rule.
struct RuleUse {
  int rule = 0;
  Duration age{};
  bool operator==(const RuleUse&) const = default;
};
BOOST_DESCRIBE_STRUCT(RuleUse, (), (rule, age))

/// What a RestartRule knows, as plain data with ages instead of times: agents carry it to the next
/// coordinator, and over a requeue. Empty where the policy is torchrun's. Bounded.
struct RestartMemory {
  static constexpr std::size_t kMostEntries = 16, kMostMarks = 64, kMostUses = 64;
  int spent = 0;  // restarts, of all the job
  int used = 0;   // of the budget, since the last new checkpoint
  int level = 0;  // restarts without progress
  std::int64_t checkpoint = -1;
  std::vector<RestartEntry> entries{};  // oldest first
  std::vector<NodeMark> marks{};
  std::vector<RuleUse> uses{};  // the latest ones
  bool empty() const { return spent == 0 && entries.empty() && marks.empty(); }
  bool operator==(const RestartMemory&) const = default;
  /// Lets that time pass.
  void age(Duration time) {
    for (auto& entry : entries) entry.age += time;
    for (auto& mark : marks) mark.age += time;
    for (auto& use : uses) use.age += time;
  }
};

/// What an agent was told last. It may carry it for days before another coordinator asks.
class KeptMemory {
 public:
  void keep(std::shared_ptr<const RestartMemory> memory, TimePoint now) {
    if (memory) memory_ = std::move(memory), at_ = now;
  }
  std::shared_ptr<const RestartMemory> at(TimePoint now) const {
    if (!memory_) return nullptr;
    auto memory = std::make_shared<RestartMemory>(*memory_);
    memory->age(now - at_);
    return memory;
  }

 private:
  std::shared_ptr<const RestartMemory> memory_;  // null: none
  TimePoint at_{};
};

/// Which world: a closed round of members. The number of the round does not say it alone: where
/// nothing was left of the rounds before (a register that was deleted, or restored from nothing),
/// numbers begin again, under a higher epoch.
struct WorldId {
  constexpr WorldId() = default;
  // No aggregate: three bare numbers must not pass for an id and what follows it.
  constexpr WorldId(std::int64_t of_coordinator, std::int64_t number)
      : epoch(of_coordinator), round(number) {}

  std::int64_t epoch = 0;  // of the coordinator that gave it out; 0: not told
  std::int64_t round = 0;  // from 1; 0: there is none
  bool operator==(const WorldId&) const = default;

  /// Whether both are one world, as far as they say.
  constexpr bool is_same(const WorldId& other) const {
    return round == other.round && (!says_more_than_number(other) || epoch == other.epoch);
  }
  /// Whether it was given out after the other one, as far as they say.
  constexpr bool is_later_than(const WorldId& other) const {
    if (!says_more_than_number(other) || epoch == other.epoch) return round > other.round;
    return epoch > other.epoch;
  }

 private:
  constexpr bool says_more_than_number(const WorldId& other) const {
    return epoch > 0 && other.epoch > 0 && round > 0 && other.round > 0;
  }
};

/// What an agent remembers of the job when it joins: nothing for a new node. Lets a newly elected
/// coordinator go on where the last one stopped.
struct PreviousWorld {
  WorldId id;
  int attempt = 0;
  int nodes = 0;
  int group_rank = -1;  // of the agent in it; -1: none, or not told
};

// What agents and coordinator tell each other of workers that stand still:

/// What it says of the progress of its workers, whenever that changes (Standstill).
struct ProgressReport {
  std::int64_t round = 0;
  hangs::NodeProgress what;
  Duration standing{};                // without progress
  std::map<int, std::string> held{};  // ranks that are stopped or traced, and by what
};
/// Part of its answer to TakeStacks.
struct NodeStacks {
  std::int64_t id = 0;
  std::vector<hangs::StackGroup> groups;
  std::vector<std::string> dumps;
  bool last = false;
};
/// It wants the StacksReport, for a client on its machine.
struct AskStacks {};

/// Take the stacks of your workers, disturbing them as little as can be, and answer soon.
struct TakeStacks {
  std::int64_t id = 0;
  bool hang = false;  // they do not move; else a client has asked
};
BOOST_DESCRIBE_STRUCT(TakeStacks, (), (id, hang))
/// Where the workers of the job stand.
struct StacksReport {
  hangs::JobStacks stacks;
  bool hang = false;
  Duration standing{};  // for how long, if so
  /// The first rank of the node that does for all what is to be done about a hang.
  int speaker = 0;
};

/// Why a group is stopped, a job given up: named alike on every node.
struct Cause {
  enum class Kind {
    WorkerFailed,  // a worker ended badly
    NodeLost,      // an agent's connection broke or fell silent
    NodeLeft,      // an agent said goodbye (preemption, signal)
    NodeJoined,    // a larger world is possible
    Closed,        // the job was closed by request
    Preempted,     // it was asked to save and end, and has
    CoordinatorLost,
    Timeout,  // a bounded wait of the rendezvous ended
  } kind = Kind::WorkerFailed;
  std::string node{};  // id of the node it happened on
  int rank = -1;       // global rank of the culprit, if a worker
  int local_rank = -1;
  int exit_code = 0;         // torchrun's number: negative is a signal; only with WorkerFailed
  std::string text{};        // one sentence for a person
  double wall_seconds = 0;   // when, since the epoch, by that node's clock
  bool final = false;        // no restart would mend it
  bool blames_peer = false;  // by its own words it failed only because another process went away
  // What the restart policy goes by (RestartRule).
  spec::CauseClass what = spec::CauseClass::Error;  // only with WorkerFailed
  /// What is alike when the same happens again: "ValueError@train.py:7", "SIGSEGV"; may be empty.
  std::string fingerprint{};
  std::int64_t step = -1, checkpoint = -1;  // reached, saved; -1: not known
  std::string rule{};                       // that decided what follows; empty: as torchrun
  bool hopeless = false;                    // a requeue would not help either
  bool misuse = false;                      // what was asked for cannot be: exit code 2
  bool operator==(const Cause&) const = default;
};

/// The longest grace that is waited for, whatever a node or a record says.
constexpr Duration kLongestGrace = std::chrono::hours(24 * 366);

/// One node as it presents itself when it joins. An agent stands for one node.
struct Node {
  std::string id{};  // "ADDRESS_PID_SERIAL": unique in the job, also the order of group ranks
  /// Tells two agents apart whose ids are alike (containers that share an address and count pids
  /// from 1). Random; filled in by the session if empty.
  std::string instance{};
  /// By which the others reach this node. Filled in likewise: the own address of the connection to
  /// the coordinator.
  std::string address{};
  /// Other addresses of this node, from which its workers may come to the store. Filled in too.
  std::vector<std::string> alternates{};
  std::uint16_t store_port = 0;  // where its store would listen; held open since the join
  std::string role = "default";
  int local_world_size = 1;
  int node_rank = -1;  // given by the user or a scheduler; -1: none
  /// How long its workers may take to end, from when they are asked to: --shutdown-timeout and what
  /// SIGKILL may take. For the coordinator only.
  Duration grace{};
  /// Where it is in the network, as --topology has it; empty: not known. For the coordinator only.
  std::string topology{};
  /// Known to the coordinator only: the name of its host, as it says, and whether that is the
  /// coordinator's own machine.
  std::string host{};
  bool local = false;
  /// Likewise: its group rank in the round that it was in last; -1: in none.
  int last_rank = -1;
  /// Why it cannot start its workers: it has come only to say that. Empty: it can.
  std::string unable{};
  /// What its check before a restart found wrong (--restart-policy auto). Empty: nothing.
  std::string fault{};
  /// What earlier coordinators have decided; null: nothing is known. Only with a join.
  std::shared_ptr<const RestartMemory> memory{};
  bool operator==(const Node&) const = default;
};

/// Where workers that form process groups with each other meet, and how often they have started.
struct Meeting {
  /// TORCHELASTIC_RESTART_COUNT: restarts that the whole job had spent when the round began, and of
  /// a role that restarts alone also its own ones since.
  int attempt = 0;
  std::string master_addr{};
  std::uint16_t master_port = 0;
  int store_rank = 0;  // group rank of the node that serves master_port
  /// How many meet there, where roles that restart alone have stores apart; 0: all.
  int store_nodes = 0, store_workers = 0;
  bool again = false;  // a round that runs: this role alone starts again in it
};

/// Where the workers of one node begin to count, among all and among those of its role.
struct Bases {
  int rank_base = 0, role_rank_base = 0;
  int role_world_size = 1;  // workers of this node's role
  bool operator==(const Bases&) const = default;
};

/// A complete round, as one node sees it. Members and sizes are the same on every node.
struct Round : Meeting, Bases {
  std::int64_t epoch = 0;   // of the coordinator
  std::int64_t number = 0;  // counts every round, never goes back
  int spent = 0;            // restarts, by the whole job; 0: no more than `attempt`
  int restarts_left = 0;
  /// By group rank. Complete at group rank 0, which admits the others' addresses to its store, and
  /// in worlds of up to 64 nodes. In larger ones the others' entries are blank: only their number
  /// counts, and a list of everybody for everybody would be quadratic.
  std::vector<Node> members{};
  int group_rank = 0;
  int world_size = 1;  // of workers
  WorldId id() const { return {epoch, number}; }
  int restarts() const { return attempt > spent ? attempt : spent; }
  bool serves_store() const { return group_rank == store_rank; }
  bool is_divided() const { return store_nodes > 0; }
  int group_world_size() const { return static_cast<int>(members.size()); }
  const Node& self() const { return members[static_cast<std::size_t>(group_rank)]; }
};

/// What an agent tells.
struct Started {
  std::int64_t round = 0;
};
BOOST_DESCRIBE_STRUCT(Started, (), (round))
struct Failed {
  std::int64_t round = 0;
  Cause cause;
  /// Its group is not being stopped: it hangs, and ends when the others do.
  bool goes_on = false;
};
BOOST_DESCRIBE_STRUCT(Failed, (), (round, cause, goes_on))
struct Succeeded {
  std::int64_t round = 0;
};
BOOST_DESCRIBE_STRUCT(Succeeded, (), (round))
struct Leaving {
  std::string why;
  /// How long its group may take to end; 0: no group. The current coordinator may not know this
  /// node: it has not joined since it was told to stop.
  Duration grace{};
  bool ended = false;   // the group has ended, and with it soon the connection
  bool unable = false;  // its workers could not be started
  bool killed = false;  // unrequested: to the others it is a node that was lost
};
BOOST_DESCRIBE_STRUCT(Leaving, (), (why, grace, ended, unable, killed))
/// How far its workers are: when that is asked, and at each new checkpoint where it counts.
struct Reached {
  std::int64_t round = 0;
  std::int64_t step = -1, checkpoint = -1;  // the highest of a worker here; -1: none told
  Duration pace{};                          // of a step; 0: not known
  bool saved = false;                       // what SaveAt asked for is complete here
  bool looks = false;                       // a worker here asks whether it is to save
  std::string failure{};                    // who here failed to save, and with what
};
/// The job is to save and end within `deadline`.
struct AskPreempt {
  std::string why;
  Duration deadline{};
  bool hosts = false;  // the coordinator goes with the agent that asks; filled in by the session
};
BOOST_DESCRIBE_STRUCT(AskPreempt, (), (why, deadline, hosts))
using Report = std::variant<Started, Failed, Succeeded, Leaving, ProgressReport, NodeStacks,
                            AskStacks, Reached, AskPreempt>;

/// What an agent is told.
struct RoundReady {
  Round round;
};
/// Stop the group now, then join again: a new round is being formed. `attempt_spent` says whether
/// it cost one of --max-restarts (a failure) or not (membership).
struct Restart {
  Cause cause;
  bool attempt_spent = false;
  int restarts_left = 0;
  Duration delay{};  // before the next round
  /// For the next coordinator; null with torchrun's policy.
  std::shared_ptr<const RestartMemory> memory{};
  /// Only nodes with this role stop, and join again; the round goes on. Empty: all.
  std::string role{};
  bool is_for(std::string_view own_role) const { return role.empty() || role == own_role; }
};
/// The job is over. `failed`: by `cause`, which is the same on every node.
struct Done {
  bool failed = false;
  Cause cause;
  std::shared_ptr<const RestartMemory> memory{};  // as in Restart
  int restarts_left = -1;                         // -1: as many as were told last
};
/// Not needed in this world; stays connected, takes over when a member goes.
struct Spare {
  int ahead = 0;
  PreviousWorld world{};  // that works without it
};
BOOST_DESCRIBE_STRUCT(Spare, (), (ahead, world))
/// The coordinator is gone for good. `requeue`: the scheduler should start the job again.
struct Lost {
  std::string why;
  bool requeue = false;
  bool misuse = false;  // what was asked for cannot be: exit code 2
};
/// Something a person waiting would like to know: who is missing, how long the last call lasts.
struct Progress {
  std::string text;
  int present = 0, wanted = 0;
};
BOOST_DESCRIBE_STRUCT(Progress, (), (text, present, wanted))
/// The job is to save and end: answer with Reached, once.
struct AskReached {
  std::string why;
  Duration left{};  // until the end
};
BOOST_DESCRIBE_STRUCT(AskReached, (), (why, left))
/// All ranks save when they have done this step, which none has done yet.
struct SaveAt {
  std::int64_t step = -1;  // -1: none is known; at once
  Duration left{};
  bool by_signal = false;  // no worker of the job asks whether it is to save
};
using Push = std::variant<RoundReady, Restart, Done, Spare, Lost, Progress, TakeStacks,
                          StacksReport, AskReached, SaveAt>;

}  // namespace elastrun::rendezvous
