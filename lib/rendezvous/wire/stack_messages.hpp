// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/wire/message_parts.hpp"

#include <optional>
#include <string_view>
#include <vector>

/// Progress and stacks of workers as JSON (elastrun-protocol(7)).
namespace elastrun::rendezvous {

json::object write(const ProgressReport& report);
json::object write(const NodeStacks& stacks);
json::object write(const TakeStacks& order);
json::object write(const StacksReport& report);

ProgressReport read_progress_report(const Reader& reader);
NodeStacks read_node_stacks(const Reader& reader);
/// A TakeStacks or StacksReport; nothing for another type.
std::optional<Push> read_stacks_push(std::string_view type, const Reader& reader);

/// The answer in parts that each fit into a frame to the coordinator; at least one.
std::vector<NodeStacks> parts_of(NodeStacks stacks);

}  // namespace elastrun::rendezvous
