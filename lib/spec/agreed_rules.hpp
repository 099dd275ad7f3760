// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <boost/describe/class.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// The most workers of one node: more is a slip of the finger, or hostile. As many nodes as a round
/// has at most still have a number of workers.
constexpr std::int64_t kMostWorkers = 20'000;

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

/// Causes that end workers, as --restart-rule names them.
enum class CauseClass {
  Error,
  External,  // something outside the program can explain it
  Code,      // nothing outside the program can
  Crash,
  Oom,
  Gpu,
  Hang,
  Timer,
  NodeLost,
  Preempted
};
/// "error", "external", "code", "crash", "oom", "gpu", "hang", "timer", "node-lost", "preempted".
std::string_view cause_class_name(CauseClass cause);
std::optional<CauseClass> find_cause_class(std::string_view name);

enum class RestartPolicy { Torchrun, Auto };

/// One --restart-rule: what it is about, and what follows.
struct RestartRuleLine {
  std::string text;  // as it was written
  // What all must be so. Nothing given: any cause.
  std::optional<CauseClass> cause{};
  std::optional<int> exit_code{};  // torchrun's number: negative is a signal
  std::string exception{};         // the beginning of a fingerprint up to its place
  std::string role{};
  // What follows. Nothing given: what would follow without the rule.
  bool fails = false;                // the job ends; a requeue does not help either
  bool is_free = false;              // a restart that spends nothing
  std::optional<int> at_most{};      // restarts of this rule, which spend nothing else
  std::optional<Duration> within{};  // of those
  bool excludes = false;             // the node is left out from then on
};

/// "oom:1", "exit=93:fail", "gpu:2/1h,exclude", "role=actor+any:free". Fails with Usage and one
/// sentence: what is wrong, and what is allowed. Pure.
Result<RestartRuleLine> parse_restart_rule(std::string_view text);

/// Several, separated by commas or blanks; a part without ':' belongs to the rule before it.
Result<std::vector<RestartRuleLine>> parse_restart_rules(std::string_view text);

/// Checks a place in a network, the outermost level first, with a point between two levels:
/// "zone1.rack7". Returns why it is not such an address; empty: it is one. Pure.
std::string topology_problem(std::string_view address);

}  // namespace elastrun::spec
