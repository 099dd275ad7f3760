// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <array>
#include <boost/describe/class.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// The built-in values of --rdzv-backend.
namespace backend {
constexpr std::string_view kStatic = "static", kC10d = "c10d", kEtcd = "etcd", kEtcdV2 = "etcd-v2",
                           kFile = "file";
inline constexpr std::array kBuiltIn = {kStatic, kC10d, kEtcd, kEtcdV2, kFile};
}  // namespace backend

// Where the endpoint names none: torchrun's, torchrun's, etcd's.
constexpr std::uint16_t kC10dPort = 29400, kStaticPort = 29500, kEtcdPort = 2379;

/// Ports to try, first to last; 0-0: any free one.
struct PortRange {
  std::uint16_t first = 0, last = 0;
  bool operator==(const PortRange&) const = default;
};

/// Settings that the built-in rendezvous back ends read from --rdzv-conf, with the defaults.
/// elastrun(1) has a line for each; those that torchrun knows have its names and defaults. A new
/// key is a member here and a row in option_table.cpp. One that the coordinator obeys is a member
/// of rendezvous::Rules, too, which rules_of() fills.
struct RendezvousConfig {
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call_timeout = std::chrono::seconds(30);
  Duration close_timeout = std::chrono::seconds(30);
  Duration timeout = std::chrono::seconds(900);      // what join_timeout is, for static
  Duration read_timeout = std::chrono::seconds(60);  // of one attempt to reach the coordinator
  Duration keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_max_attempt = 3;
  bool meets_in_file = false;     // store_type=file: c10d becomes the file back end
  std::optional<bool> is_host{};  // of c10d's coordinator; none: by the endpoint
  PortRange store_port{};         // of the workers' store
  std::string secret_file{};

  // Elected coordinators
  Duration lease_ttl = std::chrono::seconds(10);
  Duration isolation_timeout = std::chrono::seconds(120);
  PortRange coordinator_port{};
  std::string advertise{};  // the address for others; empty: --local-addr, or found out

  // etcd
  std::string etcd_prefix = "/elastrun";
  std::string protocol{};  // "https": TLS also where the endpoint does not say so
  std::string ca_cert{}, ssl_cert{}, ssl_cert_key{};
  std::string user{}, password{}, password_file{};
};

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
