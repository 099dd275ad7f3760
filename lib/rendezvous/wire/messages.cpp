// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/wire/messages.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "spec/topology_address.hpp"

#include <algorithm>
#include <array>
#include <boost/describe/members.hpp>
#include <boost/mp11/algorithm.hpp>
#include <fmt/format.h>
#include <ranges>
#include <type_traits>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr std::array<std::pair<Cause::Kind, std::string_view>, 8> kCauseNames = {{
    {Cause::Kind::WorkerFailed, "worker_failed"},
    {Cause::Kind::NodeLost, "node_lost"},
    {Cause::Kind::NodeLeft, "node_left"},
    {Cause::Kind::NodeJoined, "node_joined"},
    {Cause::Kind::Closed, "closed"},
    {Cause::Kind::CoordinatorLost, "coordinator_lost"},
    {Cause::Kind::Timeout, "timeout"},
    {Cause::Kind::Preempted, "preempted"},
}};

// How many bytes of the text need no more than that in JSON, where one becomes up to six.
std::size_t bytes_within(std::string_view text, std::size_t escaped) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const char one = text[bytes];
    const bool is_short = std::string_view("\"\\\b\f\n\r\t").contains(one);
    const std::size_t needed = is_short ? 2 : static_cast<unsigned char>(one) < 0x20 ? 6 : 1;
    if (needed > escaped) break;
    escaped -= needed;
  }
  return bytes;
}

// A number, with the name of an interface.
constexpr std::size_t kLongestAddress = 64;

void fit(json::value& value, std::size_t longest) {
  if (json::string* text = value.if_string()) {
    *text = fit_text(*text, longest);
  } else if (json::array* elements = value.if_array()) {
    for (json::value& element : *elements) fit(element, longest);
  } else if (json::object* members = value.if_object()) {
    for (auto& member : *members) fit(member.value(), longest);
  }
}

json::array write_members(const std::vector<Node>& members) {
  json::array list;
  list.reserve(members.size());
  for (const Node& node : members) list.emplace_back(write_node(node));
  return list;
}

const Meeting& meeting_of(const World& world, int group_rank) {
  return world.meeting_of(world.members[static_cast<std::size_t>(group_rank)].role);
}

json::object write_place(const World& world, int group_rank) {
  const Bases& bases = world.ranks.of[static_cast<std::size_t>(group_rank)];
  const Meeting& meeting = meeting_of(world, group_rank);
  json::object place{{"type", "round"},
                     {"epoch", world.id.epoch},
                     {"number", world.id.round},
                     {"attempt", meeting.attempt},
                     {"left", world.left},
                     {"nodes", world.members.size()},
                     {"group_rank", group_rank},
                     {"rank_base", bases.rank},
                     {"world_size", world.ranks.world_size},
                     {"role_rank_base", bases.role_rank},
                     {"role_world_size", bases.role_world_size},
                     {"master_addr", fit_name(meeting.address)},
                     {"master_port", meeting.port}};
  if (!world.is_divided()) return place;
  place["spent"] = world.spent;
  place["store_rank"] = meeting.store_rank;
  place["store_nodes"] = meeting.nodes;
  place["store_workers"] = meeting.workers;
  if (meeting.again) place["again"] = true;
  return place;
}

void for_each_rule(auto&& call) {
  using namespace boost::describe;
  boost::mp11::mp_for_each<describe_members<Rules, mod_public | mod_inherited>>(call);
}

}  // namespace

std::string fit_text(std::string_view text, std::size_t longest) {
  // What becomes longer by its replacements ends beyond the cut.
  constexpr std::size_t kLongestCharacter = 4;
  const auto beginning = text.substr(0, longest + kLongestCharacter);
  std::string fit(cut(without_controls(beginning), longest));
  // JSON makes some characters longer: this bounds what goes over the wire.
  fit.resize(cut(fit, bytes_within(fit, 2 * longest)).size());
  return fit;
}

std::string to_wire(json::value message, std::size_t longest) {
  fit(message, longest);
  return json::serialize(message);
}

std::string Reader::text(std::string_view name, std::size_t longest) const {
  const json::value* found = find_member(*value_, name);
  return found == nullptr ? std::string() : text_in(*found, longest);
}

std::string Reader::text_in(const json::value& value, std::size_t longest) const {
  const json::string* text = value.if_string();
  if (text != nullptr && text->size() <= longest) return without_controls(*text);
  *sound_ = false;
  return {};
}

std::string Reader::name(std::string_view name) const {
  const json::value* found = find_member(*value_, name);
  return found == nullptr ? std::string() : name_in(*found);
}

std::string Reader::name_in(const json::value& value) const {
  auto text = text_in(value, kLongestName);
  if (value.is_string() && value.get_string() != text) *sound_ = false;
  return text;
}

bool Reader::flag(std::string_view name) const {
  const json::value* found = find_member(*value_, name);
  if (found == nullptr) return false;
  if (!found->is_bool()) *sound_ = false;
  return found->is_bool() && found->get_bool();
}

std::int64_t Reader::integer(std::string_view name, std::int64_t low, std::int64_t high,
                             std::int64_t otherwise) const {
  const json::value* found = find_member(*value_, name);
  if (found == nullptr) return std::max(low, otherwise);
  boost::system::error_code error;
  const auto value = found->to_number<std::int64_t>(error);
  if (!error && value >= low && value <= high) return value;
  *sound_ = false;
  return low;
}

double Reader::number(std::string_view name, double low, double high, double otherwise) const {
  const json::value* found = find_member(*value_, name);
  if (found == nullptr) return otherwise;
  boost::system::error_code error;
  const auto value = found->to_number<double>(error);
  if (!error && value >= low && value <= high) return value;
  *sound_ = false;
  return otherwise;
}

Reader Reader::member(std::string_view name) const {
  // Static, because the reader keeps a pointer.
  static const json::value kEmpty = json::object();
  const json::value* found = find_member(*value_, name);
  return {found == nullptr ? kEmpty : *found, *sound_};
}

const json::array& Reader::elements(std::string_view name) const {
  static const json::array kNone;
  const json::value* found = find_member(*value_, name);
  if (found == nullptr) return kNone;
  if (found->is_array()) return found->get_array();
  *sound_ = false;
  return kNone;
}

std::unexpected<Error> unknown_message(std::string_view kind) {
  return fail(Code::Protocol, fmt::format("a message \"{}\" is not known", kind.substr(0, 40)));
}

std::unexpected<Error> unsound_message(std::string_view kind) {
  return fail(Code::Protocol, fmt::format("a message \"{}\" has members of the wrong kind", kind));
}

void add_source_address(Node& node, const boost::asio::ip::address& seen) {
  if (seen.is_loopback() || seen.is_unspecified()) return;  // says nothing to other machines
  const std::string text = seen.to_string();
  if (node.address == text || std::ranges::find(node.alternates, text) != node.alternates.end())
    return;
  // Of too many, the one that has carried this connection stays.
  if (node.alternates.size() >= kMaxAlternateAddresses) node.alternates.pop_back();
  node.alternates.push_back(text);
}

json::object write_node(const Node& node) {
  json::object object{{"id", fit_name(node.id)},
                      {"instance", fit_name(node.instance)},
                      {"address", fit_name(node.address)},
                      {"store_port", node.store_port},
                      {"role", node.role},
                      {"workers", node.local_world_size},
                      {"node_rank", node.node_rank}};
  json::array alternates;
  for (const std::string& address : node.alternates)
    alternates.emplace_back(fit_text(address, kLongestAddress));
  if (!alternates.empty()) object["alternates"] = std::move(alternates);
  if (!node.unable.empty()) object["unable"] = node.unable;
  return object;
}

Node read_node(const Reader& reader) {
  Node node;
  node.id = reader.name("id");
  node.instance = reader.name("instance");
  node.address = reader.name("address");
  for (const json::value& element : reader.elements("alternates")) {
    if (node.alternates.size() >= kMaxAlternateAddresses) reader.sound() = false;
    if (reader.sound()) node.alternates.push_back(reader.name_in(element));
  }
  node.store_port = static_cast<std::uint16_t>(reader.integer("store_port", 0, 65535));
  node.role = reader.text("role");
  node.unable = reader.text("unable");
  node.local_world_size = static_cast<int>(reader.integer("workers", 0, kMostWorkers, 1));
  node.node_rank = static_cast<int>(reader.integer("node_rank", -1, kMaxCount, -1));
  return node;
}

json::object write_cause(const Cause& cause) {
  const auto name =
      std::ranges::find(kCauseNames, cause.kind, &decltype(kCauseNames)::value_type::first);
  json::object out{{"kind", name->second},         {"node", fit_name(cause.node)},
                   {"rank", cause.rank},           {"local_rank", cause.local_rank},
                   {"exit_code", cause.exit_code}, {"text", cause.text},
                   {"wall", cause.wall_seconds},   {"final", cause.final}};
  if (cause.what != spec::CauseClass::Error) out["class"] = spec::cause_class_name(cause.what);
  if (!cause.fingerprint.empty()) out["fingerprint"] = cause.fingerprint;
  if (cause.step >= 0) out["step"] = cause.step;
  if (cause.checkpoint >= 0) out["checkpoint"] = cause.checkpoint;
  if (!cause.rule.empty()) out["rule"] = cause.rule;
  if (cause.hopeless) out["hopeless"] = true;
  if (cause.blames_peer) out["blames_peer"] = true;
  if (cause.misuse) out["misuse"] = true;
  return out;
}

Cause read_cause(const Reader& reader) {
  Cause cause;
  const std::string kind = reader.text("kind");
  const auto name =
      std::ranges::find(kCauseNames, kind, &decltype(kCauseNames)::value_type::second);
  if (name != kCauseNames.end()) cause.kind = name->first;
  if (name == kCauseNames.end() && !kind.empty()) reader.sound() = false;
  cause.node = reader.name("node");
  cause.rank = static_cast<int>(reader.integer("rank", -1, kMaxCount, -1));
  cause.local_rank = static_cast<int>(reader.integer("local_rank", -1, kMaxCount, -1));
  cause.exit_code = static_cast<int>(reader.integer("exit_code", -1000, 1000, 0));
  cause.text = reader.text("text");
  cause.wall_seconds = reader.number("wall", -9e9, 9e9, 0);
  cause.final = reader.flag("final");
  // A class that a later release has is an error here.
  const auto what = spec::find_cause_class(reader.text("class"));
  cause.what = what.value_or(spec::CauseClass::Error);
  cause.fingerprint = reader.text("fingerprint");
  cause.step = reader.integer("step", -1, INT64_MAX, -1);
  cause.checkpoint = reader.integer("checkpoint", -1, INT64_MAX, -1);
  cause.rule = reader.text("rule");
  cause.hopeless = reader.flag("hopeless");
  cause.misuse = reader.flag("misuse");
  cause.blames_peer = reader.flag("blames_peer");
  return cause;
}

json::object write_rules(const Rules& rules) {
  json::object out;
  for_each_rule([&](auto rule) {
    const auto& value = rules.*rule.pointer;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Duration>) {
      out[rule.name] = to_seconds(value);
    } else {
      out[rule.name] = value;
    }
  });
  return out;
}

/// A rule that an agent of another version does not know is at its default.
Rules read_rules(const Reader& reader) {
  // No rule needs longer, and such a time fits into nanoseconds.
  constexpr double kYear = 366.0 * 86400;
  Rules rules;
  for_each_rule([&](auto rule) {
    auto& value = rules.*rule.pointer;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Duration>) {
      value = from_seconds(reader.number(rule.name, 0, kYear, to_seconds(value)));
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = reader.flag(rule.name);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = reader.text(rule.name);
    } else {
      value = static_cast<Value>(reader.integer(rule.name, 0, kMaxCount, value));
    }
  });
  const bool possible = rules.min_nodes >= 1 && rules.max_nodes >= rules.min_nodes &&
                        rules.join_timeout >= std::chrono::milliseconds(1);
  if (!possible) reader.sound() = false;
  return rules;
}

json::object write_round(const Round& round) {
  json::object out{{"type", "round"},
                   {"epoch", round.epoch},
                   {"number", round.number},
                   {"attempt", round.attempt},
                   {"left", round.restarts_left},
                   {"nodes", round.members.size()},
                   {"group_rank", round.group_rank},
                   {"rank_base", round.rank_base},
                   {"world_size", round.world_size},
                   {"role_rank_base", round.role_rank_base},
                   {"role_world_size", round.role_world_size},
                   {"master_addr", fit_name(round.master_addr)},
                   {"master_port", round.master_port}};
  if (round.is_divided()) {
    out["spent"] = round.spent;
    out["store_rank"] = round.store_rank;
    out["store_nodes"] = round.store_nodes;
    out["store_workers"] = round.store_workers;
    if (round.again) out["again"] = true;
  }
  out["members"] = write_members(round.members);
  return out;
}

Round read_round(const Reader& reader) {
  Round round;
  const auto count = [&reader](std::string_view name) {
    return static_cast<int>(reader.integer(name, 0, kMaxCount));
  };
  round.epoch = reader.integer("epoch");
  round.number = reader.integer("number");
  round.attempt = count("attempt");
  round.restarts_left = count("left");
  round.group_rank = count("group_rank");
  round.rank_base = count("rank_base");
  round.world_size = count("world_size");
  round.role_rank_base = count("role_rank_base");
  round.role_world_size = count("role_world_size");
  round.master_addr = reader.name("master_addr");
  round.master_port = static_cast<std::uint16_t>(reader.integer("master_port", 0, 65535));
  round.spent = count("spent");
  round.store_rank = count("store_rank");
  round.store_nodes = count("store_nodes");
  round.store_workers = count("store_workers");
  round.again = reader.flag("again");
  // The number of nodes sizes a vector: bounded by the most agents that one coordinator can serve.
  const auto nodes = static_cast<std::size_t>(reader.integer("nodes", 1, 100'000));
  for (const json::value& element : reader.elements("members")) {
    round.members.push_back(read_node(Reader(element, reader.sound())));
  }
  const int last = static_cast<int>(nodes) - 1;
  if (round.group_rank > last || round.store_rank > last || round.members.size() > nodes) {
    reader.sound() = false;
  }
  // In a large world only group rank 0 gets the list (encode_assignment); the others need its
  // length.
  if (reader.sound()) round.members.resize(nodes);
  return round;
}

std::string encode_members(const World& world) {
  return to_wire(write_members(world.members));
}

std::string encode_assignment(const World& world, int group_rank, const std::string& members) {
  std::string text = to_wire(write_place(world, group_rank));
  const bool serves = group_rank == 0 || group_rank == meeting_of(world, group_rank).store_rank;
  if (!serves && world.members.size() > kFullWorld) return text;
  // The list is the largest part and the same for all: serialised once, put in as text.
  text.pop_back();
  return text + ",\"members\":" + members + "}";
}

namespace {

using json::object;
using Kind = hangs::NodeProgress::Kind;

// In the order of hangs::NodeProgress::Kind, by which write() and the reader index it.
constexpr std::array<std::string_view, 3> kKinds = {"moves", "stands", "excused"};
constexpr double kLongest = 1e9;  // seconds
// Limits of what one node may bring: the coordinator keeps it for tens of thousands of them.
constexpr std::size_t kMostDumps = 64;
constexpr std::size_t kMostHeld = 64;  // of a node that are named
constexpr std::size_t kLongestHeld = 256;
// Few bytes can stand for many ranks of a job.
constexpr std::int64_t kMostRanks = 1 << 21;

json::array write_texts(const std::vector<std::string>& texts) {
  json::array list;
  for (const auto& text : texts) list.emplace_back(text);
  return list;
}

std::vector<std::string> read_texts(const Reader& reader, std::string_view name, std::size_t most) {
  std::vector<std::string> texts;
  for (const auto& one : reader.elements(name)) {
    auto text = reader.text_in(one);
    if (texts.size() < most) texts.push_back(std::move(text));
  }
  return texts;
}

/// Those that follow each other as [first, last]: most of the tens of thousands of a large job wait
/// at one place, and each of its nodes hears of that.
json::array write_ranks(const std::vector<int>& ranks) {
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
  return list;
}

/// `left`: how many more this message may have, as few bytes can stand for many.
std::vector<int> read_ranks(const Reader& reader, std::int64_t& left) {
  std::vector<int> ranks;
  const auto is_rank = [](const json::value& one) {
    return one.is_int64() && one.get_int64() >= 0 && one.get_int64() < kMaxCount;
  };
  const auto add = [&](const json::value& first, const json::value& last) {
    const bool good = is_rank(first) && is_rank(last) && first.get_int64() <= last.get_int64();
    if (good) left -= last.get_int64() - first.get_int64() + 1;
    if (!good || left < 0) return void(reader.sound() = false);
    for (auto rank = first.get_int64(); rank <= last.get_int64(); ++rank) {
      ranks.push_back(static_cast<int>(rank));
    }
  };
  for (const auto& one : reader.elements("ranks")) {
    const auto* range = one.if_array();
    if (range != nullptr && range->size() != 2) {
      reader.sound() = false;
    } else {
      range == nullptr ? add(one, one) : add(range->front(), range->back());
    }
  }
  return ranks;
}

json::array write_groups(const std::vector<hangs::StackGroup>& groups) {
  json::array list;
  for (const auto& group : groups) {
    list.emplace_back(
        object{{"ranks", write_ranks(group.ranks)}, {"lines", write_texts(group.lines)}});
  }
  return list;
}

std::vector<hangs::StackGroup> read_groups(const Reader& reader, std::int64_t& ranks_left) {
  std::vector<hangs::StackGroup> groups;
  for (const auto& one : reader.elements("groups")) {
    const Reader group(one, reader.sound());
    groups.push_back(
        {read_ranks(group, ranks_left), read_texts(group, "lines", hangs::kMostLines)});
  }
  return groups;
}

json::array write_held(const std::map<int, std::string>& held) {
  json::array list;
  for (const auto& [rank, by] : held | std::views::take(kMostHeld)) {
    // `by` has names of processes in it, which may hold any bytes.
    list.emplace_back(object{{"rank", rank}, {"by", fit_text(by, kLongestHeld)}});
  }
  return list;
}

std::map<int, std::string> read_held(const Reader& reader) {
  std::map<int, std::string> held;
  for (const auto& one : reader.elements("held")) {
    const Reader worker(one, reader.sound());
    const auto rank = static_cast<int>(worker.integer("rank", 0, kMaxCount));
    auto by = fit_text(worker.text("by"), kLongestHeld);
    if (held.size() < kMostHeld) held.emplace(rank, std::move(by));
  }
  return held;
}

double seconds(Duration duration) {
  return std::clamp(to_seconds(duration), 0.0, kLongest);
}

StacksReport read_stacks_report(const Reader& reader) {
  auto ranks_left = kMostRanks;
  // The dumps of all nodes together, hence not kMostDumps.
  StacksReport report{{read_groups(reader, ranks_left), {}, read_texts(reader, "dumps", kMaxCount)},
                      reader.flag("hang"),
                      from_seconds(reader.number("standing", 0, kLongest, 0)),
                      static_cast<int>(reader.integer("speaker", 0, kMaxCount))};
  for (const auto& one : reader.elements("silent")) {
    const Reader node(one, reader.sound());
    report.stacks.silent.push_back({node.name("node"), read_ranks(node, ranks_left)});
  }
  return report;
}

}  // namespace

object write(const ProgressReport& report) {
  return {{"type", "progress"},
          {"round", report.round},
          {"state", kKinds[static_cast<std::size_t>(report.what.kind)]},
          {"by_steps", report.what.by_steps},
          {"standing", seconds(report.standing)},
          {"held", write_held(report.held)}};
}
object write(const NodeStacks& stacks) {
  return {{"type", "stacks"},
          {"id", stacks.id},
          {"groups", write_groups(stacks.groups)},
          {"dumps", write_texts(stacks.dumps)},
          {"last", stacks.last}};
}
object write(const TakeStacks& order) {
  return {{"type", "take_stacks"}, {"id", order.id}, {"hang", order.hang}};
}
object write(const StacksReport& report) {
  json::array silent;
  for (const auto& node : report.stacks.silent) {
    silent.emplace_back(object{{"node", fit_name(node.node)}, {"ranks", write_ranks(node.ranks)}});
  }
  return {{"type", "job_stacks"},
          {"hang", report.hang},
          {"standing", seconds(report.standing)},
          {"speaker", report.speaker},
          {"groups", write_groups(report.stacks.groups)},
          {"silent", std::move(silent)},
          {"dumps", write_texts(report.stacks.dumps)}};
}

ProgressReport read_progress_report(const Reader& reader) {
  ProgressReport report{reader.integer("round"),
                        {Kind::Moves, reader.flag("by_steps")},
                        from_seconds(reader.number("standing", 0, kLongest, 0)),
                        read_held(reader)};
  const auto kind = std::ranges::find(kKinds, reader.text("state"));
  if (kind == kKinds.end()) {
    reader.sound() = false;
  } else {
    report.what.kind = static_cast<Kind>(kind - kKinds.begin());
  }
  return report;
}

NodeStacks read_node_stacks(const Reader& reader) {
  // One node's: no more ranks than it has workers.
  auto ranks_left = kMostWorkers;
  return {reader.integer("id"), read_groups(reader, ranks_left),
          read_texts(reader, "dumps", kMostDumps), reader.flag("last")};
}

std::optional<Push> read_stacks_push(std::string_view type, const Reader& reader) {
  if (type == "take_stacks") return TakeStacks{reader.integer("id"), reader.flag("hang")};
  if (type == "job_stacks") return read_stacks_report(reader);
  return std::nullopt;
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

namespace {

constexpr double kLongestAge = 366.0 * 86400;  // age_seconds
// The memory travels with each restart: its sentences are cut shorter than others.
constexpr std::size_t kLongestOfMemory = 200;

double age_seconds(Duration time) {
  // Ages travel, not times, because the clocks of machines are never compared.
  return std::clamp(to_seconds(time), 0.0, kLongestAge);
}
Duration read_age(const Reader& reader, std::string_view name) {
  return from_seconds(reader.number(name, 0, kLongestAge, 0));
}

json::object write_entry(const RestartEntry& entry) {
  return {{"age", age_seconds(entry.age)},
          {"class", spec::cause_class_name(entry.cause)},
          {"fingerprint", fit_text(entry.fingerprint, kLongestOfMemory)},
          {"place", fit_text(entry.place, kLongestOfMemory)},
          {"step", entry.step},
          {"checkpoint", entry.checkpoint},
          {"decision", fit_text(entry.decision, kLongestOfMemory)}};
}

RestartEntry read_entry(const Reader& reader) {
  RestartEntry entry{read_age(reader, "age")};
  const auto cause = spec::find_cause_class(reader.text("class"));
  // A later release may know further classes.
  entry.cause = cause.value_or(spec::CauseClass::Error);
  entry.fingerprint = reader.text("fingerprint");
  entry.place = reader.text("place");
  entry.step = reader.integer("step", -1, INT64_MAX, -1);
  entry.checkpoint = reader.integer("checkpoint", -1, INT64_MAX, -1);
  entry.decision = reader.text("decision");
  return entry;
}

}  // namespace

json::object write(const Reached& reached) {
  return {{"type", "reached"},
          {"round", reached.round},
          {"step", reached.step},
          {"checkpoint", reached.checkpoint},
          {"pace", age_seconds(reached.pace)},
          {"saved", reached.saved},
          {"looks", reached.looks},
          {"failure", reached.failure}};
}
json::object write(const AskPreempt& ask) {
  return {{"type", "preempt"},
          {"why", ask.why},
          {"deadline", age_seconds(ask.deadline)},
          {"hosts", ask.hosts}};
}
json::object write(const AskReached& ask) {
  return {{"type", "ask_reached"}, {"why", ask.why}, {"left", age_seconds(ask.left)}};
}
json::object write(const SaveAt& order) {
  return {{"type", "save_at"},
          {"step", order.step},
          {"left", age_seconds(order.left)},
          {"by_signal", order.by_signal}};
}

Reached read_reached(const Reader& reader) {
  return {reader.integer("round"),
          reader.integer("step", -1, INT64_MAX, -1),
          reader.integer("checkpoint", -1, INT64_MAX, -1),
          read_age(reader, "pace"),
          reader.flag("saved"),
          reader.flag("looks"),
          reader.text("failure")};
}
AskPreempt read_ask_preempt(const Reader& reader) {
  return {reader.text("why"), read_age(reader, "deadline"), reader.flag("hosts")};
}
std::optional<Push> read_preemption_push(std::string_view type, const Reader& reader) {
  if (type == "ask_reached") return AskReached{reader.text("why"), read_age(reader, "left")};
  if (type == "save_at") {
    return SaveAt{reader.integer("step", -1, INT64_MAX, -1), read_age(reader, "left"),
                  reader.flag("by_signal")};
  }
  return std::nullopt;
}

json::object write_memory(const RestartMemory& memory) {
  json::array entries, marks, uses;
  for (const auto& entry : memory.entries) entries.emplace_back(write_entry(entry));
  for (const auto& mark : memory.marks) {
    marks.emplace_back(json::object{{"place", fit_text(mark.place, kLongestOfMemory)},
                                    {"age", age_seconds(mark.age)},
                                    {"why", fit_text(mark.why, kLongestOfMemory)}});
  }
  for (const auto& use : memory.uses)
    uses.emplace_back(json::object{{"rule", use.rule}, {"age", age_seconds(use.age)}});
  return {{"spent", memory.spent},        {"used", memory.used},
          {"level", memory.level},        {"checkpoint", memory.checkpoint},
          {"ledger", std::move(entries)}, {"marks", std::move(marks)},
          {"uses", std::move(uses)}};
}

RestartMemory read_memory(const Reader& reader) {
  const auto count = [&reader](std::string_view name) {
    return static_cast<int>(reader.integer(name, 0, kMaxCount));
  };
  RestartMemory memory{count("spent"), count("used"), count("level"),
                       reader.integer("checkpoint", -1, INT64_MAX, -1)};
  for (const json::value& element : reader.elements("ledger")) {
    // What is more than this release keeps is cut, not refused: later ones may keep more.
    if (memory.entries.size() == RestartMemory::kMostEntries) break;
    memory.entries.push_back(read_entry(Reader(element, reader.sound())));
  }
  for (const json::value& element : reader.elements("marks")) {
    if (memory.marks.size() == RestartMemory::kMostMarks) break;
    const Reader mark(element, reader.sound());
    memory.marks.push_back({mark.text("place"), read_age(mark, "age"), mark.text("why")});
  }
  for (const json::value& element : reader.elements("uses")) {
    if (memory.uses.size() == RestartMemory::kMostUses) break;
    const Reader use(element, reader.sound());
    memory.uses.push_back(
        {static_cast<int>(use.integer("rule", 0, kMaxCount)), read_age(use, "age")});
  }
  return memory;
}

std::shared_ptr<const RestartMemory> read_memory_of(const Reader& message) {
  if (!message.has("memory")) return nullptr;
  return std::make_shared<const RestartMemory>(read_memory(message.member("memory")));
}

namespace {

constexpr std::int64_t kMostRounds = std::int64_t{1} << 53;  // another one can always follow
constexpr double kLongestSilence = 1e9;                      // seconds
constexpr Duration kUsualGrace = std::chrono::seconds(40);   // of an agent that does not say

PreviousWorld read_previous(const Reader& previous) {
  return {{previous.integer("epoch"), previous.integer("round", 0, kMostRounds)},
          static_cast<int>(previous.integer("attempt", 0, kMaxCount)),
          static_cast<int>(previous.integer("nodes", 0, kMaxCount)),
          static_cast<int>(previous.integer("group_rank", -1, kMaxCount, -1))};
}
object write_previous(const PreviousWorld& previous) {
  object world{{"epoch", previous.id.epoch},
               {"round", previous.id.round},
               {"attempt", previous.attempt},
               {"nodes", previous.nodes}};
  if (previous.group_rank >= 0) world["group_rank"] = previous.group_rank;
  return world;
}
/// What is not an address counts as not known: a later release may have longer ones.
std::string read_topology(const Reader& reader) {
  auto address = reader.text("topology");
  return spec::topology_problem(address).empty() ? address : std::string();
}
double write_grace(Duration grace) {
  // The reader takes a longer one for a message of the wrong kind, and hangs up.
  return to_seconds(std::clamp<Duration>(grace, Duration::zero(), kLongestGrace));
}
Duration read_grace(const Reader& reader, std::string_view name, Duration otherwise = {}) {
  return from_seconds(reader.number(name, 0, to_seconds(kLongestGrace), to_seconds(otherwise)));
}

object write_member(const Join& join) {
  object member{{"node", write_node(join.node)},
                {"previous", write_previous(join.previous)},
                {"rules", write_rules(join.rules)},
                {"grace", write_grace(join.node.grace)}};
  if (join.knows.id.round > 0) member["knows"] = write_previous(join.knows);
  const auto& memory = join.node.memory;
  if (memory && !memory->empty()) member["memory"] = write_memory(*memory);
  if (!join.node.fault.empty()) member["fault"] = join.node.fault;
  if (!join.node.topology.empty()) member["topology"] = join.node.topology;
  return member;
}

object write_mark(const ProcessMark& mark) {
  return {{"pid", mark.pid}, {"start", mark.start_time}};
}
ProcessMark read_mark(const Reader& reader) {
  return {static_cast<pid_t>(reader.integer("pid", 0, kMaxCount)),
          static_cast<std::uint64_t>(reader.integer("start"))};
}

object write(const AgentProcesses& processes) {
  return {{"boot", processes.boot},
          {"namespace", processes.namespace_},
          {"agent", write_mark(processes.agent)},
          {"guardian", write_mark(processes.guardian)}};
}
AgentProcesses read_processes(const Reader& reader) {
  return {reader.text("boot"), static_cast<std::uint64_t>(reader.integer("namespace")),
          read_mark(reader.member("agent")), read_mark(reader.member("guardian"))};
}

object write(const Hello& hello) {
  object message{{"type", "hello"},
                 {"run", hello.run_id},
                 {"who", hello.wants_status   ? "status"
                         : hello.wants_stacks ? "stacks"
                                              : "agent"},
                 {"epoch", hello.epoch},
                 {"start", hello.start},
                 {"host", fit_name(hello.host)},
                 {"user", fit_name(hello.user)},
                 {"stacks", hello.stacks},
                 {"saves", hello.saves}};
  if (hello.at_work) {
    object at_work = write_member(hello.at_work->member);
    at_work["left"] = write_grace(hello.at_work->left);
    message["at_work"] = std::move(at_work);
  }
  if (hello.processes) message["processes"] = write(*hello.processes);
  return message;
}
object write(const Join& join) {
  object message = write_member(join);
  message["type"] = "join";
  return message;
}
object write(const Stopping& stopping) {
  return {{"type", "stopping"}, {"left", write_grace(stopping.left)}};
}
json::object write(const Started& started) {
  return {{"type", "started"}, {"round", started.round}};
}
json::object write(const Failed& failed) {
  return {{"type", "failed"},
          {"round", failed.round},
          {"cause", write_cause(failed.cause)},
          {"goes_on", failed.goes_on}};
}
json::object write(const Succeeded& done) {
  return {{"type", "succeeded"}, {"round", done.round}};
}
json::object write(const Leaving& leaving) {
  return {
      {"type", "leaving"},      {"why", leaving.why},       {"grace", write_grace(leaving.grace)},
      {"ended", leaving.ended}, {"unable", leaving.unable}, {"killed", leaving.killed}};
}
json::object write(const AskStacks&) {
  return {{"type", "ask_stacks"}};
}
json::object write(const Heartbeat&) {
  return {{"type", "heartbeat"}};
}

json::object write(const Welcome& welcome) {
  return {{"type", "welcome"},
          {"run", welcome.run_id},
          {"epoch", welcome.epoch},
          {"stand_alone", welcome.stand_alone},
          {"heartbeat_interval", to_seconds(welcome.heartbeat)},
          {"heartbeats_missed", welcome.heartbeats_missed},
          {"fences", welcome.fences},
          {"world", write_previous(welcome.world)},
          {"stacks", welcome.stacks},
          {"saves", welcome.saves}};
}
json::object write(const Refusal& refusal) {
  object message{{"type", "refuse"}, {"text", refusal.text}, {"final", refusal.final}};
  if (refusal.misuse) message["misuse"] = true;
  return message;
}
json::object write(const NewEpoch& epoch) {
  return {{"type", "epoch"}, {"epoch", epoch.epoch}};
}
json::object write(const StatusText& status) {
  return {{"type", "status"}, {"status", status.json}};
}
json::object write(const RoundReady& ready) {
  return write_round(ready.round);
}
json::object write(const Restart& restart) {
  object message{{"type", "restart"},
                 {"cause", write_cause(restart.cause)},
                 {"spent", restart.attempt_spent},
                 {"left", restart.restarts_left}};
  if (restart.delay > Duration::zero()) message["delay"] = write_grace(restart.delay);
  if (restart.memory) message["memory"] = write_memory(*restart.memory);
  if (!restart.role.empty()) message["role"] = restart.role;
  return message;
}
json::object write(const Done& done) {
  object message{{"type", "done"}, {"failed", done.failed}, {"cause", write_cause(done.cause)}};
  if (done.memory) message["memory"] = write_memory(*done.memory);
  if (done.restarts_left >= 0) message["left"] = done.restarts_left;
  return message;
}
json::object write(const Spare& spare) {
  return {{"type", "spare"}, {"ahead", spare.ahead}, {"world", write_previous(spare.world)}};
}
json::object write(const Lost& lost) {
  object message{{"type", "lost"}, {"why", lost.why}, {"requeue", lost.requeue}};
  if (lost.misuse) message["misuse"] = true;
  return message;
}
json::object write(const Progress& progress) {
  return {{"type", "progress"},
          {"text", progress.text},
          {"present", progress.present},
          {"wanted", progress.wanted}};
}
json::object write(const Push& push) {
  return std::visit([](const auto& each) { return write(each); }, push);
}

Join read_join(const Reader& reader) {
  Join join;
  join.node = read_node(reader.member("node"));
  join.previous = read_previous(reader.member("previous"));
  join.rules = read_rules(reader.member("rules"));
  join.knows = read_previous(reader.member("knows"));
  join.node.grace = read_grace(reader, "grace", kUsualGrace);
  join.node.memory = read_memory_of(reader);
  join.node.fault = reader.text("fault");
  join.node.topology = read_topology(reader);
  return join;
}

Hello read_hello(const Reader& reader) {
  Hello hello{reader.text("run"),      reader.text("who") == "status",
              reader.integer("epoch"), reader.text("start"),
              reader.name("host"),     reader.name("user")};
  hello.wants_stacks = reader.text("who") == "stacks";
  hello.stacks = reader.flag("stacks");
  hello.saves = reader.flag("saves");
  if (reader.has("processes")) hello.processes = read_processes(reader.member("processes"));
  if (!reader.has("at_work")) return hello;
  const Reader member = reader.member("at_work");
  hello.at_work = {read_join(member), read_grace(member, "left")};
  return hello;
}

Welcome read_welcome(const Reader& reader) {
  const double heartbeat = reader.number("heartbeat_interval", 0.001, 1e6, 5);
  // Their product becomes a time, which has to fit.
  const auto missed = static_cast<double>(reader.integer("heartbeats_missed", 1, kMaxCount));
  return {reader.text("run"),
          reader.integer("epoch"),
          reader.flag("stand_alone"),
          from_seconds(heartbeat),
          static_cast<int>(std::min(missed, kLongestSilence / heartbeat)),
          reader.flag("fences"),
          read_previous(reader.member("world")),
          reader.flag("stacks"),
          reader.flag("saves")};
}

Done read_done(const Reader& reader) {
  return {reader.flag("failed"), read_cause(reader.member("cause")), read_memory_of(reader),
          static_cast<int>(reader.integer("left", -1, kMaxCount, -1))};
}

Restart read_restart(const Reader& reader) {
  return {read_cause(reader.member("cause")),
          reader.flag("spent"),
          static_cast<int>(reader.integer("left", 0, kMaxCount)),
          read_grace(reader, "delay"),
          read_memory_of(reader),
          reader.text("role")};
}

Progress read_progress(const Reader& reader) {
  return {reader.text("text"), static_cast<int>(reader.integer("present", 0, kMaxCount)),
          static_cast<int>(reader.integer("wanted", 0, kMaxCount))};
}

}  // namespace

std::string encode(const FromAgent& message) {
  return to_wire(std::visit([](const auto& each) { return write(each); }, message));
}

std::string encode(const FromCoordinator& message) {
  const bool is_status = std::holds_alternative<StatusText>(message);
  return to_wire(std::visit([](const auto& each) { return write(each); }, message),
                 is_status ? kLongestStatus : kLongestSent);
}

// What is missing has its default and what is unknown is not looked at, so that two releases which
// speak one version of the protocol can meet. A member of the wrong kind makes the message unsound.
Result<FromAgent> decode_from_agent(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  bool sound = true;
  const Reader reader(*value, sound);
  const std::string kind = reader.text("type");
  FromAgent message = Heartbeat{};
  if (kind == "hello") {
    message = read_hello(reader);
  } else if (kind == "join") {
    message = read_join(reader);
  } else if (kind == "started") {
    message = Started{reader.integer("round")};
  } else if (kind == "failed") {
    message =
        Failed{reader.integer("round"), read_cause(reader.member("cause")), reader.flag("goes_on")};
  } else if (kind == "succeeded") {
    message = Succeeded{reader.integer("round")};
  } else if (kind == "leaving") {
    message = Leaving{reader.text("why"), read_grace(reader, "grace"), reader.flag("ended"),
                      reader.flag("unable"), reader.flag("killed")};
  } else if (kind == "stopping") {
    message = Stopping{read_grace(reader, "left")};
  } else if (kind == "progress") {
    message = read_progress_report(reader);
  } else if (kind == "stacks") {
    message = read_node_stacks(reader);
  } else if (kind == "ask_stacks") {
    message = AskStacks{};
  } else if (kind == "reached") {
    message = read_reached(reader);
  } else if (kind == "preempt") {
    message = read_ask_preempt(reader);
  } else if (kind != "heartbeat") {
    return unknown_message(kind);
  }
  // One look for all members: the reader has noted any of the wrong kind.
  if (!sound) return unsound_message(kind);
  return message;
}

Result<FromCoordinator> decode_from_coordinator(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  bool sound = true;
  const Reader reader(*value, sound);
  const std::string kind = reader.text("type");
  FromCoordinator message = Heartbeat{};
  if (kind == "welcome") {
    message = read_welcome(reader);
  } else if (kind == "round") {
    message = RoundReady{read_round(reader)};
  } else if (kind == "restart") {
    message = read_restart(reader);
  } else if (kind == "done") {
    message = read_done(reader);
  } else if (kind == "spare") {
    message = Spare{static_cast<int>(reader.integer("ahead", 0, kMaxCount)),
                    read_previous(reader.member("world"))};
  } else if (kind == "lost") {
    message = Lost{reader.text("why"), reader.flag("requeue"), reader.flag("misuse")};
  } else if (kind == "progress") {
    message = read_progress(reader);
  } else if (kind == "refuse") {
    message = Refusal{reader.text("text"), reader.flag("final"), reader.flag("misuse")};
  } else if (kind == "epoch") {
    message = NewEpoch{reader.integer("epoch")};
  } else if (kind == "status") {
    message = StatusText{reader.text("status", kLongestStatus)};
  } else if (auto stacks = read_stacks_push(kind, reader)) {
    message = std::move(*stacks);
  } else if (auto preemption = read_preemption_push(kind, reader)) {
    message = std::move(*preemption);
  } else if (kind != "heartbeat") {
    return unknown_message(kind);
  }
  if (!sound) return unsound_message(kind);
  return message;
}

}  // namespace elastrun::rendezvous
