// SPDX-License-Identifier: Apache-2.0
// Random schedules of a whole job: agents that come, stop slowly, fail, die and leave, reports that
// are late or twice. What must be true after each step is checked after each step.
#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/random_schedule.hpp"
#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// What an agent does, by its own lights.
struct RandomAgent {
  enum class Doing { Waiting, Working, Finished, Reported, Stopping, Over } doing = Doing::Waiting;
  Node node;
  std::int64_t round = 0;
  bool stuck = false;  // once told to stop its workers, it never comes back
};

class Simulation {
 public:
  explicit Simulation(unsigned seed) : draw(seed), rules_(draw_rules()), state_(rules_, "job") {}

  void run() {
    for (int step = 0; step < 60; ++step) act();
    settle();
  }

 private:
  Rules draw_rules() {
    Rules rules = make_rules(1 + draw(3), 0, draw(3));
    rules.max_nodes = rules.min_nodes + draw(3);
    if (draw(6) == 0) {
      rules.fixed_ranks = true;
      rules.min_nodes = rules.max_nodes;
    }
    rules.restart_policy_auto = draw(2) == 0;
    if (!rules.fixed_ranks && draw(2) == 0) rules.role_restart = "reader";
    rules.join_timeout = std::chrono::seconds(5 + draw(60));
    rules.last_call_timeout = std::chrono::seconds(1 + draw(10));
    return rules;
  }

  Peer any_peer() {
    if (agents_.empty()) return 0;
    auto at = agents_.begin();
    std::advance(at, draw(static_cast<int>(agents_.size())));
    return at->first;
  }

  void act() {
    const Peer peer = any_peer();
    const int choice = draw(100);
    if (choice < 18) return arrive();
    if (choice < 40 || peer == 0) return pass();
    if (choice < 60) return cooperate(peer);
    if (choice < 70) return report(peer, true);
    if (choice < 82) return report(peer, false);
    if (choice < 90) return go(peer, draw(2) == 0 ? Cause::Kind::NodeLost : Cause::Kind::NodeLeft);
    if (choice < 95) return stale(peer);
    if (choice < 97) return hold(draw(2) == 0);
    if (choice < 98) return end_leaver();
    rejoin_unasked(peer);
  }

  void arrive() {
    if (agents_.size() > 8) return;
    RandomAgent agent;
    // Few names, so that some come back under the name of one that is thought to be there.
    agent.node = make_node("n" + std::to_string(draw(12)), 1 + draw(3));
    agent.node.role = draw(2) == 0 ? "trainer" : "reader";
    agent.stuck = draw(8) == 0;
    agent.node.grace = std::chrono::seconds(draw(20));
    agent.node.node_rank = rules_.fixed_ranks ? draw(rules_.max_nodes + 1) : -1;
    const Peer peer = ++last_peer_;
    // One that is leaving is another process of that name.
    if (leaving_.contains(agent.node.id)) agent.node.instance = std::to_string(peer);
    for (auto at = agents_.begin(); at != agents_.end();) {
      // The same agent twice: its process has begun anew, the old one is no more.
      const bool same = at->second.node.id == agent.node.id;
      if (same) agent.node.instance = at->second.node.instance;
      at = same ? agents_.erase(at) : std::next(at);
    }
    agents_[peer] = agent;
    state_.join(peer, agent.node, {}, now_);
    read();
  }

  // The agent does what it was told: it stops its workers and joins again.
  void cooperate(Peer peer) {
    RandomAgent& agent = agents_.at(peer);
    if (agent.doing == RandomAgent::Doing::Over) {
      state_.depart(peer, "end of file", now_);
      agents_.erase(peer);
    } else if (agent.doing == RandomAgent::Doing::Stopping && !agent.stuck) {
      agent.doing = RandomAgent::Doing::Waiting;
      state_.join(peer, agent.node, {{1, agent.round}, 0, 0}, now_);
    }
    read();
  }

  void rejoin_unasked(Peer peer) {
    RandomAgent& agent = agents_.at(peer);
    if (agent.doing != RandomAgent::Doing::Working) return;
    agent.doing = RandomAgent::Doing::Waiting;
    unasked_ = peer;
    state_.join(peer, agent.node, {}, now_);
    read();
    unasked_ = 0;
  }

  void report(Peer peer, bool failed) {
    RandomAgent& agent = agents_.at(peer);
    if (agent.doing != RandomAgent::Doing::Working) return;
    agent.doing = failed ? RandomAgent::Doing::Reported : RandomAgent::Doing::Finished;
    Cause cause;
    cause.node = agent.node.id;
    // For the restart policy, which may leave nodes out, wait, or call it deterministic.
    cause.what = static_cast<spec::CauseClass>(draw(9));
    cause.fingerprint = "E" + std::to_string(draw(3));
    cause.step = draw(6) - 1;
    cause.blames_peer = draw(3) == 0;
    if (failed) {
      state_.fail(peer, agent.round, cause, now_);
    } else {
      state_.succeed(peer, agent.round, now_);
    }
    read();
  }

  // Old news, and news from nobody.
  void stale(Peer peer) {
    state_.fail(peer, state_.round_number() - 1, {}, now_);
    state_.succeed(peer, state_.round_number() - 1, now_);
    state_.fail(last_peer_ + 100, state_.round_number(), {}, now_);
    state_.depart(last_peer_ + 100, "", now_);
    read();
  }

  void go(Peer peer, Cause::Kind kind) {
    const RandomAgent& agent = agents_.at(peer);
    const bool at_work =
        agent.doing == RandomAgent::Doing::Working || agent.doing == RandomAgent::Doing::Stopping;
    if (kind == Cause::Kind::NodeLeft && at_work && !over_) {
      leavers_[peer] = now_ + agent.node.grace;
      leaving_.insert(agent.node.id);
    }
    agents_.erase(peer);
    if (kind == Cause::Kind::NodeLeft) {
      state_.leave(peer, "test", now_);
    } else {
      state_.depart(peer, "test", now_);
    }
    read();
  }

  // Its group has ended, and its connection with it; or the connection alone has broken.
  void end_leaver() {
    if (leavers_.empty()) return;
    const Peer peer = leavers_.begin()->first;
    const bool in_order = draw(2) == 0;
    if (in_order) leavers_.erase(peer);
    state_.depart(peer, "end", now_, in_order ? Loss::Ended : Loss::Broken);
    read();
  }

  void hold(bool held) {
    held_ = held;
    state_.hold(held, now_);
    read();
  }

  void pass() {
    const auto due = state_.deadline();
    if (due && draw(2) == 0) {
      now_ = std::max(now_, *due);
    } else {
      now_ += std::chrono::milliseconds(draw(3000));
    }
    state_.tick(now_);
    read();
  }

  // Nobody new comes and nothing breaks any more: the job must end by itself.
  void settle() {
    hold(false);
    for (int step = 0; step < 500 && !agents_.empty(); ++step) {
      bool acted = false;
      for (auto& [peer, agent] : std::map<Peer, RandomAgent>(agents_)) {
        if (!agents_.contains(peer)) continue;
        acted = acted || agent.doing == RandomAgent::Doing::Working ||
                (agent.doing == RandomAgent::Doing::Stopping && !agent.stuck) ||
                agent.doing == RandomAgent::Doing::Over;
        cooperate(peer);
        if (agents_.contains(peer)) report(peer, false);
      }
      if (acted) continue;
      if (send_heartbeats()) continue;
      const auto due = state_.deadline();
      REQUIRE_MESSAGE(due.has_value(), "somebody waits for ever");
      REQUIRE_MESSAGE(*due > now_, "the deadline is over, and nothing happened");
      now_ = *due;
      state_.tick(now_);
      read();
    }
    REQUIRE_MESSAGE(agents_.empty(), "the job does not end");
  }

  // Who lives is heard of now and then. Whether that mattered to anybody.
  bool send_heartbeats() {
    bool mattered = false;
    for (auto& [peer, agent] : agents_) mattered |= state_.hear(peer, now_);
    read();
    return mattered;
  }

  void read() {
    std::map<std::int64_t, std::set<int>> group_ranks;
    std::shared_ptr<const World> closed;
    std::shared_ptr<const Push> restart;
    for (const Delivery& delivery : state_.take()) {
      if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
        REQUIRE_MESSAGE((!closed || closed == assigned->world), "one view of the round for all");
        closed = assigned->world;
        REQUIRE(group_ranks[closed->id.round].insert(assigned->group_rank).second);
        sit(delivery.to, *assigned);
      } else {
        const auto& push = std::get<std::shared_ptr<const Push>>(delivery.notice);
        const auto* one = std::get_if<Restart>(&*push);
        if (one != nullptr && one->attempt_spent && push != restart) ++spent_;
        if (one != nullptr) restart = push;
        obey(delivery.to, *push);
      }
    }
    if (closed) check_world(*closed, group_ranks[closed->id.round]);
    check_live_worlds();
  }

  void sit(Peer peer, const Assigned& assigned) {
    if (!agents_.contains(peer)) return;
    RandomAgent& agent = agents_.at(peer);
    REQUIRE_MESSAGE(agent.doing == RandomAgent::Doing::Waiting, "only who waits gets a place");
    agent.doing = RandomAgent::Doing::Working;
    const bool again = assigned.world->meeting_of(agent.node.role).again;
    REQUIRE((again ? agent.round == last_number_ : assigned.world->id.round > agent.round));
    agent.round = assigned.world->id.round;
  }

  void obey(Peer peer, const Push& push) {
    if (const auto* restart = std::get_if<Restart>(&push)) {
      if (!agents_.contains(peer) || peer == unasked_) return;
      if (!restart->is_for(agents_.at(peer).node.role)) return;
      REQUIRE(agents_.at(peer).doing != RandomAgent::Doing::Waiting);
      agents_.at(peer).doing = RandomAgent::Doing::Stopping;
      return;
    }
    const auto* done = std::get_if<Done>(&push);
    if (done == nullptr && !std::holds_alternative<Lost>(push)) return;
    if (done != nullptr && state_.phase() == Phase::Ended && !over_) {
      over_ = true;
      failed_ = done->failed;
      if (done->cause.kind == Cause::Kind::Timeout) check_shortage();
    }
    if (done != nullptr && done->cause.kind != Cause::Kind::Closed) {
      REQUIRE_MESSAGE(done->failed == failed_, "one verdict for all");
    }
    if (agents_.contains(peer)) agents_.at(peer).doing = RandomAgent::Doing::Over;
  }

  // Only too few nodes fail a job: not one that does not stop, while enough others are there.
  void check_shortage() {
    const Quorum there = state_.quorum();
    REQUIRE((held_ || rules_.fixed_ranks || there.returning + there.fresh < rules_.min_nodes));
  }

  void check_world(const World& world, const std::set<int>& group_ranks) {
    const int nodes = static_cast<int>(world.members.size());
    REQUIRE(!held_);
    for (const auto& [peer, until] : leavers_) {
      REQUIRE_MESSAGE(until <= now_, "nobody who leaves is still at work");
    }
    REQUIRE(nodes >= rules_.min_nodes);
    REQUIRE(nodes <= rules_.max_nodes);
    REQUIRE(world.spent <= rules_.max_restarts);
    REQUIRE_MESSAGE(world.spent == spent_, "each failure costs one restart, nothing else does");
    check_ranks(world);
    const Node& one = world.members[static_cast<std::size_t>(*group_ranks.begin())];
    if (world.meeting_of(one.role).again) return check_role(world, one.role, group_ranks);
    REQUIRE(world.id.round > last_number_);
    REQUIRE(world.all.attempt == spent_);
    REQUIRE(static_cast<int>(group_ranks.size()) == nodes);
    REQUIRE(*group_ranks.begin() == 0);
    REQUIRE(*group_ranks.rbegin() == nodes - 1);
    last_number_ = world.id.round;
    role_attempt_ = world.spent;
  }

  // A role that starts again does so as a whole, alone, and in the round that runs.
  void check_role(const World& world, const std::string& role, const std::set<int>& group_ranks) {
    REQUIRE(role == rules_.role_restart);
    REQUIRE(world.id.round == last_number_);
    std::set<int> all;
    for (std::size_t i = 0; i < world.members.size(); ++i) {
      if (world.members[i].role == role) all.insert(static_cast<int>(i));
    }
    REQUIRE(group_ranks == all);
    REQUIRE(all.size() < world.members.size());
    const int attempt = world.meeting_of(role).attempt;
    REQUIRE((attempt == role_attempt_ || attempt == role_attempt_ + 1));
    role_attempt_ = attempt;
  }

  void check_ranks(const World& world) {
    int rank = 0;
    std::map<std::string, int> role_rank;
    for (std::size_t i = 0; i < world.members.size(); ++i) {
      const Node& node = world.members[i];
      const Bases& bases = world.ranks.of[i];
      REQUIRE(bases.rank_base == rank);
      REQUIRE(bases.role_rank_base == role_rank[node.role]);
      rank += node.local_world_size;
      role_rank[node.role] += node.local_world_size;
      if (rules_.fixed_ranks) REQUIRE(node.node_rank == static_cast<int>(i));
    }
    REQUIRE(world.ranks.world_size == rank);
    for (std::size_t i = 0; i < world.members.size(); ++i) {
      REQUIRE(world.ranks.of[i].role_world_size == role_rank[world.members[i].role]);
    }
  }

  // Whoever works or has worked is of the newest round: when a round begins, every group of the
  // round before has been stopped, or its agent is known to be gone.
  void check_live_worlds() {
    for (const auto& [peer, agent] : agents_) {
      if (agent.doing == RandomAgent::Doing::Working ||
          agent.doing == RandomAgent::Doing::Finished) {
        REQUIRE(agent.round == last_number_);
      }
    }
  }

  Draw draw;
  const Rules rules_;
  State state_;
  TimePoint now_{1000s};
  std::map<Peer, RandomAgent> agents_;
  std::map<Peer, TimePoint> leavers_;  // until when their groups may be at work
  std::set<std::string> leaving_;      // the names of all that ever were
  Peer last_peer_ = 0, unasked_ = 0;
  std::int64_t last_number_ = 0;
  int spent_ = 0, role_attempt_ = 0;
  bool over_ = false, failed_ = false, held_ = false;
};

}  // namespace

TEST_CASE("rendezvous: what must hold holds under random schedules") {
  for_each_seed([](unsigned seed) { Simulation(seed).run(); });
}
