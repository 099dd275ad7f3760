// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/stack_messages.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

namespace elastrun::rendezvous {
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

}  // namespace elastrun::rendezvous
