// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/roster.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Nodes that cannot start their workers (no such program), and say so. A job that has never run
/// and cannot have its nodes without them has failed. Then they wait until the others have heard of
/// that: one of them may host the coordinator, which those who come later look for. Pure.
class UnableNodes {
 public:
  /// `text`: which node, and why.
  void add(const Node& node, std::string text) {
    latest_ = std::move(text);
    if (nodes_.size() < kMost) nodes_.insert(agent_name(node));
  }
  bool leave_enough(const Rules& rules) const {
    return rules.max_nodes - static_cast<int>(nodes_.size()) >= rules.min_nodes;
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

  std::set<std::string> nodes_;
  std::string latest_;
  std::vector<Peer> waiting_;
  std::optional<TimePoint> until_;
  int told_ = 0;
};

}  // namespace elastrun::rendezvous
