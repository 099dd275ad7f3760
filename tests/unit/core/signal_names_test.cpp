// SPDX-License-Identifier: Apache-2.0
#include "core/signal_names.hpp"

#include <doctest/doctest.h>
#include <signal.h>

using namespace elastrun;

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
