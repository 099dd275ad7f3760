// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/describe/class.hpp>
#include <string>

namespace elastrun::spec {

/// The options that all nodes of a job have to agree on. They are members of the job and of the
/// rules of its rendezvous, and each goes to the coordinator under its name: one that is added
/// here and described below needs no further line for that.
struct AgreedRules {
  int min_nodes = 1, max_nodes = 1;
  int max_restarts = 0;
  bool restart_policy_auto = false;
  std::string restart_rule{};        // all of them, as parse_restart_rules reads them; checked
  bool preempt_ack_all = false;      // a preempted job waits until every rank has saved
  bool rank_order_topology = false;  // nodes that are near each other have neighbouring ranks
  /// Roles that restart alone: names in order, with commas between them.
  std::string role_restart{};
  bool operator==(const AgreedRules&) const = default;
};
BOOST_DESCRIBE_STRUCT(AgreedRules, (),
                      (min_nodes, max_nodes, max_restarts, restart_policy_auto, restart_rule,
                       preempt_ack_all, rank_order_topology, role_restart))

}  // namespace elastrun::spec
