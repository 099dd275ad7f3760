// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Takes the output of faulthandler, py-spy and system::thread_lines apart. All pure; a line that
/// is not understood belongs to the section before it.
namespace elastrun::hangs {

/// Drops what the kernel tells of threads, if the process has Python frames and no thread of it
/// hangs in the kernel.
std::vector<std::string> without_kernel(const std::vector<std::string>& lines);

/// Stacks of workers as people want to read them: where each one stands, who stands together, and
/// who does not. All pure.

/// The most that travels and is kept of one stack: it is within a frame (64 KiB) as JSON, too.
constexpr std::size_t kMostLines = 300;
constexpr std::size_t kMostBytes = 16 << 10;

/// The stack of one worker: what its Python, py-spy and the kernel tell of its threads, as lines
/// (elastrun-timers(7)); none if nothing could be learnt.
struct WorkerStack {
  int rank = -1;
  std::vector<std::string> lines;
};

/// The place where the main thread of a worker stands.
struct Place {
  std::string what;    // "all_reduce", "DataLoader"; empty: not known
  std::string where;   // "train.py:88", or the kernel's wait channel; may be empty
  bool waits = false;  // for others, as far as its name tells
  /// The frames by which two stacks are equal: without addresses, names of threads and what is
  /// inside of a library.
  std::vector<std::string> key;
  bool operator==(const Place&) const = default;
};
/// Finds the main thread's place in lines as group() gives them: the order of the threads no longer
/// tells which one it is.
Place place_of(const std::vector<std::string>& lines);

/// Workers that stand at the same place.
struct StackGroup {
  std::vector<int> ranks;          // ascending
  std::vector<std::string> lines;  // of one of them: that of its main thread first
  bool operator==(const StackGroup&) const = default;
};
/// The largest group first, else the one with the lowest rank. Of each stack kMostLines and
/// kMostBytes at most.
std::vector<StackGroup> group(const std::vector<WorkerStack>& stacks);
/// Merges the groups of several nodes.
std::vector<StackGroup> merge(std::vector<StackGroup> groups);

/// A node of which nothing was heard in time.
struct SilentNode {
  std::string node;
  std::vector<int> ranks;
  bool operator==(const SilentNode&) const = default;
};

/// The workers of a job at one moment.
struct JobStacks {
  std::vector<StackGroup> groups;  // as merge() gives them
  std::vector<SilentNode> silent;
  std::vector<std::string> dumps;  // files of torch's flight recorder that were asked for
  bool operator==(const JobStacks&) const = default;
};

/// The odd ones out: workers that do not wait while most others do, or else those outside the group
/// that has more than half of all; failing these, nodes that do not answer. Empty: all look alike.
std::vector<int> culprits_of(const JobStacks& stacks);

/// "ranks 0-2, 4-7"; "rank 3". Ascending ranks.
std::string ranks_text(const std::vector<int>& ranks);
/// "ranks 0-2, 4-7 wait in all_reduce (train.py:88)". `among`: groups from which it is to be told
/// apart: " of load (data.py:12)" follows where that is the innermost caller that differs.
std::string group_text(const StackGroup& group, const std::vector<StackGroup>& among = {});
/// All groups, and who does not answer: "...; rank 3 in DataLoader (data.py:41)".
std::string stacks_text(const JobStacks& stacks);
/// Says in one sentence what is wrong, the culprit first if there is one: "rank 3 hangs in
/// DataLoader (data.py:41) while ranks 0-2, 4-7 wait in all_reduce (train.py:88)".
std::string hang_text(const JobStacks& stacks);

/// The stacks of a job as people and their tools read them. All pure.

/// Each group of workers with its stack, `most` lines of it at most; `line` begins each line.
std::string stacks_lines(const JobStacks& stacks, std::string_view line, std::size_t most);

/// Which option tells more; empty: Python frames are there.
std::string_view stacks_hint(const JobStacks& stacks);

/// The members of elastrun-protocol(7), Report, hangs.
json::object stacks_json(const JobStacks& stacks);

}  // namespace elastrun::hangs
