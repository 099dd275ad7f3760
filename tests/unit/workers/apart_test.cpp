// SPDX-License-Identifier: Apache-2.0
#include "workers/apart.hpp"

#include <doctest/doctest.h>

namespace elastrun::workers {
namespace {

constexpr pid_t kAgentPid = 2, kWorkerPid = 10;

process::ProcessEntry process_of(pid_t pid, pid_t parent, pid_t group, pid_t session = kWorkerPid) {
  process::ProcessEntry entry;
  entry.pid = pid;
  entry.parent = parent;
  entry.group = group;
  entry.session = session;
  return entry;
}

std::vector<pid_t> apart(const process::ProcessTable& job, bool waits = true) {
  std::vector<pid_t> found;
  for (const auto& one :
       set_apart(job, {kWorkerPid}, [=](const process::ProcessEntry&) { return waits; })) {
    found.push_back(one.pid);
  }
  return found;
}

using Pids = std::vector<pid_t>;
const auto kLeader = process_of(kWorkerPid, kAgentPid, kWorkerPid);

TEST_CASE("apart: what a script of the group waits for, and nobody below that") {
  CHECK(apart({kLeader, process_of(11, kWorkerPid, 11), process_of(12, 11, 11),
               process_of(13, 11, 13)}) == Pids{11});
  CHECK(apart({kLeader, process_of(11, kWorkerPid, kWorkerPid), process_of(12, 11, 12)}) ==
        Pids{12});
}

TEST_CASE("apart: the group has had its signal") {
  CHECK(apart({kLeader, process_of(11, kWorkerPid, kWorkerPid), process_of(12, 11, kWorkerPid)})
            .empty());
}

TEST_CASE("apart: a service is spared while its user works") {
  CHECK(apart({kLeader, process_of(11, kWorkerPid, 11)}, false).empty());
  CHECK_MESSAGE(apart({kLeader, process_of(11, kAgentPid, 11)}).empty(), "an orphan, nobody waits");
  CHECK_MESSAGE(apart({kLeader, process_of(11, kWorkerPid, 11, 11)}).empty(),
                "a session of its own");
  CHECK_MESSAGE(
      apart({kLeader, process_of(11, kWorkerPid, 11, 11), process_of(12, 11, 12, 11)}).empty(),
      "and what is in it");
}

TEST_CASE("apart: what a worker has left has no user, though other workers go on") {
  CHECK(apart({process_of(11, kAgentPid, 11), process_of(12, 11, 11)}) == Pids{11});
  CHECK_MESSAGE(
      apart({process_of(12, kAgentPid, kWorkerPid), process_of(11, kAgentPid, 11)}).empty(),
      "somebody of its group lives");
}

}  // namespace
}  // namespace elastrun::workers
