// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/wire/agent_processes.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

/// What agents and coordinator say to each other, as JSON objects (elastrun-protocol(7)). Unknown
/// members are ignored, so that later versions may add some; what is missing has its default;
/// what is of the wrong kind is refused. Pure.
namespace elastrun::rendezvous {

struct Join {
  Node node;
  PreviousWorld previous;
  Rules rules;            // used by a coordinator that serves any job, checked by others
  PreviousWorld knows{};  // of which world, if that is a later one, that it was no member of
};
/// A member whose group is being stopped, and ends within `left`: until then it does not join.
struct AtWork {
  Join member;
  Duration left{};
};
/// The first message on each connection.
struct Hello {
  std::string run_id;          // empty: any, only for status queries
  bool wants_status = false;   // only asks, not an agent
  std::int64_t epoch = 0;      // the highest that this agent has seen
  std::string start{};         // which start of the job, as its scheduler tells; empty: not known
  std::string host{}, user{};  // of the process
  std::optional<AtWork> at_work{};
  std::optional<AgentProcesses> processes{};
  bool wants_stacks = false;  // only asks where the workers of that job stand
  bool stacks = false;        // it understands TakeStacks and StacksReport
  bool saves = false;         // and AskReached and SaveAt
};
/// It was told to stop its group, and has begun to; this ends within `left`.
struct Stopping {
  Duration left{};
};
/// Both ways.
struct Heartbeat {};
using FromAgent =
    std::variant<Hello, Join, Started, Failed, Succeeded, Leaving, Stopping, Heartbeat,
                 ProgressReport, NodeStacks, AskStacks, Reached, AskPreempt>;

/// The first answer.
struct Welcome {
  std::string run_id;
  std::int64_t epoch = 0;
  bool stand_alone = false;  // not hosted by an agent: may come back after it was lost
  Duration heartbeat = std::chrono::seconds(5);
  int heartbeats_missed = 3;  // so many in a row make a peer silent
  /// It understands `Stopping`, and waits for those who say it.
  bool fences = false;
  PreviousWorld world{};  // the last one that it knows of
  bool stacks = false;    // it understands ProgressReport, NodeStacks and AskStacks
  bool saves = false;     // and Reached and AskPreempt
};
struct Refusal {
  std::string text;
  bool final = false;   // another coordinator of this job would say the same
  bool misuse = false;  // what was asked for cannot be: exit code 2
};
/// The coordinator was elected again and stays the same.
struct NewEpoch {
  std::int64_t epoch = 0;
};
/// The answer to a status query: JSON for people's tools.
struct StatusText {
  std::string json;
};
using FromCoordinator = std::variant<Welcome, Refusal, NewEpoch, Push, Heartbeat, StatusText>;

std::string encode(const FromAgent& message);
std::string encode(const FromCoordinator& message);
/// Fails with Protocol.
Result<FromAgent> decode_from_agent(std::string_view text);
Result<FromCoordinator> decode_from_coordinator(std::string_view text);

}  // namespace elastrun::rendezvous
