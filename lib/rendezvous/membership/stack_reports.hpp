// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "hangs/hang_rule.hpp"
#include "hangs/stacks.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// What agents and coordinator tell each other of workers that stand still.
namespace elastrun::rendezvous {

/// What it says of the progress of its workers, whenever that changes (Standstill).
struct ProgressReport {
  std::int64_t round = 0;
  hangs::NodeProgress what;
  Duration standing{};                // without progress
  std::map<int, std::string> held{};  // ranks that are stopped or traced, and by what
};
/// Part of its answer to TakeStacks.
struct NodeStacks {
  std::int64_t id = 0;
  std::vector<hangs::StackGroup> groups;
  std::vector<std::string> dumps;
  bool last = false;
};
/// It wants the StacksReport, for a client on its machine.
struct AskStacks {};

/// Take the stacks of your workers, disturbing them as little as can be, and answer soon.
struct TakeStacks {
  std::int64_t id = 0;
  bool hang = false;  // they do not move; else a client has asked
};
/// Where the workers of the job stand.
struct StacksReport {
  hangs::JobStacks stacks;
  bool hang = false;
  Duration standing{};  // for how long, if so
  /// The first rank of the node that does for all what is to be done about a hang.
  int speaker = 0;
};

}  // namespace elastrun::rendezvous
