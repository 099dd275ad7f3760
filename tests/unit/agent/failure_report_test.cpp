// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/failure_report.hpp"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using process::ExitStatus;

workers::Failure failed(int rank, int pid, ExitStatus status, bool stopped = false) {
  workers::Failure failure;
  failure.rank = failure.local_rank = rank;
  failure.pid = pid;
  failure.status = status;
  failure.stopped_by_us = stopped;
  failure.wall = WallTime(std::chrono::seconds(1'767'323'045));
  failure.at = TimePoint(std::chrono::seconds(1) + std::chrono::milliseconds(rank));
  return failure;
}

std::string report(std::vector<workers::Failure> failures) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  return torchrun_report(workers::judge(std::move(failures)), "train.py", "node1");
}

TEST_CASE("report: borders are as wide as the longest line, 60 at most") {
  const auto text = report({failed(0, 7, ExitStatus::signaled(SIGKILL))});
  CHECK(text.starts_with("\n" + std::string(50, '=') + "\ntrain.py FAILED\n"));
  CHECK(text.contains("\n  <NO_OTHER_FAILURES>\n"));
}

}  // namespace
}  // namespace elastrun::agent
