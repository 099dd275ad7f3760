// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/roster.hpp"

#include <algorithm>
#include <map>
#include <optional>
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

}  // namespace elastrun::rendezvous
