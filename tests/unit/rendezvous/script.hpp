// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/state.hpp"

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

/// A few words in which tests of the rendezvous are written: a job, its agents by letter, and what
/// each was told last.
namespace elastrun::rendezvous::test {

using namespace std::chrono_literals;

inline Node make_node(const std::string& name, int workers = 1) {
  Node node;
  node.id = name + "_1_0";
  node.address = name;
  node.store_port = 29000;
  node.local_world_size = workers;
  return node;
}

inline Rules make_rules(int min_nodes, int max_nodes, int max_restarts = 0) {
  Rules rules;
  rules.min_nodes = min_nodes;
  rules.max_nodes = max_nodes;
  rules.max_restarts = max_restarts;
  return rules;
}

struct Script {
  explicit Script(Rules rules, std::string master_addr = {}, std::uint16_t master_port = 0)
      : state(rules, "job", std::move(master_addr), master_port) {}

  void join(const std::string& name, PreviousWorld previous = {}, int node_rank = -1) {
    if (!peers.contains(name)) peers[name] = ++last_peer;
    Node node = make_node(name);
    node.node_rank = node_rank;
    node.grace = grace;
    state.join(peers[name], std::move(node), previous, now);
    read();
  }
  void fail(const std::string& name, int exit_code = 1) {
    Cause cause;
    cause.node = name;
    cause.exit_code = exit_code;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  /// By its own words because a peer went away.
  void fail_of_peer(const std::string& name) {
    Cause cause;
    cause.node = name;
    cause.blames_peer = true;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  /// As a fault of a device of that node.
  void fail_of_gpu(const std::string& name) {
    Cause cause;
    cause.node = name + "_1_0";
    cause.what = spec::CauseClass::Gpu;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  void succeed(const std::string& name) {
    state.succeed(peers[name], state.round_number(), now);
    read();
  }
  void hear(const std::string& name) {
    state.hear(peers[name], now);
    read();
  }
  void lose(const std::string& name, Loss loss = Loss::Ended) {
    state.depart(peers[name], "connection reset", now, loss);
    peers.erase(name);
    read();
  }
  /// Told to stop, it says that it has heard that.
  void acknowledge(const std::string& name, Duration left) {
    state.stopping(peers[name], left, now);
    read();
  }
  /// It comes over a new connection while its group is being stopped.
  void arrive_stopping(const std::string& name, const PreviousWorld& previous, Duration left) {
    peers[name] = ++last_peer;
    Node node = make_node(name);
    node.grace = grace;
    state.arrive_stopping(peers[name], node, previous, left, now);
    read();
  }
  void leave(const std::string& name) {
    state.leave(peers[name], "SIGTERM", now);
    peers.erase(name);
    read();
  }
  void pass(Duration time) {
    now += time;
    state.tick(now);
    read();
  }
  void read() {
    for (const Delivery& delivery : state.take()) {
      for (const auto& [name, peer] : peers) {
        if (peer == delivery.to) told[name].push_back(to_push(delivery.notice));
      }
    }
  }

  /// The last thing that agent was told, or null if it is of another kind.
  template <class T>
  const T* last(const std::string& name) {
    return told[name].empty() ? nullptr : std::get_if<T>(&told[name].back());
  }
  /// "GROUP_RANK/NODES#NUMBER" of the round it was told last, or "".
  std::string assignment(const std::string& name) {
    const auto* ready = last<RoundReady>(name);
    if (ready == nullptr) return "";
    return std::to_string(ready->round.group_rank) + "/" +
           std::to_string(ready->round.group_world_size()) + "#" +
           std::to_string(ready->round.number);
  }
  /// That after so long, and no earlier.
  std::string assignment_after(Duration time, const std::string& name) {
    pass(time - 100ms);
    if (const auto early = assignment(name); !early.empty()) return "too early: " + early;
    pass(100ms);
    return assignment(name);
  }

  State state;
  Duration grace{};  // of nodes that join
  TimePoint now{1000s};
  Peer last_peer = 0;
  std::map<std::string, Peer> peers;
  std::map<std::string, std::vector<Push>> told;
};

}  // namespace elastrun::rendezvous::test
