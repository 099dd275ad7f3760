// SPDX-License-Identifier: Apache-2.0

#include "hangs/stacks.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

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

/// One tool's report on a thread, or on several that do the same.
struct Section {
  enum class Kind { Faulthandler, PySpy, Kernel, Unknown } kind = Kind::Unknown;
  std::string header;
  std::vector<std::string> lines;
};
using Kind = Section::Kind;

/// One call in Python.
struct Frame {
  std::string file, function;
  int line = 0;
};

/// "Thread 0x00007f3a (most recent call first):", "Current thread 0x00007f3a [python] (most ...",
/// "Stack (most recent call first):" of the only thread that was asked,
/// "Thread 4711 (idle): "MainThread"", "thread 4711 (python, main): sleeping, ...".
Kind kind_of(std::string_view line) {
  const bool thread = line.starts_with("Thread ") || line.starts_with("Current thread ") ||
                      line.starts_with("Stack ");
  if (thread && line.ends_with("(most recent call first):")) return Kind::Faulthandler;
  if (line.starts_with("Thread ") && line.contains(" (")) return Kind::PySpy;
  const bool threads = line.starts_with("thread ") || line.starts_with("threads ");
  return threads && line.contains("): ") ? Kind::Kernel : Kind::Unknown;
}

int number_in(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= 0 && *number < (1 << 30) ? static_cast<int>(*number) : 0;
}

/// `  File "train.py", line 88 in step`
std::optional<Frame> faulthandler_frame(std::string_view line) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = " in ";
  const auto text = trim(line);
  // From the end: what stands before it is a path, which may hold any text.
  const auto end = text.rfind(kLine);
  if (!text.starts_with(kFile) || end == std::string_view::npos) return std::nullopt;
  const auto rest = text.substr(end + kLine.size());
  const auto in = rest.find(kIn);
  if (in == std::string_view::npos) return std::nullopt;
  return Frame{std::string(text.substr(kFile.size(), end - kFile.size())),
               std::string(rest.substr(in + kIn.size())), number_in(rest.substr(0, in))};
}

/// `    step (train.py:88)`
std::optional<Frame> py_spy_frame(std::string_view line) {
  const auto text = trim(line);
  const auto open = text.rfind(" (");
  const auto colon = text.rfind(':');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  if (colon == std::string_view::npos || colon < open) {
    return Frame{std::string(text.substr(open + 2, text.size() - open - 3)),
                 std::string(text.substr(0, open)), 0};
  }
  return Frame{std::string(text.substr(open + 2, colon - open - 2)),
               std::string(text.substr(0, open)),
               number_in(text.substr(colon + 1, text.size() - colon - 2))};
}

std::vector<Section> sections_of(const std::vector<std::string>& lines) {
  std::vector<Section> sections;
  for (const auto& line : lines) {
    const auto kind = kind_of(line);
    if (kind != Kind::Unknown) {
      sections.push_back({kind, line, {}});
    } else if (!sections.empty()) {
      sections.back().lines.push_back(line);
    }
  }
  return sections;
}

/// Innermost first. Empty for a section of the kernel.
std::vector<Frame> frames_of(const Section& section) {
  std::vector<Frame> frames;
  if (section.kind == Kind::Kernel) return frames;
  for (const auto& line : section.lines) {
    auto frame = section.kind == Kind::PySpy ? py_spy_frame(line) : faulthandler_frame(line);
    if (frame) frames.push_back(std::move(*frame));
  }
  return frames;
}

/// The index of the main thread by Python, else by the kernel; `sections.size()`: none.
/// faulthandler begins with the newest thread, so Python's first one is its last; py-spy names it;
/// thread_lines() begins with it.
std::size_t main_section(const std::vector<Section>& sections) {
  std::size_t main = sections.size();
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const bool python = sections[i].kind == Kind::Faulthandler || sections[i].kind == Kind::PySpy;
    if (!python || frames_of(sections[i]).empty()) continue;
    const bool named = sections[i].header.contains("\"MainThread\"");
    if (sections[i].kind == Kind::Faulthandler || named || main == sections.size()) main = i;
  }
  if (main < sections.size()) return main;
  const auto kernel = std::ranges::find(sections, Kind::Kernel, &Section::kind);
  return static_cast<std::size_t>(kernel - sections.begin());
}

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

// Functions in which a process waits for others, as PyTorch, its stores and Python call them.
constexpr std::array<std::string_view, 21> kWaits = {"all_gather",
                                                     "all_reduce",
                                                     "all_to_all",
                                                     "backward",
                                                     "barrier",
                                                     "broadcast",
                                                     "gather",
                                                     "irecv",
                                                     "isend",
                                                     "monitored_barrier",
                                                     "recv",
                                                     "reduce",
                                                     "scatter",
                                                     "send",
                                                     "synchronize",
                                                     "wait",
                                                     "wait_tensor",
                                                     "rendezvous",
                                                     "init_process_group",
                                                     "destroy_process_group",
                                                     "new_group"};
// What stands between a user's line and what it has called.
constexpr std::array<std::string_view, 11> kBetween = {
    "wrapper",  "inner",    "_fn",      "decorate_context", "_call_impl", "_wrapped_call_impl",
    "__call__", "__next__", "__iter__", "__enter__",        "__exit__"};

/// all_gather_into_tensor, reduce_scatter_tensor, broadcast_object_list, ...
bool is_wait(std::string_view function) {
  return std::ranges::any_of(kWaits, [&](std::string_view name) {
    // Not of these two, with which functions of users begin as well.
    return function == name || (function.starts_with(name) && function[name.size()] == '_' &&
                                name != "wait" && name != "send");
  });
}

bool is_library(std::string_view file) {
  return file.contains("/site-packages/") || file.contains("/dist-packages/") ||
         file.contains("/lib/python3") || file.starts_with("<frozen");
}

std::string line_of(const Frame& frame) {
  const auto slash = frame.file.rfind('/');
  return fmt::format(
      "{}:{}", slash == std::string::npos ? frame.file : frame.file.substr(slash + 1), frame.line);
}

/// Without the folder, which may be another one on each node.
std::string key_of(const Frame& frame) {
  return line_of(frame) + ' ' + frame.function;
}

/// The call that the user's frame at `user` has made, as its name tells most.
std::string call_below(const std::vector<Frame>& frames, std::size_t user) {
  for (std::size_t i = user; i-- > 0;) {
    if (is_wait(frames[i].function)) return frames[i].function;
  }
  for (std::size_t i = user; i-- > 0;) {
    if (std::ranges::find(kBetween, frames[i].function) == kBetween.end()) {
      return frames[i].function;
    }
  }
  return frames[user < frames.size() ? user : 0].function;
}

Place python_place(const std::vector<Frame>& frames) {
  const auto user = static_cast<std::size_t>(
      std::ranges::find_if(frames, [](const Frame& frame) { return !is_library(frame.file); }) -
      frames.begin());
  const auto& stands = frames[user < frames.size() ? user : 0];
  Place place{call_below(frames, user), line_of(stands), false, {}};
  place.waits = is_wait(place.what);
  // A trainer that waits for its DataLoader stands in a queue or a pipe, whose name tells nothing.
  const bool loads = std::ranges::any_of(
      frames, [](const Frame& frame) { return frame.file.contains("torch/utils/data/"); });
  if (loads && !place.waits) place.what = "DataLoader";
  if (place.what == "<module>") place.what.clear();
  place.key.push_back(place.what);
  for (std::size_t i = user < frames.size() ? user : 0; i < frames.size(); ++i) {
    place.key.push_back(key_of(frames[i]));
  }
  return place;
}

/// "sleeping, system call futex, waits in futex_wait_queue"
Place kernel_place(const Section& section) {
  const auto colon = section.header.rfind("): ");
  const auto state = colon == std::string::npos ? section.header : section.header.substr(colon + 3);
  Place place{{}, {}, false, {state}};
  for (const auto& line : section.lines) place.key.push_back(line);
  const auto parts = split(state, ',');
  place.what = parts.front();
  for (const auto& part : parts) {
    const std::string_view text = trim(part);
    if (text.starts_with("system call ")) place.what = text;
    if (text.starts_with("waits in ")) place.where = text.substr(9);
  }
  return place;
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

std::vector<std::string> without_kernel(const std::vector<std::string>& lines) {
  const auto sections = sections_of(lines);
  const bool python = std::ranges::any_of(
      sections, [](const Section& section) { return !frames_of(section).empty(); });
  const bool hangs = std::ranges::any_of(
      lines, [](const auto& line) { return line.contains("): in uninterruptible sleep"); });
  if (!python || hangs) return lines;
  std::vector<std::string> kept;
  for (const auto& section : sections) {
    if (section.kind == Kind::Kernel) continue;
    kept.push_back(section.header);
    kept.insert(kept.end(), section.lines.begin(), section.lines.end());
  }
  return kept;
}

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

Place place_of(const std::vector<std::string>& lines) {
  const auto sections = sections_of(lines);
  if (sections.empty()) return {};
  const auto& section = sections.front();
  if (section.kind == Kind::Kernel) return kernel_place(section);
  const auto frames = frames_of(section);
  return frames.empty() ? Place{} : python_place(frames);
}

}  // namespace elastrun::hangs
