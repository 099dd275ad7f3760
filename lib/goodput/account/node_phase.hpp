// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <optional>
#include <string_view>

namespace elastrun::goodput {

/// Where the agent of a node stands: what it decides by, and what its journal's `phase` events say.
enum class NodePhase {
  Joining,   // waits for the other nodes
  Starting,  // starts the workers
  Running,
  Settling,  // a worker failed because of another one, which is about to end
  Stopping,  // ends the group
  Waiting,   // the group is gone; waits to be told whether to restart
  Barrier,   // all workers of this node have succeeded; waits for the other nodes
  Ended,
};
/// "joining", "starting", ...: as in the journal.
std::string_view phase_name(NodePhase phase);
std::optional<NodePhase> phase_named(std::string_view name);
/// That of a record of an agent; none if it is not such an event, or names one that is not known.
std::optional<NodePhase> phase_of(const telemetry::Record& record);

}  // namespace elastrun::goodput
