// SPDX-License-Identifier: Apache-2.0
#include "agent/files/run_files.hpp"
#include "core/system_clock.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <functional>
#include <utility>

using namespace elastrun;
using namespace elastrun::agent;
using namespace std::chrono_literals;

namespace {

/// Its visitors go when they have been looked at so often.
struct VisitedStore final : RoundStore {
  Result<std::uint16_t> prepare() override { return 1; }
  void begin(const rendezvous::Round&) override {}
  bool serves_workers() const override { return true; }
  bool serves_others() const override { return shared; }
  void rounds_are_over() override { over = true; }
  std::size_t visitors() const override {
    if (on_look) on_look();
    return looks-- > 0 ? 2 : 0;
  }
  bool shared = true, over = false;
  mutable int looks = 3;
  std::function<void()> on_look;
};

struct Stay {
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  VisitedStore store;
  StoreDrain visitors{loop, *clock};
};

}  // namespace

TEST_CASE("store drain: it stays until they have hung up, and lets the loop serve them") {
  Stay end;
  bool served = false;
  boost::asio::post(end.loop, [&served] { served = true; });
  end.visitors.wait(end.store, 10min);
  CHECK(end.store.looks < 0);
  CHECK(end.store.over);
  CHECK(served);
  CHECK(!end.visitors.waiting());
}

TEST_CASE("store drain: it does not stay after their time, or if all work was its own") {
  Stay end;
  end.store.looks = 1'000'000;
  SUBCASE("no time") {
    end.visitors.wait(end.store, 0s);
    CHECK(end.store.looks == 1'000'000);
  }
  SUBCASE("their time is over") {
    end.visitors.wait(end.store, 50ms);
    CHECK(end.store.over);
  }
  SUBCASE("nobody else's") {
    end.store.shared = false;
    end.visitors.wait(end.store, 10min);
  }
  CHECK(!end.visitors.waiting());
}

TEST_CASE("store drain: a second signal ends that at once, the first does not") {
  Stay end;
  end.store.looks = 1'000'000;
  int looks = 0;
  end.store.on_look = [&] {
    if (++looks == 3) end.visitors.hear_signal(false);
    if (looks == 8) end.visitors.hear_signal(true);
  };
  end.visitors.wait(end.store, 10min);
  CHECK(looks == 8);
}
