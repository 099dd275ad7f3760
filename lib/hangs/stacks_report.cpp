// SPDX-License-Identifier: Apache-2.0
#include "hangs/stacks_report.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::hangs {
namespace {

constexpr std::size_t kWidth = 300;  // of one line
// What people read in a log or a terminal; JSON has all groups.
constexpr std::size_t kShownGroups = 16;
constexpr std::size_t kShownDumps = 8;

std::string shown(const std::string& line) {
  // The names in a stack are the script's, and an escape sequence in one would reach the terminal.
  return std::string(cut(without_escapes(line), kWidth));
}

}  // namespace

std::string stacks_lines(const JobStacks& stacks, std::string_view line, std::size_t most) {
  std::string text;
  const auto count = std::min(stacks.groups.size(), kShownGroups);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& group = stacks.groups[i];
    text += fmt::format("{}{}", line, group_text(group, stacks.groups));
    const auto lines = std::min(group.lines.size(), most);
    for (std::size_t j = 0; j < lines; ++j) {
      text += fmt::format("{}  | {}", line, shown(group.lines[j]));
    }
    if (lines < group.lines.size()) {
      text += fmt::format("{}  | and {} more lines", line, group.lines.size() - lines);
    }
  }
  if (count < stacks.groups.size()) {
    text += fmt::format("{}and {} more groups", line, stacks.groups.size() - count);
  }
  for (const auto& node : stacks.silent) {
    text += fmt::format("{}{} on node {}, which does not answer", line, ranks_text(node.ranks),
                        node.node);
  }
  const auto dumps = std::min(stacks.dumps.size(), kShownDumps);
  for (std::size_t i = 0; i < dumps; ++i) {
    text += fmt::format("{}dump of the flight recorder: {}", line, stacks.dumps[i]);
  }
  return text;
}

std::string_view stacks_hint(const JobStacks& stacks) {
  const auto in_python = [](const StackGroup& group) {
    return std::ranges::any_of(group.lines, [](const auto& line) { return line.contains(".py"); });
  };
  if (std::ranges::any_of(stacks.groups, in_python)) return {};
  return "--goodput auto shows where a Python script stands, and counts its steps";
}

json::object stacks_json(const JobStacks& stacks) {
  const auto texts = [](const std::vector<std::string>& lines) {
    json::array list;
    for (const auto& line : lines) list.emplace_back(valid_utf8(line));
    return list;
  };
  const auto ranks = [](const std::vector<int>& numbers) {
    return json::array(numbers.begin(), numbers.end());
  };
  json::array groups, silent;
  for (const auto& group : stacks.groups) {
    const auto place = place_of(group.lines);
    groups.emplace_back(json::object{{"ranks", ranks(group.ranks)},
                                     {"what", valid_utf8(place.what)},
                                     {"where", valid_utf8(place.where)},
                                     {"waits", place.waits},
                                     {"stack", texts(group.lines)}});
  }
  for (const auto& node : stacks.silent) {
    silent.emplace_back(
        json::object{{"node", valid_utf8(node.node)}, {"ranks", ranks(node.ranks)}});
  }
  return {{"text", valid_utf8(stacks_text(stacks))},
          {"culprits", ranks(culprits_of(stacks))},
          {"groups", std::move(groups)},
          {"silent", std::move(silent)},
          {"flight_recorder", texts(stacks.dumps)}};
}

}  // namespace elastrun::hangs
