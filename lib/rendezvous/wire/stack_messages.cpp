// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/stack_messages.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace elastrun::rendezvous {
namespace {

using json::object;
using Kind = hangs::NodeProgress::Kind;

constexpr std::array<std::string_view, 3> kKinds = {"moves", "stands", "excused"};
constexpr double kLongest = 1e9;  // seconds
constexpr std::size_t kMostDumps = 64;

json::array write_texts(const std::vector<std::string>& texts) {
  json::array list;
  for (const auto& text : texts) list.emplace_back(text);
  return list;
}

std::vector<std::string> read_texts(const Reader& reader, std::string_view name, std::size_t most) {
  std::vector<std::string> texts;
  for (const auto& one : reader.elements(name)) {
    if (!one.is_string() || one.get_string().size() > kLongestText) {
      reader.sound() = false;
    } else if (texts.size() < most) {
      texts.emplace_back(std::string_view(one.get_string()));
    }
  }
  return texts;
}

std::vector<int> read_ranks(const Reader& reader) {
  std::vector<int> ranks;
  for (const auto& one : reader.elements("ranks")) {
    const bool good = one.is_int64() && one.get_int64() >= 0 && one.get_int64() < kMaxCount;
    if (good) ranks.push_back(static_cast<int>(one.get_int64()));
    reader.sound() = reader.sound() && good;
  }
  return ranks;
}

json::array write_groups(const std::vector<hangs::StackGroup>& groups) {
  json::array list;
  for (const auto& group : groups) {
    list.emplace_back(object{{"ranks", json::array(group.ranks.begin(), group.ranks.end())},
                             {"lines", write_texts(group.lines)}});
  }
  return list;
}

std::vector<hangs::StackGroup> read_groups(const Reader& reader) {
  std::vector<hangs::StackGroup> groups;
  for (const auto& one : reader.elements("groups")) {
    const Reader group(one, reader.sound());
    groups.push_back({read_ranks(group), read_texts(group, "lines", hangs::kMostLines)});
  }
  return groups;
}

double seconds(Duration duration) {
  return std::clamp(to_seconds(duration), 0.0, kLongest);
}

StacksReport read_stacks_report(const Reader& reader) {
  StacksReport report{{read_groups(reader), {}, read_texts(reader, "dumps", kMaxCount)},
                      reader.flag("hang"),
                      from_seconds(reader.number("standing", 0, kLongest, 0))};
  for (const auto& one : reader.elements("silent")) {
    const Reader node(one, reader.sound());
    report.stacks.silent.push_back({node.text("node"), read_ranks(node)});
  }
  return report;
}

}  // namespace

object write(const ProgressReport& report) {
  return {{"type", "progress"},
          {"round", report.round},
          {"state", kKinds[static_cast<std::size_t>(report.what.kind)]},
          {"by_steps", report.what.by_steps},
          {"standing", seconds(report.standing)}};
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
    silent.emplace_back(
        object{{"node", node.node}, {"ranks", json::array(node.ranks.begin(), node.ranks.end())}});
  }
  return {{"type", "job_stacks"},
          {"hang", report.hang},
          {"standing", seconds(report.standing)},
          {"groups", write_groups(report.stacks.groups)},
          {"silent", std::move(silent)},
          {"dumps", write_texts(report.stacks.dumps)}};
}

ProgressReport read_progress_report(const Reader& reader) {
  ProgressReport report{reader.integer("round"),
                        {Kind::Moves, reader.flag("by_steps")},
                        from_seconds(reader.number("standing", 0, kLongest, 0))};
  const auto kind = std::ranges::find(kKinds, reader.text("state"));
  if (kind == kKinds.end()) {
    reader.sound() = false;
  } else {
    report.what.kind = static_cast<Kind>(kind - kKinds.begin());
  }
  return report;
}

NodeStacks read_node_stacks(const Reader& reader) {
  return {reader.integer("id"), read_groups(reader), read_texts(reader, "dumps", kMostDumps),
          reader.flag("last")};
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

}  // namespace elastrun::rendezvous
