// SPDX-License-Identifier: Apache-2.0
#include "support/fake_processes.hpp"
#include "workers/group.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <string>

using Pids = std::vector<pid_t>;
using namespace std::chrono_literals;
using elastrun::process::Route;

namespace elastrun::workers {
namespace {

constexpr pid_t kAgent = 2, kWorker = 10;
constexpr std::uint64_t kBegan = 100;

process::ProcessEntry entry_of(pid_t pid, pid_t parent, std::string name = "python",
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

Pids pids_of(const process::ProcessTable& table) {
  Pids pids;
  for (const auto& one : table) pids.push_back(one.pid);
  return pids;
}

struct Stop {
  explicit Stop(process::ProcessTable job)
      : summons(processes, {kWorker}, job, kBegan), first(pids_of(summons.next(job))) {}
  Pids next(const process::ProcessTable& job) { return pids_of(summons.next(job)); }
  Pids rest(const process::ProcessTable& job) { return pids_of(summons.rest(job)); }
  test::FakeProcesses processes;
  Summons summons;
  Pids first;
};

TEST_CASE("summons: a trainer is asked alone, and what it has forked when it has ended") {
  const auto trainer = entry_of(kWorker, kAgent), fork = entry_of(11, kWorker);
  Stop stop({trainer, fork});
  CHECK(stop.first == Pids{kWorker});
  CHECK_FALSE(stop.summons.any_wrapped());
  CHECK(stop.next({trainer, fork}).empty());
  const auto orphan = entry_of(11, kAgent);
  CHECK(stop.next({orphan}) == Pids{11});
  CHECK_MESSAGE(stop.next({orphan}).empty(), "once");
}

TEST_CASE("summons: below shells and timeout(1) the first that is none, with the shells") {
  Stop stop({entry_of(kWorker, kAgent, "sh"), entry_of(11, kWorker, "timeout"),
             entry_of(12, 11, "sh"), entry_of(13, 12), entry_of(14, 12, "tee"), entry_of(15, 13),
             entry_of(16, 15, "sh")});
  CHECK(stop.first == Pids{kWorker, 12, 13, 14});
  CHECK(stop.summons.any_wrapped());
  CHECK_MESSAGE(stop.next({entry_of(kWorker, kAgent, "sh"), entry_of(15, kAgent)}) == Pids{15},
                "an orphan counts as a child of its worker");
}

TEST_CASE("summons: timeout(1) is asked where what it runs cannot be") {
  CHECK(Stop({entry_of(kWorker, kAgent, "timeout"), entry_of(11, kWorker, "python", 11)}).first ==
        Pids{kWorker});
}

TEST_CASE("summons: all of the groups are asked in the end, but not what the stop has begun") {
  const auto trainer = entry_of(kWorker, kAgent), fork = entry_of(11, kWorker);
  Stop stop({trainer, fork});
  const auto upload = entry_of(12, kWorker, "python", kWorker, kBegan);
  CHECK(stop.rest({trainer, fork, upload, entry_of(13, 1, "stranger", 13)}) == Pids{11});
  CHECK_MESSAGE(stop.next({entry_of(12, kAgent, "python", kWorker, kBegan)}).empty(), "upload");
}

TEST_CASE("summons: a trainer is asked, too, for whom one that was asked goes on to wait") {
  const auto launcher = entry_of(kWorker, kAgent), trainer = entry_of(11, kWorker);
  const auto fork = entry_of(12, 11), other = entry_of(13, kWorker, "aws");
  const auto upload = entry_of(14, kWorker, "python", kWorker, kBegan);
  process::ProcessTable job{launcher, trainer, fork, other, entry_of(15, kWorker, "python", 15)};
  Stop stop(job);
  job.push_back(upload);
  stop.processes.waiting = kWorker;
  CHECK(pids_of(stop.summons.waited_for(job)) == Pids{11});
  CHECK_MESSAGE(stop.summons.waited_for(job).empty(), "once");
  CHECK(stop.rest(job) == Pids{12, 13});
}

TEST_CASE("summons: a trainer that died of the signal has begun nothing because of it") {
  Stop stop({entry_of(kWorker, kAgent)});
  const process::ProcessTable left{entry_of(11, kAgent, "python", kWorker, kBegan)};
  CHECK(stop.next(left).empty());
  stop.summons.died_by_signal(kWorker);
  CHECK(stop.next(left) == Pids{11});
}

TEST_CASE("summons: what was there as the stop began is asked, however young") {
  const auto young = entry_of(11, kWorker, "python", kWorker, kBegan);
  Stop stop({entry_of(kWorker, kAgent, "python", kWorker, kBegan), young});
  CHECK(stop.first == Pids{kWorker});
  CHECK(stop.next({entry_of(11, kAgent, "python", kWorker, kBegan)}) == Pids{11});
}

TEST_CASE("summons: in a group apart the trainer is asked in place of timeout(1)") {
  const auto root = entry_of(11, kWorker, "timeout", 11);
  const process::ProcessTable job{entry_of(kWorker, kAgent, "sh"), root,
                                  entry_of(12, 11, "python", 11), entry_of(13, 12, "python", 11)};
  Stop stop(job);
  CHECK(stop.first == Pids{kWorker});
  CHECK(pids_of(stop.summons.below({root}, job)) == Pids{12});
}

TEST_CASE("summons: pids that go round in a circle end no search") {
  CHECK(Stop({entry_of(11, 12, "sh"), entry_of(12, 11, "sh")}).first.empty());
}

process::ProcessEntry process_of(pid_t pid, pid_t parent, pid_t group, pid_t session = kWorker) {
  auto entry = entry_of(pid, parent, "", group, 0);
  entry.session = session;
  return entry;
}

std::vector<pid_t> apart(const process::ProcessTable& job, bool waits = true) {
  test::FakeProcesses processes;
  processes.all_wait = waits;
  return pids_of(set_apart(job, {kWorker}, processes));
}

const auto kLeader = process_of(kWorker, kAgent, kWorker);

TEST_CASE("apart: what a script of the group waits for, and nobody below that") {
  CHECK(apart({kLeader, process_of(11, kWorker, 11), process_of(12, 11, 11),
               process_of(13, 11, 13)}) == Pids{11});
  CHECK(apart({kLeader, process_of(11, kWorker, kWorker), process_of(12, 11, 12)}) == Pids{12});
}

TEST_CASE("apart: the group has had its signal") {
  CHECK(apart({kLeader, process_of(11, kWorker, kWorker), process_of(12, 11, kWorker)}).empty());
}

TEST_CASE("apart: a service is spared while its user works") {
  CHECK(apart({kLeader, process_of(11, kWorker, 11)}, false).empty());
  CHECK_MESSAGE(apart({kLeader, process_of(11, kAgent, 11)}).empty(), "an orphan, nobody waits");
  CHECK_MESSAGE(apart({kLeader, process_of(11, kWorker, 11, 11)}).empty(), "a session of its own");
  CHECK_MESSAGE(
      apart({kLeader, process_of(11, kWorker, 11, 11), process_of(12, 11, 12, 11)}).empty(),
      "and what is in it");
}

TEST_CASE("apart: what a worker has left has no user, though other workers go on") {
  CHECK(apart({process_of(11, kAgent, 11), process_of(12, 11, 11)}) == Pids{11});
  CHECK_MESSAGE(apart({process_of(12, kAgent, kWorker), process_of(11, kAgent, 11)}).empty(),
                "somebody of its group lives");
}

struct Orders {
  /// Whether it is the first of an order.
  bool heard(Route route, Duration later = {}, pid_t sender = 42) {
    now += later;
    const auto before = signals.due(SIGUSR1);
    signals.heard({SIGUSR1, sender, route}, now);
    return signals.due(SIGUSR1) != before;
  }
  bool passed() {
    const auto due = signals.due(SIGUSR1);
    REQUIRE(due.has_value());
    CHECK_FALSE(signals.is_for_workers(SIGUSR1, *due - 1ms));
    now = *due;
    return signals.is_for_workers(SIGUSR1, now);
  }
  PassingSignals signals;
  TimePoint now{};
};

TEST_CASE("passing signals: a guardian that is slow passes nothing on twice") {
  Orders orders;
  CHECK(orders.heard(Route::Process));
  CHECK(orders.passed());
  CHECK_FALSE(orders.heard(Route::ThroughGuardian, 5s));
  CHECK(orders.heard(Route::ThroughGuardian, 20s));
}

TEST_CASE("passing signals: a storm of them costs no memory") {
  Orders orders;
  for (pid_t sender = 1; sender < 10'000; ++sender) orders.heard(Route::Process, {}, sender);
  int passed = 0;
  while (orders.signals.due(SIGUSR1)) passed += orders.passed() ? 1 : 0;
  CHECK(passed == 1);
}

}  // namespace
}  // namespace elastrun::workers
