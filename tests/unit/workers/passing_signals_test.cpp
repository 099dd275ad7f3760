// SPDX-License-Identifier: Apache-2.0
#include "workers/summons.hpp"

#include <csignal>
#include <doctest/doctest.h>

namespace elastrun::workers {
namespace {

using namespace std::chrono_literals;
using process::Route;

struct Orders {
  /// Whether it is the first of an order.
  bool heard(Route route, Duration later = {}, pid_t sender = 42) {
    now += later;
    const auto before = signals.due(SIGUSR1);
    signals.heard({SIGUSR1, sender, 0, route}, now);
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
