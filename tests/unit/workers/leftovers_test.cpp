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

TEST_CASE("leftovers: nothing left is the end of it") {
  Leftovers leftovers(kBegin, kBegin + 30s, true, 500ms);
  const auto orders = leftovers.look(kBegin, {});
  CHECK(orders.over);
  CHECK_FALSE(orders.kill);
}

TEST_CASE("leftovers: what is not in a group is asked when the groups have gone, once") {
  Leftovers leftovers(kBegin, kBegin + 30s, true, 500ms);
  const Leftovers::Left beside{true, {process_of(5, 1)}, {process_of(9, 5)}};
  CHECK_MESSAGE(leftovers.look(kBegin, beside).ask.empty(), "the trainer still needs it");
  const Leftovers::Left alone{false, {}, {process_of(9, 1)}};
  CHECK(pids(leftovers.look(kBegin + 1s, alone).ask) == Pids{9});
  CHECK(leftovers.look(kBegin + 2s, alone).ask.empty());
}

TEST_CASE("leftovers: whoever has a parent there is told by that one") {
  Leftovers leftovers(kBegin, kBegin + 30s, true, 500ms);
  const Leftovers::Left nested{false, {}, {process_of(7, 1), process_of(8, 7)}};
  CHECK(pids(leftovers.look(kBegin, nested).ask) == Pids{7});
  const Leftovers::Left orphan{false, {}, {process_of(8, 1)}};
  CHECK(pids(leftovers.look(kBegin, orphan).ask) == Pids{8});
}

TEST_CASE("leftovers: what was born by the stop is not asked, but killed when the time is over") {
  Leftovers leftovers(kBegin, kBegin + 30s, true, 500ms);
  leftovers.spare_born_since(700);
  auto service = process_of(9, 1), upload = process_of(10, 1);
  service.start_time = 699;
  upload.start_time = 700;
  const Leftovers::Left both{false, {}, {service, upload}};
  CHECK(pids(leftovers.look(kBegin, both).ask) == Pids{9});
  const Leftovers::Left alone{false, {}, {upload}};
  const auto later = leftovers.look(kBegin + 29s, alone);
  CHECK(later.ask.empty());
  CHECK_FALSE(later.over);
  CHECK(leftovers.look(kBegin + 30s, alone).kill);
}

TEST_CASE("leftovers: after a stop comes SIGKILL, after a success SIGTERM and then SIGKILL") {
  const Leftovers::Left left{true, {process_of(5, 1)}, {process_of(9, 1)}};
  Leftovers stopped(kBegin, kBegin + 30s, true, 500ms);
  CHECK_FALSE(stopped.look(kBegin + 29s, left).over);
  CHECK(stopped.look(kBegin + 30s, left).kill);

  Leftovers finished(kBegin, kBegin + 30s, false, 500ms);
  CHECK(finished.look(kBegin + 29s, left).ask.empty());
  const auto asked = finished.look(kBegin + 30s, left);
  CHECK(asked.ask_groups);
  CHECK(pids(asked.ask) == Pids{9});
  CHECK(asked.look_again <= kBegin + 30'500ms);
  CHECK_FALSE(finished.look(kBegin + 30'499ms, left).kill);
  CHECK(finished.look(kBegin + 30'500ms, left).kill);
}

TEST_CASE("leftovers: people hear once of what takes longer than a moment") {
  Leftovers leftovers(kBegin, kBegin + 30s, false, 500ms);
  const Leftovers::Left left{true, {process_of(5, 1)}, {}};
  const auto first = leftovers.look(kBegin, left);
  CHECK_FALSE(first.name);
  CHECK(first.look_again <= kBegin + 500ms);
  CHECK(leftovers.look(kBegin + 500ms, left).name);
  CHECK_FALSE(leftovers.look(kBegin + 600ms, left).name);
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
