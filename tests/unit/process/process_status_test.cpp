// SPDX-License-Identifier: Apache-2.0
#include "process/process_table.hpp"
#include "support/fake_files.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

TEST_CASE("process status: tracer, user and signals, whatever the process is called") {
  const test::FakeFiles proc;
  proc.add("7/status",
           "Name:\tx\\nTracerPid:\\t9\nPid:\t7\nTracerPid:\t4711\nUid:\t1000\t0\t0\t0\n"
           "SigPnd:\t0000000000000200\nSigBlk:\t8000000000000000\nSigIgn:\t0000000000001000\n"
           "SigCgt:\t0000000100000002\n");
  const auto status = read_status(7, proc.root());
  CHECK(status.tracer == 4711);
  CHECK(status.user == 1000);
  for (const int signal : {2, 13, 33, 64}) CHECK(status.survives(signal));
  for (const int signal : {1, 10, 12, 63}) CHECK_FALSE(status.survives(signal));
}

TEST_CASE("process status: of a process that has gone nothing is known") {
  const test::FakeFiles proc;
  const auto status = read_status(7, proc.root());
  CHECK(status.tracer == 0);
  CHECK_FALSE(status.user.has_value());
  CHECK_FALSE(status.survives(SIGTERM));
}

TEST_CASE("process status: as the kernel has it of this process") {
  CHECK(read_status(::getpid()).user == ::getuid());
  CHECK_FALSE(read_status(::getpid()).survives(SIGUSR2));
  const auto before = std::signal(SIGUSR2, [](int) {});
  CHECK(read_status(::getpid()).survives(SIGUSR2));
  std::signal(SIGUSR2, before);
}

}  // namespace
}  // namespace elastrun::process
