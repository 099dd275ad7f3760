// SPDX-License-Identifier: Apache-2.0
#include "workers/group.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

namespace elastrun::workers {
namespace {

using namespace std::chrono_literals;

process::ProcessEntry process_of(pid_t pid, pid_t parent) {
  process::ProcessEntry entry;
  entry.pid = pid;
  entry.parent = parent;
  entry.name = "p" + std::to_string(pid);
  return entry;
}

std::vector<pid_t> pids(const process::ProcessTable& table) {
  std::vector<pid_t> found;
  for (const auto& one : table) found.push_back(one.pid);
  return found;
}

using Pids = std::vector<pid_t>;
constexpr TimePoint kBegin{};

TEST_CASE("leftovers: whoever has a parent there is told by that one") {
  Leftovers leftovers(kBegin, kBegin + 30s, true, 500ms);
  const Leftovers::Left nested{false, {}, {process_of(7, 1), process_of(8, 7)}};
  CHECK(pids(leftovers.look(kBegin, nested).ask) == Pids{7});
  const Leftovers::Left orphan{false, {}, {process_of(8, 1)}};
  CHECK(pids(leftovers.look(kBegin, orphan).ask) == Pids{8});
}

TEST_CASE("leftovers: names are command lines, in a number that people read") {
  Leftovers::Left left{true, {process_of(::getpid(), 1)}, {}};
  CHECK(names_of(left).starts_with(std::to_string(::getpid()) + " ("));
  CHECK(names_of(left).contains("unit_workers"));
  for (pid_t pid = 0x3ffffff0; pid < 0x3ffffffa; ++pid) left.escaped.push_back(process_of(pid, 1));
  CHECK(names_of(left).contains("1073741808 (p1073741808)"));
  CHECK(names_of(left).ends_with(" and 3 more"));
}

}  // namespace
}  // namespace elastrun::workers
