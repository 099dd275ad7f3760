// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web_services.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using agent::RenderedPage;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kNow{1h};

/// How much of a second goes into rendering, where one asks each millisecond.
Duration spent(Duration cost) {
  RenderedPage page;
  Duration spent{};
  for (TimePoint now = kNow; now < kNow + 1s; now += 1ms) {
    if (page.is_fresh(now)) continue;
    page.put("page", now, now + cost);
    spent += cost;
    now += cost;
  }
  return spent;
}

}  // namespace

TEST_CASE("rendered page: however many ask, rendering takes a tenth of the time at most") {
  for (const Duration cost : {1ms, 5ms, 20ms}) CHECK(spent(cost) <= 100ms + cost);
  CHECK_FALSE(RenderedPage().is_fresh(kNow));
}

TEST_CASE("rendered page: one that costs nothing is made for each, and none is old") {
  RenderedPage page;
  page.put("a", kNow, kNow);
  CHECK_FALSE(page.is_fresh(kNow));
  page.put("b", kNow, kNow + 60s);
  CHECK(page.text() == "b");
  CHECK(page.is_fresh(kNow + 64s));
  CHECK_FALSE(page.is_fresh(kNow + 66s));
}
