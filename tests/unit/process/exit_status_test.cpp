// SPDX-License-Identifier: Apache-2.0
#include "process/exit_status.hpp"

#include <doctest/doctest.h>
#include <signal.h>

using namespace elastrun::process;

TEST_CASE("exit status: exit 9 and death by signal 9 stay two facts") {
  const ExitStatus exited = ExitStatus::from_wait(9 << 8);
  const ExitStatus killed = ExitStatus::from_wait(9);
  CHECK(exited == ExitStatus::exited(9));
  CHECK(killed == ExitStatus::signaled(9));
  CHECK_FALSE(exited == killed);
  CHECK(exited.as_python() == 9);
  CHECK(killed.as_python() == -9);
  CHECK(killed.as_shell() == 137);
  CHECK(killed.by_signal(SIGKILL));
  CHECK_FALSE(exited.by_signal(9));
}

TEST_CASE("exit status: the bit of the core dump is not part of the signal") {
  const ExitStatus dumped = ExitStatus::from_wait(SIGSEGV | 0x80);
  CHECK(dumped.number == SIGSEGV);
  CHECK(dumped.core_dumped);
  CHECK(dumped.text() == "SIGSEGV (core dumped)");
  CHECK(ExitStatus::from_wait(SIGSEGV).text() == "SIGSEGV");
  CHECK(ExitStatus::from_wait(255 << 8).text() == "exit code 255");
}

TEST_CASE("exit status: only exit code 0 is a success") {
  CHECK(ExitStatus::from_wait(0).success());
  CHECK_FALSE(ExitStatus::exited(1).success());
  CHECK_FALSE(ExitStatus::signaled(SIGTERM).success());
}

TEST_CASE("signal names: torchrun has no names inside the real-time range") {
  CHECK(torchrun_signal_name(SIGTERM) == "SIGTERM");
  CHECK(torchrun_signal_name(SIGRTMIN) == "SIGRTMIN");
  CHECK(torchrun_signal_name(SIGRTMAX) == "SIGRTMAX");
  CHECK(torchrun_signal_name(SIGRTMIN + 3) == "<N/A>");
  CHECK(torchrun_signal_name(32) == "<N/A>");
}
