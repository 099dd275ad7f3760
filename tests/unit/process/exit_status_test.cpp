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

TEST_CASE("signal names: each signal's name leads back to its number") {
  int named = 0;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const std::string name = signal_name(signal);
    if (name.empty()) continue;
    CAPTURE(name);
    CHECK(signal_number(name) == signal);
    ++named;
  }
  CHECK(named == 31 + SIGRTMAX - SIGRTMIN + 1);  // all but the two that the C library keeps
}

TEST_CASE("signal names: second names and the bounds of the real-time range are known") {
  CHECK(signal_number("SIGIOT") == SIGABRT);
  CHECK(signal_name(SIGABRT) == "SIGABRT");
  CHECK(signal_number("SIGRTMAX-1") == SIGRTMAX - 1);
  CHECK(signal_name(SIGRTMIN + 1) == "SIGRTMIN+1");
  for (const char* bad : {"", "TERM", "sigterm", "SIGTERM ", "15", "SIGRTMIN-1", "SIGRTMIN+",
                          "SIGRTMIN+99", "SIGRTMIN+1x", "SIGRTMAX+1", "SIGRTMAX-99"}) {
    CAPTURE(bad);
    CHECK(signal_number(bad) == 0);
  }
  CHECK(signal_name(0).empty());
  CHECK(signal_name(65).empty());
}

TEST_CASE("signal names: torchrun has no names inside the real-time range") {
  CHECK(torchrun_signal_name(SIGTERM) == "SIGTERM");
  CHECK(torchrun_signal_name(SIGRTMIN) == "SIGRTMIN");
  CHECK(torchrun_signal_name(SIGRTMAX) == "SIGRTMAX");
  CHECK(torchrun_signal_name(SIGRTMIN + 3) == "<N/A>");
  CHECK(torchrun_signal_name(32) == "<N/A>");
}
