// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/message_parts.hpp"

#include "core/text.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <array>
#include <boost/describe/members.hpp>
#include <boost/mp11/algorithm.hpp>
#include <fmt/format.h>
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

}  // namespace elastrun::rendezvous
