// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/codec.hpp"
#include "core/error.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/world.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/describe/class.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <variant>
#include <vector>

/// What agents and coordinator say to each other, as JSON objects (elastrun-protocol(7)); a
/// described struct has the members that are sent, under their names. Unknown
/// members are ignored, a missing one has its default, one of the wrong kind makes the message
/// invalid. Pure.
namespace elastrun::rendezvous {

constexpr std::int64_t kMaxCount = Codec::kMostCounted;
/// Machines have an address for each rail of each network: eight of them, twice, with IPv4 and
/// IPv6, and those of container bridges. All of them are within the frame that a coordinator takes,
/// and those of five thousand nodes within the 16 MiB of a round.
constexpr std::size_t kMaxAlternateAddresses = 64;
/// Texts are people's names and sentences; a traceback does not travel with the verdict. As sent:
/// a message with all of them, escaped, is within the frame that a coordinator takes (64 KiB).
constexpr std::size_t kLongestSent = Codec::kLongestText;
constexpr std::size_t kLongestStatus = 256 << 20;  // of tens of thousands of nodes

/// Adds the address from which this node was seen to come, if it did not name it itself. Behind
/// address translation no node knows its own, and its workers come to the store from there.
void add_source_address(Node& node, const boost::asio::ip::address& seen);

// For what is written elsewhere: files, the register, the report.
void members(Codec& codec, Node& node);
void members(Codec& codec, Cause& cause);
void members(Codec& codec, RestartMemory& memory);
/// The member `kind` of a Cause.
void cause_kind(Codec& codec, Cause::Kind& kind);

/// The members of a world as text, made once and given to `encode_assignment` for each of its
/// members.
std::string encode_members(const World& world);
/// What `encode` gives for the RoundReady of that member: with all members for group rank 0 and in
/// worlds of up to kFullWorld nodes, with their number only otherwise.
std::string encode_assignment(const World& world, int group_rank, const std::string& members);
constexpr std::size_t kFullWorld = 64;

/// The answer in parts that each fit into a frame to the coordinator; at least one.
std::vector<NodeStacks> parts_of(NodeStacks stacks);

/// A process by what no other one has until the machine is started again. No `pid`: there is none.
struct ProcessMark {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // as process::ProcessEntry
  bool operator==(const ProcessMark&) const = default;
};

/// The processes of an agent, and of which kernel and pid namespace these numbers are: as it claims
/// in its first word. A lie misleads only about the liar's own end.
struct AgentProcesses {
  std::string boot;              // /proc/sys/kernel/random/boot_id; empty: not told
  std::uint64_t namespace_ = 0;  // process::own_pid_namespace
  ProcessMark agent, guardian;
  bool operator==(const AgentProcesses&) const = default;
};

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
  /// An agent, or a client that only asks: for the status, or where the workers of that job stand.
  enum class Who { Agent, Status, Stacks };
  std::string run_id;  // empty: any, only for status queries
  Who who = Who::Agent;
  std::int64_t epoch = 0;      // the highest that this agent has seen
  std::string start{};         // which start of the job, as its scheduler tells; empty: not known
  std::string host{}, user{};  // of the process
  std::optional<AtWork> at_work{};
  std::optional<AgentProcesses> processes{};
};
/// It was told to stop its group, and has begun to; this ends within `left`.
struct Stopping {
  Duration left{};
};
BOOST_DESCRIBE_STRUCT(Stopping, (), (left))
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
  PreviousWorld world{};      // the last one that it knows of
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
BOOST_DESCRIBE_STRUCT(NewEpoch, (), (epoch))
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
