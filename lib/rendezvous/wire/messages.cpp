// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/wire/messages.hpp"

#include "core/text.hpp"
#include "spec/agreed_rules.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 8> kCauseWords = {
    "worker_failed", "node_lost", "node_left",        "node_joined",
    "closed",        "preempted", "coordinator_lost", "timeout"};
constexpr std::array<std::string_view, 3> kAskerWords = {"agent", "status", "stacks"};
constexpr std::array<std::string_view, 3> kProgressWords = {"moves", "stands", "excused"};

// A number, with the name of an interface.
constexpr std::size_t kLongestAddress = 64;
constexpr std::int64_t kMostRounds = std::int64_t{1} << 53;      // another one can always follow
constexpr std::int64_t kMostNodes = 100'000;                     // that one coordinator can serve
constexpr double kLongestStanding = 1e9, kLongestSilence = 1e9;  // seconds
// Limits of what one node may bring: the coordinator keeps it for tens of thousands of them.
constexpr std::size_t kMostDumps = 64;
constexpr std::size_t kMostHeld = 64;  // of a node that are named
constexpr std::size_t kLongestHeld = 256;
// Few bytes can stand for many ranks of a job.
constexpr std::int64_t kMostRanks = 1 << 21;
// The memory travels with each restart: its sentences are cut shorter than others.
constexpr std::size_t kLongestOfMemory = 200;

/// A step or checkpoint; -1: not known.
void step_member(Codec& codec, std::string_view name, std::int64_t& step) {
  codec(name, step, -1);
}

void class_member(Codec& codec, spec::CauseClass& what) {
  std::string word(spec::cause_class_name(what));
  codec("class", word);
  if (!codec.reads()) return;
  // An unknown one counts as an error: a restart memory may be of a newer program.
  what = spec::find_cause_class(word).value_or(spec::CauseClass::Error);
}

/// Ranks that follow each other as [first, last]: most of the tens of thousands of a large job wait
/// at one place, and each of its nodes hears of that. `left`: how many more this message may have.
void ranks_member(Codec& codec, std::vector<int>& ranks, std::int64_t& left) {
  if (codec.reads()) {
    const auto add = [&](const json::value& first, const json::value& last) {
      const auto *from = first.if_int64(), *to = last.if_int64();
      const bool good =
          from != nullptr && to != nullptr && *from >= 0 && *from <= *to && *to < kMaxCount;
      if (good) left -= *to - *from + 1;
      if (!good || left < 0) return codec.refuse("ranks");
      for (auto rank = *from; rank <= *to; ++rank) ranks.push_back(static_cast<int>(rank));
    };
    for (const auto& one : codec.elements("ranks")) {
      const auto* range = one.if_array();
      if (range == nullptr) {
        add(one, one);
      } else {
        range->size() == 2 ? add(range->front(), range->back()) : codec.refuse("ranks");
      }
    }
    return;
  }
  json::array list;
  for (std::size_t first = 0; first < ranks.size();) {
    auto last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last > first) {
      list.emplace_back(json::array{ranks[first], ranks[last]});
    } else {
      list.emplace_back(ranks[first]);
    }
    first = last + 1;
  }
  codec.put("ranks", std::move(list));
}

void groups_member(Codec& codec, std::vector<hangs::StackGroup>& groups, std::int64_t& ranks_left) {
  codec.list("groups", groups, kMaxCount, [&](Codec& inner, hangs::StackGroup& group) {
    ranks_member(inner, group.ranks, ranks_left);
    inner("lines", group.lines, hangs::kMostLines);
  });
}

void held_member(Codec& codec, std::map<int, std::string>& held) {
  std::vector<std::pair<int, std::string>> list(held.begin(), held.end());
  if (list.size() > kMostHeld) list.resize(kMostHeld);
  codec.list("held", list, kMostHeld, [](Codec& inner, auto& worker) {
    inner("rank", worker.first);
    // Names of processes are in it, which may hold any bytes.
    inner("by", worker.second, kLongestHeld);
  });
  if (codec.reads()) held = {list.begin(), list.end()};
}

/// An address that is none counts as not known.
void topology_member(Codec& codec, std::string& topology) {
  if (codec.has("topology", !topology.empty())) codec("topology", topology);
  if (codec.reads() && !spec::topology_problem(topology).empty()) topology.clear();
}

/// All of a round but the list of its members, of which the number is told.
void place_members(Codec& codec, Round& round, std::int64_t& nodes) {
  codec("epoch", round.epoch);
  codec("number", round.number);
  codec("attempt", round.attempt);
  codec("left", round.restarts_left);
  codec("nodes", nodes, 1, kMostNodes);
  codec("group_rank", round.group_rank);
  codec("rank_base", round.rank_base);
  codec("world_size", round.world_size);
  codec("role_rank_base", round.role_rank_base);
  codec("role_world_size", round.role_world_size);
  codec.name("master_addr", round.master_addr);
  codec("master_port", round.master_port);
  if (!codec.has("store_nodes", round.is_divided())) return;
  codec("spent", round.spent);
  codec("store_rank", round.store_rank);
  codec("store_nodes", round.store_nodes);
  codec("store_workers", round.store_workers);
  if (codec.has("again", round.again)) codec("again", round.again);
}

}  // namespace

void add_source_address(Node& node, const boost::asio::ip::address& seen) {
  if (seen.is_loopback() || seen.is_unspecified()) return;  // says nothing to other machines
  const std::string text = seen.to_string();
  if (node.address == text || std::ranges::find(node.alternates, text) != node.alternates.end())
    return;
  // Of too many, the one that has carried this connection stays.
  if (node.alternates.size() >= kMaxAlternateAddresses) node.alternates.pop_back();
  node.alternates.push_back(text);
}

void members(Codec& codec, Node& node) {
  codec.name("id", node.id);
  codec.name("instance", node.instance);
  codec.name("address", node.address);
  codec("store_port", node.store_port);
  codec("role", node.role);
  codec("workers", node.local_world_size, 0, spec::kMostWorkers);
  codec("node_rank", node.node_rank, -1);
  if (codec.has("alternates", !node.alternates.empty()))
    codec.names("alternates", node.alternates, kMaxAlternateAddresses, kLongestAddress);
  if (codec.has("unable", !node.unable.empty())) codec("unable", node.unable);
}

void cause_kind(Codec& codec, Cause::Kind& kind) {
  codec.word("kind", kind, kCauseWords);
}

void members(Codec& codec, Cause& cause) {
  cause_kind(codec, cause.kind);
  codec.name("node", cause.node);
  codec("rank", cause.rank, -1);
  codec("local_rank", cause.local_rank, -1);
  codec("exit_code", cause.exit_code, -1000, 1000);
  codec("text", cause.text);
  codec("wall", cause.wall_seconds, -9e9, 9e9);
  codec("final", cause.final);
  if (codec.has("class", cause.what != spec::CauseClass::Error)) class_member(codec, cause.what);
  if (codec.has("fingerprint", !cause.fingerprint.empty())) codec("fingerprint", cause.fingerprint);
  if (codec.has("step", cause.step >= 0)) step_member(codec, "step", cause.step);
  if (codec.has("checkpoint", cause.checkpoint >= 0))
    step_member(codec, "checkpoint", cause.checkpoint);
  if (codec.has("rule", !cause.rule.empty())) codec("rule", cause.rule);
  if (codec.has("hopeless", cause.hopeless)) codec("hopeless", cause.hopeless);
  if (codec.has("blames_peer", cause.blames_peer)) codec("blames_peer", cause.blames_peer);
  if (codec.has("misuse", cause.misuse)) codec("misuse", cause.misuse);
}

void members(Codec& codec, Rules& rules) {
  elastrun::members<Rules>(codec, rules);
  const bool possible = rules.min_nodes >= 1 && rules.max_nodes >= rules.min_nodes &&
                        rules.join_timeout >= std::chrono::milliseconds(1);
  if (!possible) codec.refuse("rules");
}

void members(Codec& codec, RestartEntry& entry) {
  // Ages travel, not times, because the clocks of machines are never compared.
  codec("age", entry.age);
  class_member(codec, entry.cause);
  codec("fingerprint", entry.fingerprint, kLongestOfMemory);
  codec("place", entry.place, kLongestOfMemory);
  step_member(codec, "step", entry.step);
  step_member(codec, "checkpoint", entry.checkpoint);
  codec("decision", entry.decision, kLongestOfMemory);
}
void members(Codec& codec, NodeMark& mark) {
  codec("place", mark.place, kLongestOfMemory);
  codec("age", mark.age);
  codec("why", mark.why, kLongestOfMemory);
}
void members(Codec& codec, RestartMemory& memory) {
  codec("spent", memory.spent);
  codec("used", memory.used);
  codec("level", memory.level);
  step_member(codec, "checkpoint", memory.checkpoint);
  codec("ledger", memory.entries, RestartMemory::kMostEntries);
  codec("marks", memory.marks, RestartMemory::kMostMarks);
  codec("uses", memory.uses, RestartMemory::kMostUses);
}

void members(Codec& codec, PreviousWorld& previous) {
  codec("epoch", previous.id.epoch);
  codec("round", previous.id.round, 0, kMostRounds);
  codec("attempt", previous.attempt);
  codec("nodes", previous.nodes);
  if (codec.has("group_rank", previous.group_rank >= 0))
    codec("group_rank", previous.group_rank, -1);
}
void members(Codec& codec, ProcessMark& mark) {
  codec("pid", mark.pid);
  codec("start", mark.start_time);
}
void members(Codec& codec, AgentProcesses& processes) {
  codec("boot", processes.boot);
  codec("namespace", processes.namespace_);
  codec("agent", processes.agent);
  codec("guardian", processes.guardian);
}

void members(Codec& codec, Join& join) {
  codec("node", join.node);
  codec("previous", join.previous);
  codec("rules", join.rules);
  codec("grace", join.node.grace);
  if (codec.has("knows", join.knows.id.round > 0)) codec("knows", join.knows);
  const auto& memory = join.node.memory;
  if (codec.has("memory", memory && !memory->empty())) codec("memory", join.node.memory);
  if (codec.has("fault", !join.node.fault.empty())) codec("fault", join.node.fault);
  topology_member(codec, join.node.topology);
}
void members(Codec& codec, AtWork& at_work) {
  members(codec, at_work.member);
  codec("left", at_work.left);
}
void members(Codec& codec, Hello& hello) {
  codec("run", hello.run_id);
  codec.word("who", hello.who, kAskerWords);
  codec("epoch", hello.epoch);
  codec("start", hello.start);
  codec.name("host", hello.host);
  codec.name("user", hello.user);
  codec("at_work", hello.at_work);
  codec("processes", hello.processes);
}
void members(Codec& codec, ProgressReport& report) {
  codec("round", report.round);
  codec.word("state", report.what.kind, kProgressWords);
  codec("by_steps", report.what.by_steps);
  codec("standing", report.standing, kLongestStanding);
  held_member(codec, report.held);
}
void members(Codec& codec, NodeStacks& stacks) {
  // One node's: no more ranks than it has workers.
  auto ranks_left = spec::kMostWorkers;
  codec("id", stacks.id);
  groups_member(codec, stacks.groups, ranks_left);
  codec("dumps", stacks.dumps, kMostDumps);
  codec("last", stacks.last);
}
void members(Codec& codec, Reached& reached) {
  codec("round", reached.round);
  step_member(codec, "step", reached.step);
  step_member(codec, "checkpoint", reached.checkpoint);
  codec("pace", reached.pace);
  codec("saved", reached.saved);
  codec("looks", reached.looks);
  codec("failure", reached.failure);
}

void members(Codec& codec, Welcome& welcome) {
  codec("run", welcome.run_id);
  codec("epoch", welcome.epoch);
  codec("stand_alone", welcome.stand_alone);
  double interval = to_seconds(welcome.heartbeat);
  codec("heartbeat_interval", interval, 0.001, 1e6);
  codec("heartbeats_missed", welcome.heartbeats_missed, 1);
  codec("world", welcome.world);
  if (!codec.reads()) return;
  welcome.heartbeat = from_seconds(interval);
  // Their product becomes a time, which has to fit.
  const double most = std::min<double>(welcome.heartbeats_missed, kLongestSilence / interval);
  welcome.heartbeats_missed = static_cast<int>(most);
}
void members(Codec& codec, Refusal& refusal) {
  codec("text", refusal.text);
  codec("final", refusal.final);
  if (codec.has("misuse", refusal.misuse)) codec("misuse", refusal.misuse);
}
void members(Codec& codec, StatusText& status) {
  codec("status", status.json, kLongestStatus);
}
void members(Codec& codec, RoundReady& ready) {
  Round& round = ready.round;
  auto nodes = std::max<std::int64_t>(round.group_world_size(), 1);
  place_members(codec, round, nodes);
  codec("members", round.members);
  if (!codec.reads()) return;
  if (round.group_rank >= nodes || round.store_rank >= nodes || round.group_world_size() > nodes)
    return codec.refuse("nodes");
  // In a large world only group rank 0 gets the list (encode_assignment); the others need its
  // length.
  round.members.resize(static_cast<std::size_t>(nodes));
}
void members(Codec& codec, Restart& restart) {
  codec("cause", restart.cause);
  codec("spent", restart.attempt_spent);
  codec("left", restart.restarts_left);
  if (codec.has("delay", restart.delay > Duration::zero())) codec("delay", restart.delay);
  codec("memory", restart.memory);
  if (codec.has("role", !restart.role.empty())) codec("role", restart.role);
}
void members(Codec& codec, Done& done) {
  codec("failed", done.failed);
  codec("cause", done.cause);
  codec("memory", done.memory);
  if (codec.has("left", done.restarts_left >= 0)) codec("left", done.restarts_left, -1);
}
void members(Codec& codec, Lost& lost) {
  codec("why", lost.why);
  codec("requeue", lost.requeue);
  if (codec.has("misuse", lost.misuse)) codec("misuse", lost.misuse);
}
void members(Codec& codec, StacksReport& report) {
  auto ranks_left = kMostRanks;
  codec("hang", report.hang);
  codec("standing", report.standing, kLongestStanding);
  codec("speaker", report.speaker);
  groups_member(codec, report.stacks.groups, ranks_left);
  codec.list("silent", report.stacks.silent, kMaxCount, [&](Codec& inner, hangs::SilentNode& node) {
    inner.name("node", node.node);
    ranks_member(inner, node.ranks, ranks_left);
  });
  codec("dumps", report.stacks.dumps);  // of all nodes together
}
void members(Codec& codec, SaveAt& order) {
  step_member(codec, "step", order.step);
  codec("left", order.left);
  codec("by_signal", order.by_signal);
}

void members(Codec& codec, Push& push);

namespace {

/// The name of each message, by its place in its variant.
constexpr std::array<std::string_view, std::variant_size_v<FromAgent>> kOfAgent = {
    "hello",     "join",     "started", "failed",     "succeeded", "leaving", "stopping",
    "heartbeat", "progress", "stacks",  "ask_stacks", "reached",   "preempt"};
constexpr std::array<std::string_view, std::variant_size_v<Push>> kPushes = {
    "round",    "restart",     "done",       "spare",       "lost",
    "progress", "take_stacks", "job_stacks", "ask_reached", "save_at"};
// A Push says its own.
constexpr std::array<std::string_view, std::variant_size_v<FromCoordinator>> kOfCoordinator = {
    "welcome", "refuse", "epoch", "", "heartbeat", "status"};

/// Those of the alternative that is there.
template <class... Message>
void alternative_members(Codec& codec, std::variant<Message...>& message) {
  std::visit([&codec](auto& each) { members_if_any(codec, each); }, message);
}

template <class Variant>
std::string encode_one(const Variant& message, std::string_view type) {
  Codec codec;
  codec.put("type", type);
  // As to_json: a writer only looks.
  alternative_members(codec, const_cast<Variant&>(message));
  return json::serialize(codec.take());
}

/// `choose`: reads the alternatives of `Variant`.
template <class Variant, class Choose>
Result<Variant> decode(std::string_view text, Choose choose) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  std::string unsound, type;
  Codec codec(*value, unsound);
  codec("type", type);
  Variant message;
  // The type may be missing, but then it names no message.
  if (type.empty() || !choose(codec, type, message)) {
    return fail(Code::Protocol, fmt::format("a message \"{}\" is not known", type.substr(0, 40)));
  }
  if (unsound.empty()) return message;
  return fail(Code::Protocol,
              fmt::format("a message \"{}\" has members of the wrong kind: {}", type, unsound));
}

}  // namespace

void members(Codec& codec, Push& push) {
  alternative_members(codec, push);
}

std::string encode(const FromAgent& message) {
  return encode_one(message, kOfAgent[message.index()]);
}

std::string encode(const FromCoordinator& message) {
  const auto* push = std::get_if<Push>(&message);
  return encode_one(message, push ? kPushes[push->index()] : kOfCoordinator[message.index()]);
}

Result<FromAgent> decode_from_agent(std::string_view text) {
  return decode<FromAgent>(text, [](Codec& codec, std::string_view type, FromAgent& message) {
    return read_alternative(codec, type, kOfAgent, message);
  });
}

Result<FromCoordinator> decode_from_coordinator(std::string_view text) {
  const auto choose = [](Codec& codec, std::string_view type, FromCoordinator& message) {
    Push push;
    if (!read_alternative(codec, type, kPushes, push))
      return read_alternative(codec, type, kOfCoordinator, message);
    message = std::move(push);
    return true;
  };
  return decode<FromCoordinator>(text, choose);
}

std::string encode_members(const World& world) {
  Codec codec;
  // As to_json: a writer only looks.
  codec("members", const_cast<std::vector<Node>&>(world.members));
  return json::serialize(codec.take().at("members"));
}

std::string encode_assignment(const World& world, int group_rank, const std::string& members) {
  Round place = place_of(world, group_rank);
  auto nodes = static_cast<std::int64_t>(world.members.size());
  Codec codec;
  codec.put("type", "round");
  place_members(codec, place, nodes);
  std::string text = json::serialize(codec.take());
  const bool serves = group_rank == 0 || place.serves_store();
  if (!serves && world.members.size() > kFullWorld) return text;
  // The list is the largest part and the same for all: serialised once, put in as text.
  text.pop_back();
  return text + ",\"members\":" + members + "}";
}

std::vector<NodeStacks> parts_of(NodeStacks stacks) {
  std::vector<NodeStacks> parts;
  for (auto& group : stacks.groups) {
    NodeStacks part{stacks.id, {}, {}, false};
    part.groups.push_back(std::move(group));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) parts.push_back({stacks.id, {}, {}, false});
  parts.back().dumps = std::move(stacks.dumps);
  parts.back().last = true;
  return parts;
}

}  // namespace elastrun::rendezvous
