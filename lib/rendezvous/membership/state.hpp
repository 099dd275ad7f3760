// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/text.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/world.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Nodes that cannot start their workers (no such program), and say so. A job that has never run
/// and cannot have its nodes without them has failed. Then they wait until the others have heard of
/// that: one of them may host the coordinator, which those who come later look for. Pure.
class UnableNodes {
 public:
  /// `text`: which node, and why. One that is started again and again is one.
  void add(const Node& node, std::string text) {
    latest_ = std::move(text);
    if (nodes_.size() < kMost) nodes_.insert_or_assign(place_of(node), latest_);
  }
  /// It can by now, or another one there can.
  void forget(const Node& node) {
    if (nodes_.empty()) return;
    const auto found = nodes_.find(place_of(node));
    if (found == nodes_.end()) return;
    const bool is_latest = found->second == latest_;
    nodes_.erase(found);
    if (is_latest) latest_ = nodes_.empty() ? std::string() : nodes_.begin()->second;
  }
  /// `able`: so many others are there.
  bool leave_enough(const Rules& rules, int able) const {
    return able >= rules.min_nodes ||
           rules.max_nodes - static_cast<int>(nodes_.size()) >= rules.min_nodes;
  }
  /// Of the last one; empty: there is none.
  const std::string& latest() const { return latest_; }

  /// That one hears of the verdict last, or at that time.
  void wait(Peer peer, TimePoint until) {
    waiting_.push_back(peer);
    until_ = until;
  }
  void drop(Peer peer) { std::erase(waiting_, peer); }
  bool are_waiting() const { return !waiting_.empty(); }
  std::optional<TimePoint> until() const { return are_waiting() ? until_ : std::nullopt; }
  /// So many other agents have been told.
  void tell_others(int agents) { told_ += agents; }
  /// Those that wait no longer.
  std::vector<Peer> take(const Rules& rules, TimePoint now) {
    const bool all_told = told_ + static_cast<int>(nodes_.size()) >= rules.min_nodes;
    if (!all_told && now < until_.value_or(now)) return {};
    return std::exchange(waiting_, {});
  }

 private:
  static constexpr std::size_t kMost = 100'000;
  static std::string place_of(const Node& node) {
    if (node.node_rank >= 0) return std::to_string(node.node_rank);
    // Containers on several hosts may have one address. Their names differ, as a rule; two agents
    // on one host are one place, like one that is started again.
    std::string place = node.host + " " + node.address;
    for (const auto& address : node.alternates) place += " " + address;
    return place;
  }

  std::map<std::string, std::string> nodes_;  // by place
  std::string latest_;
  std::vector<Peer> waiting_;
  std::optional<TimePoint> until_;
  int told_ = 0;
};

enum class Phase {
  Joining,  // a round is being formed
  Running,  // a round is complete, its members work
  Verdict,  // the job has failed; other nodes' reports of the same moment are awaited
  Ended,    // told to everybody
};

/// A node that was in the job and has gone: who is missing, by name. The latest few are kept.
struct Gone {
  Node node;
  std::string why;
  TimePoint since;
};

/// What the end of a connection says of the group of its member.
enum class Loss {
  Ended,   // the member has said that it has ended, before
  Closed,  // in order, as the kernel does when a process ends, and as proxies do when they like
  Broken,
  Silent,  // no word for so long that it must be given up, whatever has become of it
};

/// The whole job's rendezvous: which nodes form a round, with which ranks, and what happens when
/// one joins, fails, finishes, leaves or dies; whether the workers hang (Standstill), and the save
/// before the job is preempted (Preemption). Pure: stepped with facts and the time; what is to be
/// told to whom piles up until `take`. One of these decides for all nodes of a job (the
/// coordinator's), so no two nodes disagree about ranks, attempts or the verdict.
/// Every wait in it ends: a round that does not come together fails the job after join_timeout.
class State {
 public:
  /// `master_addr`/`master_port`: given to every round instead of those of group rank 0.
  State(Rules rules, std::string run_id, std::string master_addr = {},
        std::uint16_t master_port = 0);

  // Facts. A peer that is not there is ignored; so is a report about a round that is over.
  void join(Peer peer, Node node, const PreviousWorld& previous, TimePoint now);
  /// What the agent of a member says.
  void report(Peer peer, Report report, TimePoint now) {
    std::visit([&](auto& said) { on(peer, said, now); }, report);
    end_if_saved(now);
  }
  /// Its connection has ended, or that of a client that asked where the workers stand.
  void lost(Peer peer, const std::string& why, TimePoint now, Loss loss) {
    depart(peer, why, now, loss);
    gone(peer, now);
    end_if_saved(now);
  }
  void started(Peer peer, std::int64_t round, TimePoint now);
  void fail(Peer peer, std::int64_t round, Cause cause, TimePoint now, bool goes_on = false);
  void succeed(Peer peer, std::int64_t round, TimePoint now);
  /// A checkpoint of that step is complete.
  void saved(std::int64_t checkpoint) { restart_rule_.saved(checkpoint); }
  /// The job is to save and end: whatever its workers do from now on, it ends with this cause.
  void preempting(Cause cause, TimePoint now);
  /// A spare is to go: it goes alone, and the round runs on. False: it is not one.
  bool let_spare_go(Peer peer, const std::string& why, TimePoint now);
  /// They have saved, or their time is over.
  void preempted(const std::string& text, TimePoint now) {
    if (!preempting_ || phase_ == Phase::Ended) return;
    preempting_->text = text;
    end({true, *preempting_}, now);
  }
  void cannot_start(Peer peer, const std::string& why, TimePoint now);  // and is about to leave
  /// It has heard that it is to stop, and its group ends within `left`.
  void stopping(Peer peer, Duration left, TimePoint now);
  /// The same of one that comes over a new connection, here or from another coordinator.
  void arrive_stopping(Peer peer, const Node& node, const PreviousWorld& previous, Duration left,
                       TimePoint now);
  /// An agent knows of that world without having been a member.
  void hear_of(const PreviousWorld& world, Duration grace, TimePoint now);
  /// It says goodbye and stops being a member, but no round is formed until its group or its grace
  /// has ended. `grace`: of an agent that another coordinator told to stop, and that has not joined
  /// here.
  void leave(Peer peer, const std::string& why, TimePoint now, Duration grace = {},
             Cause::Kind kind = Cause::Kind::NodeLeft);
  /// It is not there any more.
  void depart(Peer peer, const std::string& why, TimePoint now, Loss loss = Loss::Ended);
  void close(const std::string& why, TimePoint now);  // the job, for everybody
  void tick(TimePoint now);                           // time has passed
  /// Nothing could be done meanwhile: nothing is late for that.
  void stand_still(Duration time) {
    join_phase_.stand_still(time);
    for (auto& [role, renewal] : renewals_) renewal.until += time;
  }
  bool hear(Peer peer, TimePoint now);  // it has said something; whether anybody is told by that
  /// A coordinator that cannot prove that it is still the elected one forms no rounds.
  void hold(bool held, TimePoint now) {
    held_ = held;
    if (!held && phase_ != Phase::Ended) advance(now);
  }
  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
  /// Tells members to stop, and come back: their world may not be the only one any more.
  void suspend(const std::string& why, TimePoint now) {
    name_victim(now);
    if (phase_ != Phase::Running) return;
    restart({.kind = Cause::Kind::CoordinatorLost, .text = why}, now);
  }

  // The world of a coordinator before this one, and the record of new ones (see WorldFence).
  void inherit(const InheritedWorld& world);
  /// What may be at work of a job whose last agent has gone; none: nothing.
  std::optional<InheritedWorld> left_behind(TimePoint now) const;
  void disinherit(Duration left, TimePoint now);  // has ended; unheard members end within `left`
  /// The job of this run id has been over for good after that world. Members of it that come late
  /// are told so; others start a new job.
  void conclude(const WorldId& last, Done verdict) {
    past_.conclude(last);
    conclusion_ = std::move(verdict);
  }
  /// Each world must be recorded where a successor finds it, before it is given out.
  void require_acknowledgements() { acknowledged_.emplace(); }
  /// The world that waits to be recorded; `acknowledge` says that it has been.
  const std::optional<WorldRecord>& unacknowledged() const { return unacknowledged_; }
  void acknowledge(const WorldRecord& record, TimePoint now) {
    if (acknowledged_) acknowledged_ = record;
    if (phase_ == Phase::Joining) advance(now);
  }
  /// Under which members that came over loopback get into worlds that have members elsewhere.
  void set_reachable(std::string address) { reachable_ = std::move(address); }
  /// Everything to be told since the last call, in order; some of it to clients that have asked
  /// where the workers stand.
  std::vector<Delivery> take() {
    for (auto& [peer, push] : standstill_.take()) deliveries_.push_back({peer, std::move(push)});
    for (auto& [peer, push] : preemption_.take()) deliveries_.push_back({peer, std::move(push)});
    return std::exchange(deliveries_, {});
  }
  std::optional<TimePoint> deadline() const;  // of `tick`, if nothing else happens
  Phase phase() const { return phase_; }
  std::int64_t epoch() const { return epoch_; }
  std::int64_t round_number() const { return past_.last().round; }
  const WorldHistory& past() const { return past_; }
  PreviousWorld last_world() const { return past_.told(attempt()); }
  /// Members that are connected, and for how long their groups may be at work without us.
  Survivors survivors(TimePoint now) const;
  int attempt() const { return restart_rule_.spent(); }
  int restarts_left() const { return restart_rule_.left(); }
  const Rules& rules() const { return rules_; }
  const std::string& run_id() const { return run_id_; }
  const Roster& roster() const { return roster_; }
  const JoinPhase& join_phase() const { return join_phase_; }
  const WorldFence& world_fence() const { return world_fence_; }
  bool is_held() const { return held_; }
  /// That runs, of a job in which roles restart alone; else null.
  const std::shared_ptr<const World>& world_of_roles() const { return world_; }
  /// Workers that are stopped or traced, by rank, and by what.
  std::map<int, std::string> held() const { return standstill_.held(); }
  Quorum quorum() const;
  RestartMemory restart_memory(TimePoint now) const { return restart_rule_.memory(now); }
  const std::vector<Gone>& gone() const { return gone_; }
  const Done& verdict() const { return verdict_; }                  // once Ended
  bool awaits_latecomers() const { return unable_.are_waiting(); }  // who are to hear of that

 private:
  void on(Peer peer, const Started& said, TimePoint now) { started(peer, said.round, now); }
  void on(Peer peer, Failed& said, TimePoint now) {
    fail(peer, said.round, std::move(said.cause), now, said.goes_on);
  }
  void on(Peer peer, const Succeeded& said, TimePoint now) { succeed(peer, said.round, now); }
  void on(Peer peer, const Leaving& said, TimePoint now);
  void on(Peer peer, const ProgressReport& said, TimePoint now) {
    standstill_.says(peer, said, now);
  }
  void on(Peer peer, NodeStacks& said, TimePoint now) {
    standstill_.answers(peer, std::move(said), now);
  }
  void on(Peer peer, const AskStacks&, TimePoint now) { standstill_.asks(peer, now); }
  void on(Peer peer, const Reached& said, TimePoint now);
  void on(Peer peer, const AskPreempt& said, TimePoint now);
  void gone(Peer peer, TimePoint now) {
    standstill_.gone(peer, now);
    preemption_.gone(peer, now);
  }
  void end_if_saved(TimePoint now) {
    if (preemption_.take_over()) preempted(preemption_.text(), now);
  }
  // No round that could hang is left, unless one runs.
  void enter(Phase phase) {
    phase_ = phase;
    if (phase != Phase::Running) standstill_.broken_up();
  }
  std::optional<TimePoint> round_due() const;
  void assign(Member& member, const std::shared_ptr<const World>& world, int group_rank);
  bool is_too_late(Peer peer, const PreviousWorld& previous);
  void hear_unable(Peer peer, const Node& node, const PreviousWorld& previous, TimePoint now);
  void tell_unable(TimePoint now) {
    if (!unable_.are_waiting()) return;
    for (const Peer peer : unable_.take(rules_, now)) tell(peer, verdict_);
  }
  bool admit(Peer peer, const Node& node, const PreviousWorld& previous);
  void drop_claims(Peer peer) {
    std::erase_if(claims_, [peer](const Claim& claim) { return claim.peer == peer; });
  }
  void admit_claimants(TimePoint now);
  void learn(const PreviousWorld& previous);
  Member* meet(Peer peer, const Node& node, const PreviousWorld& previous, TimePoint now);
  Member* find_again(Peer peer, const Node& node, TimePoint now);
  void come_back(Member& member, Node node, TimePoint now);
  void advance(TimePoint now);
  void advance_join_phase(TimePoint now);
  void advance_running(TimePoint now);
  void advance_roles(TimePoint now);
  void try_to_close_round(TimePoint now);
  void await_record(TimePoint now);
  void give_out(const std::vector<Member*>& chosen, World world, TimePoint now);
  std::vector<Member*> choose_members();
  void order_spares(std::span<Member* const> kept, std::span<Member*> spares);
  RankOrder rank_order() const {
    if (rules_.fixed_ranks) return RankOrder::Fixed;
    return rules_.rank_order_topology ? RankOrder::Topology : RankOrder::Torchrun;
  }
  void dismiss_stuck();
  void tell_spares();
  void remove(const Member& member, const Cause& cause, TimePoint now);
  void fence_off(const Member& member, TimePoint now, Loss loss);
  // The peer that it blames has not failed by itself.
  void name_victim(TimePoint now) {
    if (victim_) decide(victim_->peer, victim_->cause, now);
  }
  void decide(Peer failed, Cause cause, TimePoint now, const Member* alone = nullptr);
  bool restart(Cause cause, TimePoint now, const Member* alone = nullptr);
  void break_up(Cause cause, const RestartDecision& decision, TimePoint now);
  const Member* may_restart_alone(const Member& member, bool goes_on) const;
  void restart_role(const Member& first, Cause cause, const RestartDecision& decision,
                    TimePoint now);
  void come_back_in_role(Member& member, Node node, TimePoint now);
  void start_role_again(const std::string& role, TimePoint now);
  // The restart that was decided becomes one of all, and costs nothing more.
  void give_role_up(const std::string& role, Cause cause, TimePoint now) {
    RestartDecision decision = renewals_.at(role).decision;
    decision.attempt_spent = false, decision.delay = {};
    break_up(std::move(cause), decision, now);
  }
  bool misses_role(const World& world, TimePoint now);
  bool has_companion(const Member& member) const;
  RestartDecision decide_restart(const Cause& cause, TimePoint now);
  int waiting_for_places() const;
  void take_memory(Member& member, TimePoint now);
  /// By which a machine is known over requeues: ids have a process in them. Empty for the only one
  /// of a job. The coordinator's own has the address that its successor will see it under.
  std::string machine_of(const Node& node) const {
    const bool is_own = is_loopback(node.address);
    if (node.host.empty()) return is_own ? std::string() : node.address;
    return node.host + " (" + (is_own && !reachable_.empty() ? reachable_ : node.address) + ")";
  }
  bool is_left_out(const Member& member, TimePoint now) const {
    // Where each rank is one node's, none can take its place.
    return !rules_.fixed_ranks && restart_rule_.is_excluded(machine_of(member.node), now);
  }
  void begin_join_phase(TimePoint now);
  void give_up_waiting(TimePoint now);
  void finish_if_all_done(TimePoint now);
  void end(Done verdict, TimePoint now);
  void push_progress(TimePoint now);
  void tell(Peer peer, Push push) {
    deliveries_.push_back({peer, std::make_shared<const Push>(std::move(push))});
  }
  void tell_all(const std::vector<Member*>& whom, Push push) {
    const auto shared = std::make_shared<const Push>(std::move(push));
    for (const Member* member : whom) deliveries_.push_back({member->peer, shared});
  }

  const Rules rules_;
  const std::string run_id_, master_addr_;
  const std::uint16_t master_port_;
  Phase phase_ = Phase::Joining;
  Roster roster_;
  // Agents that claim a fixed rank which another one has; first come, first served. Perhaps that
  // one has died and these are to replace it: each waits until the owner of its rank is heard, and
  // is refused then, or falls silent or goes, and is admitted then.
  struct Claim {
    Peer peer;
    Node node;
    PreviousWorld previous;
  };
  std::vector<Claim> claims_;
  UnableNodes unable_;
  std::vector<Gone> gone_;
  JoinPhase join_phase_;
  WorldFence world_fence_;
  bool held_ = false;
  std::optional<WorldRecord> unacknowledged_;
  std::optional<WorldRecord> acknowledged_;  // none: no acknowledgements needed
  RestartRule restart_rule_;
  // Roles that restart alone when a worker of theirs fails (--role-restart NAME=own). Their workers
  // form no process group with others, so the round goes on around them: with the same members,
  // ranks and number. Whatever ends the round ends these restarts, too: a restart of all nodes
  // wins.
  struct Renewal {
    Cause cause;               // that was told
    RestartDecision decision;  // about it
    int missing = 0;           // nodes that have not come back
    TimePoint not_before, until;
  };
  const OwnRoles own_roles_;
  std::shared_ptr<const World> world_;       // that runs, if there are such roles
  std::map<std::string, Renewal> renewals_;  // of those that are starting again
  Standstill standstill_;
  Preemption preemption_;
  std::int64_t epoch_ = 1;
  WorldHistory past_;
  std::vector<Node> last_members_;  // of the last round, if spares are chosen by topology
  bool ending_ = false;             // a member of this round has finished
  std::optional<TimePoint> growth_at_, verdict_at_, record_by_;
  /// The first failure that blames a peer; it is the cause only if no other one comes in time.
  struct Victim {
    Peer peer;
    Cause cause;
    TimePoint until;
  };
  std::optional<Victim> victim_;
  TimePoint progress_at_;
  Done verdict_, conclusion_;
  std::optional<Cause> preempting_;
  std::optional<TimePoint> not_before_;  // no round is given out
  RestartDecision decision_;             // the last one
  TimePoint now_{};                      // of the last fact
  std::string reachable_;
  std::vector<Delivery> deliveries_;
};

}  // namespace elastrun::rendezvous
