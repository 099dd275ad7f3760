// SPDX-License-Identifier: Apache-2.0
// Agents and their coordinator in a random world: each word is on its way for a while, so that
// restarts of one role, of all, failures, successes and losses cross each other in every order.
#include "agent/loop/node_policy.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/session/make_session.hpp"

#include <cstdlib>
#include <deque>
#include <doctest/doctest.h>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using rendezvous::Peer;

void insist(bool holds, const char* text) {
  if (!holds) FAIL(std::string(text));
}

/// One agent: the policy and the session's part of it, a group, and the words under way.
struct RoleNode {
  explicit RoleNode(const std::string& role) : policy({}, role), membership(role) {}
  NodePolicy policy;
  rendezvous::Membership membership;
  rendezvous::Node self;
  std::deque<rendezvous::Push> to_agent;
  std::deque<std::function<void()>> to_coordinator;
  std::deque<Fact> facts;
  bool runs = false, asked = false, over = false, has_failed = false;
  std::int64_t round = 0;
  int attempt = -1, starts = 0;
};

class RoleJob {
 public:
  explicit RoleJob(unsigned seed) : random_(seed), state_(rules(), "job") {
    state_.set_epoch(1);
    const int generators = 1 + draw(3);
    for (int i = 0; i < kNodes; ++i) {
      const std::string role = i < generators ? "generator" : "trainer";
      auto node = std::make_unique<RoleNode>(role);
      node->self.id = "n" + std::to_string(i) + "_1_0";
      node->self.instance = node->self.id;
      node->self.role = role;
      nodes_[static_cast<Peer>(i + 1)] = std::move(node);
    }
  }

  void live() {
    for (auto& [peer, node] : nodes_) act(peer, node->policy.begin());
    for (int i = 0; i < 400 && !all_over(); ++i) happen(true);
    for (int i = 0; i < 20'000 && !all_over(); ++i) happen(false);
    insist(all_over(), "the job ends when nothing fails any more");
  }

 private:
  static constexpr int kNodes = 4;

  static rendezvous::Rules rules() {
    rendezvous::Rules rules;
    rules.min_nodes = 1;
    rules.max_nodes = kNodes;
    rules.max_restarts = 1000;
    rules.role_restart = "generator";
    rules.last_call_timeout = 1s;
    return rules;
  }
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool all_over() const {
    return std::ranges::all_of(nodes_, [](const auto& each) { return each.second->over; });
  }

  void happen(bool fails) {
    auto at = nodes_.begin();
    std::advance(at, draw(kNodes));
    auto& [peer, node] = *at;
    switch (draw(7)) {
      case 0:
      case 1:
        return hear(*node);
      case 2:
      case 3:
        return tell(*node);
      case 4:
        return live_group(peer, *node, fails);
      case 5:
        now_ += std::chrono::milliseconds(draw(200));
        state_.tick(now_);
        return deliver();
      default:
        return fails && draw(100) == 0 ? lose(peer, *node) : work_off(peer, *node);
    }
  }

  // What a session does with a word of the coordinator before its agent hears it.
  void hear(RoleNode& node) {
    if (node.to_agent.empty() || node.over) return;
    rendezvous::Push push = std::move(node.to_agent.front());
    node.to_agent.pop_front();
    if (const auto* ready = std::get_if<rendezvous::RoundReady>(&push)) {
      const bool old = ready->round.number <= node.membership.previous().id.round;
      insist(!old || node.membership.is_started_again(ready->round), "no round comes twice");
      node.membership.sit(ready->round);
    } else if (const auto* restart = std::get_if<rendezvous::Restart>(&push)) {
      const bool ours = restart->is_for(node.self.role);
      if (ours && !node.membership.give_up(now_, !restart->role.empty())) return;
      node.membership.hear(*restart);
    }
    // One whose directories are not made by then is dropped (RunFiles).
    const auto* restart = std::get_if<rendezvous::Restart>(&push);
    if (restart != nullptr && restart->is_for(node.self.role)) {
      std::erase_if(node.facts, [](const Fact& fact) {
        const auto* pushed = std::get_if<Pushed>(&fact);
        return pushed != nullptr && std::holds_alternative<rendezvous::RoundReady>(pushed->push);
      });
    }
    node.facts.push_back(Pushed{std::move(push)});
  }

  void tell(RoleNode& node) {
    if (node.to_coordinator.empty()) return;
    const auto word = std::move(node.to_coordinator.front());
    node.to_coordinator.pop_front();
    word();
    deliver();
  }

  void deliver() {
    for (const auto& delivery : state_.take()) {
      const auto found = nodes_.find(delivery.to);
      if (found != nodes_.end()) found->second->to_agent.push_back(to_push(delivery.notice));
    }
  }

  void live_group(Peer peer, RoleNode& node, bool fails) {
    if (node.asked) {
      node.runs = node.asked = false;
      node.facts.push_back(GroupGone{});
    } else if (node.runs && !node.has_failed && draw(fails ? 8 : 2) == 0) {
      if (fails && draw(3) != 0) {
        node.has_failed = true;
        node.facts.push_back(WorkerFailed{true, false});
      } else {
        node.facts.push_back(AllSucceeded{});
      }
    }
    work_off(peer, node);
  }

  void lose(Peer peer, RoleNode& node) {
    if (nodes_.size() < 2 || node.over || lost_ == kNodes - 1) return;
    ++lost_;
    node.over = true, node.runs = node.asked = false;
    node.to_coordinator.clear();
    state_.depart(peer, "killed", now_, rendezvous::Loss::Ended);
    deliver();
  }

  void work_off(Peer peer, RoleNode& node) {
    while (!node.facts.empty() && !node.over) {
      const Fact fact = std::move(node.facts.front());
      node.facts.pop_front();
      act(peer, node.policy.step(fact));
    }
  }

  void act(Peer peer, const std::vector<Action>& actions) {
    RoleNode& node = *nodes_.at(peer);
    for (const auto& action : actions) {
      if (std::holds_alternative<Join>(action)) join(peer, node);
      if (const auto* start = std::get_if<StartGroup>(&action)) begin(node, start->round);
      if (std::holds_alternative<StopGroup>(action) || std::holds_alternative<FinishGroup>(action))
        node.asked = node.runs;
      const auto round = node.round;
      if (std::holds_alternative<TellFailed>(action)) {
        send(node, [this, peer, round, id = node.self.id] {
          state_.fail(peer, round, {.node = id, .exit_code = 1}, now_);
        });
      } else if (std::holds_alternative<TellSucceeded>(action)) {
        send(node, [this, peer, round] { state_.succeed(peer, round, now_); });
      } else if (std::holds_alternative<TellStarted>(action)) {
        send(node, [this, peer, round] { state_.started(peer, round, now_); });
      } else if (std::holds_alternative<End>(action)) {
        insist(!node.runs, "no end while workers run");
        node.over = true;
      }
    }
  }

  void send(RoleNode& node, std::function<void()> word) {
    node.to_coordinator.push_back(std::move(word));
  }

  void join(Peer peer, RoleNode& node) {
    insist(!node.runs, "who joins has no group");
    node.self.store_port = static_cast<std::uint16_t>(1000 + ++ports_);
    node.membership.want(node.self);
    const auto asked = node.membership.describe("10.0.0.1", state_.rules(), -1);
    send(node, [this, peer, asked] { state_.join(peer, asked.node, asked.previous, now_); });
  }

  void begin(RoleNode& node, const rendezvous::Round& round) {
    insist(!node.runs, "one group at a time");
    const bool same = node.round == round.number;
    insist(!same || (node.self.role == "generator" && round.again),
           "only a role that restarts alone starts twice in a round");
    insist(round.attempt >= node.attempt, "the count of restarts never goes back");
    insist(!same || round.attempt > node.attempt, "and each restart is one more");
    check_others(node, round);
    node.round = round.number, node.attempt = round.attempt;
    node.runs = true, node.has_failed = false;
    node.facts.push_back(GroupStarted{});
  }

  /// Of one role no two attempts are at work, and of all no two rounds.
  void check_others(const RoleNode& node, const rendezvous::Round& round) {
    for (const auto& [peer, other] : nodes_) {
      if (!other->runs || other.get() == &node) continue;
      insist(other->round == round.number, "no two rounds are at work");
      if (other->self.role != node.self.role) continue;
      insist(other->attempt == round.attempt, "no two attempts of a role are at work");
    }
  }

  std::minstd_rand random_;
  rendezvous::State state_;
  TimePoint now_{1000s};
  std::map<Peer, std::unique_ptr<RoleNode>> nodes_;
  int lost_ = 0, ports_ = 0;
};

TEST_CASE("own roles: whatever crosses, no attempt runs beside the next, and the job ends") {
  const char* only = std::getenv("ELASTRUN_TEST_SEED");
  const unsigned first = only != nullptr ? static_cast<unsigned>(std::atoi(only)) : 1;
  for (unsigned seed = first; seed <= (only != nullptr ? first : 2'000); ++seed) {
    CAPTURE(seed);
    RoleJob(seed).live();
  }
}

}  // namespace
}  // namespace elastrun::agent
