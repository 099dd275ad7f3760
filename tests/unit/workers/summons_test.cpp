// SPDX-License-Identifier: Apache-2.0
#include "workers/summons.hpp"

#include <doctest/doctest.h>
#include <string>

namespace elastrun::workers {
namespace {

using process::Wrapper;
using Pids = std::vector<pid_t>;

constexpr pid_t kAgent = 2, kWorker = 10;
constexpr std::uint64_t kBegan = 100;

process::ProcessEntry process_of(pid_t pid, pid_t parent, std::string name = "python",
                                 pid_t group = kWorker, std::uint64_t start = 1) {
  process::ProcessEntry entry;
  entry.pid = pid;
  entry.parent = parent;
  entry.group = group;
  entry.session = kWorker;
  entry.start_time = start;
  entry.name = std::move(name);
  return entry;
}

Wrapper by_name(const process::ProcessEntry& one) {
  if (one.name == "timeout") return Wrapper::Relay;
  return one.name == "sh" ? Wrapper::Shell : Wrapper::None;
}

Pids pids_of(const process::ProcessTable& table) {
  Pids pids;
  for (const auto& one : table) pids.push_back(one.pid);
  return pids;
}

struct Stop {
  explicit Stop(process::ProcessTable job)
      : summons(by_name, {kWorker}, job, kBegan), first(pids_of(summons.next(job))) {}
  Pids next(const process::ProcessTable& job) { return pids_of(summons.next(job)); }
  Pids rest(const process::ProcessTable& job) { return pids_of(summons.rest(job)); }
  Summons summons;
  Pids first;
};

TEST_CASE("summons: a trainer is asked alone, and what it has forked when it has ended") {
  const auto trainer = process_of(kWorker, kAgent), fork = process_of(11, kWorker);
  Stop stop({trainer, fork});
  CHECK(stop.first == Pids{kWorker});
  CHECK_FALSE(stop.summons.any_wrapped());
  CHECK(stop.next({trainer, fork}).empty());
  const auto orphan = process_of(11, kAgent);
  CHECK(stop.next({orphan}) == Pids{11});
  CHECK_MESSAGE(stop.next({orphan}).empty(), "once");
}

TEST_CASE("summons: below shells and timeout(1) the first that is none, with the shells") {
  Stop stop({process_of(kWorker, kAgent, "sh"), process_of(11, kWorker, "timeout"),
             process_of(12, 11, "sh"), process_of(13, 12), process_of(14, 12, "tee"),
             process_of(15, 13), process_of(16, 15, "sh")});
  CHECK(stop.first == Pids{kWorker, 12, 13, 14});
  CHECK(stop.summons.any_wrapped());
  CHECK_MESSAGE(stop.next({process_of(kWorker, kAgent, "sh"), process_of(15, kAgent)}) == Pids{15},
                "an orphan counts as a child of its worker");
}

TEST_CASE("summons: timeout(1) is asked where what it runs cannot be") {
  CHECK(
      Stop({process_of(kWorker, kAgent, "timeout"), process_of(11, kWorker, "python", 11)}).first ==
      Pids{kWorker});
}

TEST_CASE("summons: all of the groups are asked in the end, but not what the stop has begun") {
  const auto trainer = process_of(kWorker, kAgent), fork = process_of(11, kWorker);
  Stop stop({trainer, fork});
  const auto upload = process_of(12, kWorker, "python", kWorker, kBegan);
  CHECK(stop.rest({trainer, fork, upload, process_of(13, 1, "stranger", 13)}) == Pids{11});
  CHECK_MESSAGE(stop.next({process_of(12, kAgent, "python", kWorker, kBegan)}).empty(), "upload");
}

TEST_CASE("summons: a trainer that died of the signal has begun nothing because of it") {
  Stop stop({process_of(kWorker, kAgent)});
  const process::ProcessTable left{process_of(11, kAgent, "python", kWorker, kBegan)};
  CHECK(stop.next(left).empty());
  stop.summons.died_by_signal(kWorker);
  CHECK(stop.next(left) == Pids{11});
}

TEST_CASE("summons: what was there as the stop began is asked, however young") {
  const auto young = process_of(11, kWorker, "python", kWorker, kBegan);
  Stop stop({process_of(kWorker, kAgent, "python", kWorker, kBegan), young});
  CHECK(stop.first == Pids{kWorker});
  CHECK(stop.next({process_of(11, kAgent, "python", kWorker, kBegan)}) == Pids{11});
}

TEST_CASE("summons: in a group apart the trainer is asked in place of timeout(1)") {
  const auto root = process_of(11, kWorker, "timeout", 11);
  const process::ProcessTable job{process_of(kWorker, kAgent, "sh"), root,
                                  process_of(12, 11, "python", 11),
                                  process_of(13, 12, "python", 11)};
  Stop stop(job);
  CHECK(stop.first == Pids{kWorker});
  CHECK(pids_of(stop.summons.below({root}, job)) == Pids{12});
}

TEST_CASE("summons: pids that go round in a circle end no search") {
  CHECK(Stop({process_of(11, 12, "sh"), process_of(12, 11, "sh")}).first.empty());
}

}  // namespace
}  // namespace elastrun::workers
