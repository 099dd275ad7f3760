// SPDX-License-Identifier: Apache-2.0
#include "hangs/stacks.hpp"

#include "hangs/stack_sections.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

namespace elastrun::hangs {
namespace {

using Lines = std::vector<std::string>;

constexpr std::size_t kMostGroups = 8;    // in one sentence
constexpr std::size_t kMostWhole = 64;    // groups of which all lines are kept
constexpr std::size_t kMostShort = 1024;  // of which some are
constexpr std::size_t kShort = 12;
constexpr std::size_t kMostRanges = 16;

/// The main thread first, then as it came, cut.
Lines in_order(const Lines& lines) {
  const auto sections = sections_of(lines);
  const auto main = main_section(sections);
  Lines ordered;
  std::size_t bytes = 0;
  const auto add = [&](const std::string& line) {
    if (ordered.size() >= kMostLines || bytes + line.size() > kMostBytes) return;
    bytes += line.size();
    ordered.push_back(line);
  };
  const auto add_section = [&](const Section& section) {
    add(section.header);
    for (const auto& line : section.lines) add(line);
  };
  // A dump of a form that we do not know is kept as it is.
  if (sections.empty()) std::ranges::for_each(lines, add);
  // Once it stands first nothing else tells which one it was: faulthandler has the main thread
  // last.
  if (main < sections.size()) add_section(sections[main]);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (i != main) add_section(sections[i]);
  }
  return ordered;
}

std::size_t count_of(const std::vector<StackGroup>& groups, auto matches) {
  std::size_t count = 0;
  for (const auto& group : groups) count += matches(group) ? group.ranks.size() : 0;
  return count;
}

std::vector<int> ranks_of(const std::vector<StackGroup>& groups, auto matches) {
  std::vector<int> ranks;
  for (const auto& group : groups) {
    if (matches(group)) ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

/// Names the caller by which it differs from all groups that stand at the same place.
std::string caller_text(const Place& place, const std::vector<StackGroup>& among) {
  std::vector<Place> alike;
  for (std::size_t i = 0; i < std::min(among.size(), kMostWhole); ++i) {
    auto other = place_of(among[i].lines);
    const bool same = other.what == place.what && other.where == place.where;
    if (same && other.key != place.key) alike.push_back(std::move(other));
  }
  if (alike.empty()) return {};
  // From 2 on: the first two are the call and the line that makes it, in which all of these are
  // alike.
  for (std::size_t depth = 2; depth < place.key.size(); ++depth) {
    const auto& frame = place.key[depth];
    const bool differs = std::ranges::all_of(alike, [&](const Place& other) {
      return other.key.size() <= depth || other.key[depth] != frame;
    });
    const auto blank = frame.find(' ');
    if (!differs || blank == std::string::npos) continue;
    return fmt::format(" of {} ({})", frame.substr(blank + 1), frame.substr(0, blank));
  }
  return {};
}

std::string place_text(const StackGroup& group, const std::vector<StackGroup>& among) {
  const auto place = place_of(group.lines);
  if (place.what.empty() && place.where.empty()) return "at an unknown place";
  const auto at = place.what.empty()    ? "at " + place.where
                  : place.where.empty() ? "in " + place.what
                                        : fmt::format("in {} ({})", place.what, place.where);
  return at + caller_text(place, among);
}

bool is_any_of(const StackGroup& group, const std::vector<int>& ranks) {
  return std::ranges::any_of(group.ranks,
                             [&](int rank) { return std::ranges::binary_search(ranks, rank); });
}

std::string silent_text(const SilentNode& node) {
  return fmt::format("node {} does not answer{}", node.node,
                     node.ranks.empty() ? "" : " (" + ranks_text(node.ranks) + ")");
}

std::string text_of(const JobStacks& stacks, const std::vector<StackGroup>& among) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  for (std::size_t i = 0; i < std::min(stacks.groups.size(), kMostGroups); ++i) {
    add(group_text(stacks.groups[i], among));
  }
  if (stacks.groups.size() > kMostGroups) {
    add(fmt::format("{} more groups", stacks.groups.size() - kMostGroups));
  }
  for (const auto& node : stacks.silent) add(silent_text(node));
  return text.empty() ? "no stack could be taken" : text;
}

}  // namespace

std::vector<StackGroup> merge(std::vector<StackGroup> groups) {
  std::map<std::vector<std::string>, StackGroup> merged;
  for (auto& group : groups) {
    // By the place and not by the lines: those hold numbers of threads and frames inside of
    // libraries, and would tell all workers apart.
    auto key = place_of(group.lines).key;
    const auto same = merged.find(key);
    if (same == merged.end()) {
      merged.emplace(std::move(key), std::move(group));
      continue;
    }
    auto& ranks = same->second.ranks;
    ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
  }
  groups.clear();
  for (auto& [key, group] : merged) {
    std::ranges::sort(group.ranks);
    const auto same = std::ranges::unique(group.ranks);
    group.ranks.erase(same.begin(), same.end());
    groups.push_back(std::move(group));
  }
  std::ranges::sort(groups, [](const StackGroup& one, const StackGroup& other) {
    if (one.ranks.size() != other.ranks.size()) return one.ranks.size() > other.ranks.size();
    return one.ranks < other.ranks;
  });
  // Of a job in which everybody stands somewhere else, not everything is kept of everybody.
  for (std::size_t i = kMostWhole; i < groups.size(); ++i) {
    auto& lines = groups[i].lines;
    lines.resize(std::min(lines.size(), i < kMostShort ? kShort : 0));
  }
  return groups;
}

std::vector<StackGroup> group(const std::vector<WorkerStack>& stacks) {
  std::vector<StackGroup> groups;
  for (const auto& stack : stacks) groups.push_back({{stack.rank}, in_order(stack.lines)});
  return merge(std::move(groups));
}

std::vector<int> culprits_of(const JobStacks& stacks) {
  const auto& groups = stacks.groups;
  const auto waits = [](const StackGroup& group) { return place_of(group.lines).waits; };
  const auto works = [&](const StackGroup& group) { return !waits(group); };
  const auto all = count_of(groups, [](const StackGroup&) { return true; });
  const auto waiting = count_of(groups, waits);
  // Only a minority is blamed: where most work and a few wait, the few are early, and not at fault.
  if (waiting > 0 && waiting < all && all - waiting <= waiting) return ranks_of(groups, works);
  if (groups.size() > 1 && 2 * groups.front().ranks.size() > all) {
    return ranks_of(groups, [&](const StackGroup& group) { return &group != &groups.front(); });
  }
  std::vector<int> ranks;
  for (const auto& node : stacks.silent) {
    ranks.insert(ranks.end(), node.ranks.begin(), node.ranks.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (++ranges > kMostRanges) return text + fmt::format(" and {} more", ranks.size() - i);
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    // Two neighbours do not make a range.
    if (last == i + 1) text += fmt::format(", {}", ranks[last]);
    if (last > i + 1) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string group_text(const StackGroup& group, const std::vector<StackGroup>& among) {
  if (group.lines.empty()) return ranks_text(group.ranks) + " without a stack";
  const bool waits = place_of(group.lines).waits;
  const std::string_view verb = !waits ? "" : group.ranks.size() == 1 ? " waits" : " wait";
  return fmt::format("{}{} {}", ranks_text(group.ranks), verb, place_text(group, among));
}

std::string stacks_text(const JobStacks& stacks) {
  return text_of(stacks, stacks.groups);
}

std::string hang_text(const JobStacks& stacks) {
  const auto culprits = culprits_of(stacks);
  JobStacks odd, others;
  for (const auto& group : stacks.groups) {
    (is_any_of(group, culprits) ? odd : others).groups.push_back(group);
  }
  // Nodes that do not answer are the culprits only where no group is.
  (odd.groups.empty() ? odd : others).silent = stacks.silent;
  if (culprits.empty() || (others.groups.empty() && others.silent.empty())) {
    return "the job hangs: " + stacks_text(stacks);
  }
  const auto meanwhile = " while " + text_of(others, stacks.groups);
  if (odd.groups.size() != 1) return text_of(odd, stacks.groups) + meanwhile;
  const auto& group = odd.groups.front();
  const std::string_view verb = group.ranks.size() == 1 ? "hangs" : "hang";
  const auto where = group.lines.empty() ? "without a stack" : place_text(group, stacks.groups);
  return fmt::format("{} {} {}{}", ranks_text(group.ranks), verb, where, meanwhile);
}

}  // namespace elastrun::hangs
