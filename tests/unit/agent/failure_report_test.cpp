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

TEST_CASE("report: the layout is torchrun's, character by character") {
  CHECK(report({failed(1, 4243, ExitStatus::signaled(SIGTERM), true),
                failed(0, 4242, ExitStatus::exited(9))}) == R"(
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_03:04:05
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 4243)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4243
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : node1
  rank      : 0 (local_rank: 0)
  exitcode  : 9 (pid: 4242))"
                                                            " \n"
                                                            R"(  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================)");
}

TEST_CASE("report: borders are as wide as the longest line, 60 at most") {
  const auto text = report({failed(0, 7, ExitStatus::signaled(SIGKILL))});
  CHECK(text.starts_with("\n" + std::string(50, '=') + "\ntrain.py FAILED\n"));
  CHECK(text.contains("\n  <NO_OTHER_FAILURES>\n"));
}

TEST_CASE("report: a traceback is indented, a plain text is not") {
  auto failure = failed(0, 7, ExitStatus::exited(1));
  failure.error_file_path = "/log/error.json";
  failure.error_file = workers::parse_error_file(
      R"({"message": {"message": "m", "extraInfo": {"py_callstack": "Traceback\nValueError\n"}}})");
  CHECK(
      report({failure}).contains("  error_file: /log/error.json\n"
                                 "  traceback : Traceback\n  ValueError\n  \n====="));
  failure.error_file = workers::parse_error_file(R"({"message": "one\ntwo", "timestamp": 0})");
  const auto plain = report({failure});
  CHECK(plain.contains("  traceback : one\ntwo\n====="));
  CHECK(plain.contains("  time      : 1970-01-01_00:00:00\n"));
}

TEST_CASE("report: an empty or broken error file leaves the usual hint") {
  auto failure = failed(0, 7, ExitStatus::exited(1));
  failure.error_file_path = "/log/error.json";
  for (const char* text : {R"({"message": ""})", "{ broken", ""}) {
    failure.error_file = workers::parse_error_file(text);
    CHECK(report({failure}).contains("  traceback : To enable traceback see: "));
  }
}

TEST_CASE("report: a signal without a name is shown without one") {
  const auto text = report({failed(0, 7, ExitStatus::signaled(35))});
  CHECK(text.contains("  exitcode  : -35 (pid: 7) \n"));
  CHECK(text.contains("  traceback : Signal 35 (<N/A>) received by PID 7\n"));
}

}  // namespace
}  // namespace elastrun::agent
