// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/restart_memory.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/world.hpp"
#include "rendezvous/wire/agent_processes.hpp"
#include "spec/worker_count.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Nodes, causes, rules and rounds as JSON, and what all JSON of the rendezvous goes through. Only
/// for those who write or read it.
namespace elastrun::rendezvous {

constexpr std::int64_t kMaxCount = 100'000'000;
using spec::kMostWorkers;
/// Machines have an address for each rail of each network: eight of them, twice, with IPv4 and
/// IPv6, and those of container bridges. All of them are within the frame that a coordinator takes,
/// and those of five thousand nodes within the 16 MiB of a round.
constexpr std::size_t kMaxAlternateAddresses = 64;

/// Texts are people's names and sentences; a traceback does not travel with the verdict. As sent:
/// a message with all of them, escaped, is within the frame that a coordinator takes (64 KiB).
constexpr std::size_t kLongestSent = 2 << 10;
/// Of a node or a host: of an id, which is "ADDRESS_PID_NUMBER", or of a name in the DNS.
constexpr std::size_t kLongestName = 300;
constexpr std::size_t kLongestStatus = 256 << 20;  // of tens of thousands of nodes

/// The text as it travels: without_controls(), of at most `longest` bytes, and twice that as JSON
/// writes it, cut between characters.
std::string fit_text(std::string_view text, std::size_t longest = kLongestSent);
/// The name of a node or a host as it travels.
inline std::string fit_name(std::string_view name) {
  return fit_text(name, kLongestName);
}
/// The only way from a message to its bytes: every text in it is made fit. One that is not would be
/// refused by the other side, and its sender with it, each time that it tries again.
std::string to_wire(json::value message, std::size_t longest = kLongestSent);

/// Reads members of an object that came from outside. A missing member has its default; one of the
/// wrong kind, or a number out of range, clears `sound`, which all readers of one message share.
/// Texts come out as a terminal may show them (without_controls), so that no later place has to.
class Reader {
 public:
  Reader(const json::value& value, bool& sound) : value_(&value), sound_(&sound) {
    sound = sound && value.is_object();
  }
  std::string text(std::string_view name, std::size_t longest = kLongestSent) const;
  std::string text_in(const json::value& value, std::size_t longest = kLongestSent) const;
  /// The name of a node or a host: one that is longer, or cannot be shown as it is, is unsound.
  std::string name(std::string_view name) const;
  std::string name_in(const json::value& value) const;
  bool flag(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t low = 0,
                       std::int64_t high = std::numeric_limits<std::int64_t>::max(),
                       std::int64_t otherwise = 0) const;
  double number(std::string_view name, double low, double high, double otherwise) const;
  /// An object inside this one; empty if missing.
  Reader member(std::string_view name) const;
  /// The elements of an array; none if missing.
  const json::array& elements(std::string_view name) const;
  bool has(std::string_view name) const { return find_member(*value_, name) != nullptr; }
  bool& sound() const { return *sound_; }

 private:
  const json::value* value_;
  bool* sound_;
};

std::unexpected<Error> unknown_message(std::string_view kind);
std::unexpected<Error> unsound_message(std::string_view kind);

/// Adds the address from which this node was seen to come, if it did not name it itself. Behind
/// address translation no node knows its own, and its workers come to the store from there.
void add_source_address(Node& node, const boost::asio::ip::address& seen);

json::object write_node(const Node& node);
Node read_node(const Reader& reader);
json::object write_cause(const Cause& cause);
Cause read_cause(const Reader& reader);
json::object write_rules(const Rules& rules);
Rules read_rules(const Reader& reader);
json::object write_round(const Round& round);
Round read_round(const Reader& reader);

/// The members of a world as text, made once and given to `encode_assignment` for each of its
/// members.
std::string encode_members(const World& world);
/// What `encode` gives for the RoundReady of that member: with all members for group rank 0 and in
/// worlds of up to kFullWorld nodes, with their number only otherwise.
std::string encode_assignment(const World& world, int group_rank, const std::string& members);
constexpr std::size_t kFullWorld = 64;

/// Progress and stacks of workers as JSON (elastrun-protocol(7)).

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

/// The restart policy's memory, and what a preemption says, as JSON (elastrun-protocol(7)).

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

/// What agents and coordinator say to each other, as JSON objects (elastrun-protocol(7)). Unknown
/// members are ignored, so that later versions may add some; what is missing has its default;
/// what is of the wrong kind is refused. Pure.

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
