// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "rendezvous/membership/restart_memory.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/wire/message_parts.hpp"

#include <memory>
#include <optional>
#include <string_view>

/// The restart policy's memory, and what a preemption says, as JSON (elastrun-protocol(7)).
namespace elastrun::rendezvous {

json::object write(const Reached& reached);
json::object write(const AskPreempt& ask);
json::object write(const AskReached& ask);
json::object write(const SaveAt& order);
Reached read_reached(const Reader& reader);
AskPreempt read_ask_preempt(const Reader& reader);
/// An AskReached or SaveAt; nothing for another type.
std::optional<Push> read_preemption_push(std::string_view type, const Reader& reader);

json::object write_memory(const RestartMemory& memory);
/// What is more than the most is left out.
RestartMemory read_memory(const Reader& reader);
/// Of a message's member "memory"; null if there is none.
std::shared_ptr<const RestartMemory> read_memory_of(const Reader& message);

}  // namespace elastrun::rendezvous
