// SPDX-License-Identifier: Apache-2.0
#include "workers/passing_signals.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <unistd.h>

namespace elastrun::workers {
namespace {

using namespace std::chrono_literals;
using process::Route;

struct Orders {
  bool heard(Route route, Duration later = {}) {
    now += later;
    return signals.heard({SIGUSR1, 42, 0, route}, now);
  }
  bool passed() {
    now += PassingSignals::kWait;
    return signals.is_for_workers(SIGUSR1);
  }
  PassingSignals signals;
  TimePoint now{};
};

TEST_CASE("passing signals: what only guardian or agent has heard is for the workers") {
  for (const Route route : {Route::Process, Route::ThroughGuardian, Route::Kernel}) {
    Orders orders;
    CHECK(orders.heard(route));
    CHECK_FALSE_MESSAGE(orders.heard(route), "the same order");
    CHECK(orders.passed());
    CHECK_MESSAGE(orders.heard(route, 1s), "another one");
    CHECK(orders.passed());
  }
}

TEST_CASE("passing signals: what both have heard was sent to every process") {
  Orders orders;
  CHECK(orders.heard(Route::ThroughGuardian));
  CHECK_FALSE(orders.heard(Route::Process, 900ms));
  CHECK_FALSE(orders.passed());
  CHECK(orders.heard(Route::Process, 1s));
  CHECK_FALSE(orders.heard(Route::ThroughGuardian));
  CHECK_FALSE(orders.passed());
}

TEST_CASE("passing signals: a guardian that is slow passes nothing on twice") {
  Orders orders;
  CHECK(orders.heard(Route::Process));
  CHECK(orders.passed());
  CHECK_FALSE(orders.heard(Route::ThroughGuardian, 5s));
  CHECK(orders.heard(Route::ThroughGuardian, 20s));
}

TEST_CASE("passing signals: who catches, blocks or ignores a signal survives it") {
  CHECK_FALSE(survives(::getpid(), SIGUSR2));
  const auto before = std::signal(SIGUSR2, [](int) {});
  CHECK(survives(::getpid(), SIGUSR2));
  std::signal(SIGUSR2, before);
  CHECK_FALSE(survives(0, SIGUSR2));
}

}  // namespace
}  // namespace elastrun::workers
