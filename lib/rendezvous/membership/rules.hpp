// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/agreed_rules.hpp"

#include <string>

namespace elastrun::spec {
struct JobSpec;
}

namespace elastrun::rendezvous {

/// What a job asks of its rendezvous. Times are torchrun's keys of --rdzv-conf. What is described
/// below goes to the coordinator, under its name.
struct Rules : spec::AgreedRules {
  bool fixed_ranks = false;  // static: exactly max_nodes, each with its own node rank
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call_timeout = std::chrono::seconds(30);

  // From here on each coordinator has its own.
  /// How long newcomers of a running world are collected before it is stopped for them. Its
  /// training goes on meanwhile; without it ten nodes booting at once would cost ten restarts.
  Duration growth_delay = std::chrono::seconds(1);
  /// How long the last failure waits for what other nodes saw at the same moment, so that each
  /// reports its own workers. Well below the 100 ms in which all groups must be told to stop.
  Duration verdict_window = std::chrono::milliseconds(50);
  /// How long a failure that blames a peer waits for that peer's own one: the victim's process may
  /// end before the culprit's has.
  Duration culprit_wait = std::chrono::seconds(3);
  /// How long it takes a member at most to notice that it was lost, or is to stop. Given by the
  /// coordinator, which knows how often it hears from its members.
  Duration reaction{};
  /// After how long without a word of its coordinator a member stops its group at the latest.
  Duration silence{};
  /// Whether an agent hosts the coordinator. A standalone one may be restarted, and learns of the
  /// previous world only from the agents that come.
  bool hosted = true;
  /// How often those who wait hear who is missing.
  Duration progress_interval = std::chrono::seconds(5);
};
BOOST_DESCRIBE_STRUCT(Rules, (spec::AgreedRules), (fixed_ranks, join_timeout, last_call_timeout))

/// Those of a job.
Rules rules_of(const spec::JobSpec& job);

struct RestartSettings;
RestartSettings restart_settings(const spec::AgreedRules& rules, const std::string& run_id);

}  // namespace elastrun::rendezvous
