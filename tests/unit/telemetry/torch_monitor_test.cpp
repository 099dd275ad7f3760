// SPDX-License-Identifier: Apache-2.0
// The vectors M1 to M16 and D1, D2 are those of torch.monitor's own tests, and what follows from
// its rules; what we do otherwise is called a deviation.
#include "telemetry/torch_monitor.hpp"

#include "clock.hpp"

#include <doctest/doctest.h>
#include <thread>

using namespace elastrun;
using namespace elastrun::telemetry;
using monitor::Event;
using monitor::Monitor;
using A = Aggregation;

namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Int = std::int64_t;
using Got = std::map<A, Value>;
using Data = std::map<std::string, Value>;

struct MonitorPlace {
  MonitorPlace() {
    handle = monitor.register_event_handler([this](const Event& event) {
      events.push_back(event);
      if (then) then(event);
    });
  }
  /// In window `id`, as torch's tests pin it.
  void at(int id, Duration window) { clock.mono = TimePoint(window * (id - 1)); }
  monitor::Stat<Int> ints(Aggregations aggregations, milliseconds window,
                          Int most = monitor::kNoLimit, std::string name = "a") {
    return {std::move(name), aggregations, window, most, monitor};
  }
  SetClock clock;
  Pipeline pipeline{clock};
  Monitor monitor{pipeline};
  std::vector<Event> events;
  std::function<void(const Event&)> then;
  monitor::EventHandlerHandle handle;
};

}  // namespace

TEST_CASE("monitor: M1: mean and count of doubles") {
  MonitorPlace place;
  monitor::Stat<double> stat("a", {A::Mean, A::Count}, seconds(100), 2, place.monitor);
  stat.add(5.0);
  CHECK(stat.count() == 1);
  stat.add(6.0);
  CHECK(stat.count() == 0);
  CHECK(stat.get() == Got{{A::Mean, 5.5}, {A::Count, Int{2}}});
  CHECK(stat.name() == "a");
}

TEST_CASE("monitor: M2 to M5: each aggregation of whole numbers") {
  MonitorPlace place;
  const auto check = [&](A aggregation, std::vector<Int> values, Int expected) {
    auto stat = place.ints({aggregation}, seconds(100), 2);
    CHECK(stat.get() == Got{{aggregation, Int{0}}});
    for (const Int value : values) stat.add(value);
    CHECK(stat.get() == Got{{aggregation, expected}});
    CHECK(stat.count() == 0);
  };
  check(A::Sum, {5, 6}, 11);
  check(A::Last, {5, 6}, 6);  // deviation: torch's Python takes VALUE for NONE
  check(A::Mean, {0, 10}, 5);
  check(A::Count, {0, 10}, 2);
}

TEST_CASE("monitor: M6: smallest and largest") {
  MonitorPlace place;
  auto stat = place.ints({A::Min, A::Max}, seconds(100), 6);
  CHECK(stat.get() == Got{{A::Max, Int{0}}, {A::Min, Int{0}}});
  for (const Int value : {0, 5, -5, -6, 9, 2}) stat.add(value);
  CHECK(stat.get() == Got{{A::Max, Int{9}}, {A::Min, Int{-6}}});
}

TEST_CASE("monitor: M7, M8: after its number of values a window takes no more") {
  for (const milliseconds window : {milliseconds(seconds(100)), milliseconds(hours(87'600))}) {
    MonitorPlace place;
    auto stat = place.ints({A::Count, A::Sum}, window, 3);
    stat.add(1);
    stat.add(2);
    CHECK(stat.count() == 2);
    stat.add(3);
    CHECK(stat.count() == 0);
    stat.add(4);
    CHECK(stat.count() == 0);
    CHECK(stat.get() == Got{{A::Count, Int{3}}, {A::Sum, Int{6}}});
    CHECK(place.events.size() == 1);
  }
}

TEST_CASE("monitor: M9, M13: with the kernel's clock a window of 1 ms ends by itself") {
  Monitor& real = monitor::process_monitor();
  std::vector<Event> events;
  const auto handle =
      real.register_event_handler([&](const Event& event) { events.push_back(event); });
  {
    monitor::Stat<Int> stat("m9", {A::Count, A::Sum}, milliseconds(1));
    CHECK(events.empty());
    stat.add(1);
    // Until the clock has moved on, however long that takes.
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < milliseconds(2)) std::this_thread::yield();
    stat.add(2);
    CHECK(events.size() >= 1);
    CHECK(events.size() <= 2);
    CHECK(stat.count() <= 1);
  }
  CHECK(real.unregister_event_handler(handle));
}

TEST_CASE("monitor: M10: a window that is over is one event with exactly its aggregations") {
  MonitorPlace place;
  auto stat = place.ints({A::Count, A::Sum}, seconds(1));
  place.at(1, seconds(1));
  stat.add(1);
  stat.add(2);
  CHECK(place.events.empty());
  place.at(100, seconds(1));
  stat.add(3);
  REQUIRE(place.events.size() == 1);
  CHECK(place.events[0].name == "torch.monitor.Stat");
  CHECK(place.events[0].timestamp == place.clock.wall_time);
  CHECK(place.events[0].data == Data{{"a.sum", Int{3}}, {"a.count", Int{2}}});
}

TEST_CASE("monitor: M11, D7: the end of a Stat tells what is open, and nothing if nothing is") {
  MonitorPlace place;
  { place.ints({A::Count, A::Sum}, hours(10)).add(1); }
  REQUIRE(place.events.size() == 1);
  CHECK(place.events[0].data == Data{{"a.sum", Int{1}}, {"a.count", Int{1}}});
  { place.ints({A::Count}, hours(10)); }
  CHECK(place.events.size() == 1);
}

TEST_CASE("monitor: M12, M15: handlers get the event as it was logged, while they are registered") {
  const SetClock clock;
  Pipeline pipeline(clock);
  Monitor monitor(pipeline);
  const Event event{"torch.elastic.x",
                    clock.wall() + seconds(5),
                    {{"string", "asdf"}, {"double", 1234.5678}, {"int", Int{1234}}, {"b", true}}};
  monitor.log_event(event);
  struct Keeper final : monitor::EventHandler {
    void handle(const Event& one) override { seen.push_back(one); }
    std::vector<Event> seen;
  };
  const auto keeper = std::make_shared<Keeper>();
  const auto handle = monitor.register_event_handler(keeper);
  monitor.log_event(event);
  CHECK(keeper->seen == std::vector{event});
  monitor.log_event(event);
  CHECK(keeper->seen.size() == 2);
  CHECK(monitor.unregister_event_handler(handle));
  monitor.log_event(event);
  CHECK(keeper->seen.size() == 2);
  CHECK_FALSE(
      monitor.unregister_event_handler(handle));  // deviation: torch has undefined behaviour
}

TEST_CASE("monitor: M14: three values in a window of 100 hours") {
  MonitorPlace place;
  monitor::Stat<double> stat("a", {A::Sum, A::Count}, hours(100), 3, place.monitor);
  stat.add(1);
  stat.add(2);
  CHECK(stat.count() == 2);
  stat.add(3);
  CHECK(stat.count() == 0);
  CHECK(stat.get() == Got{{A::Sum, 6.0}, {A::Count, Int{3}}});
}

TEST_CASE("monitor: D2: the next window takes values; deviation: get() keeps the last with any") {
  MonitorPlace place;
  auto stat = place.ints({A::Sum}, seconds(1), 3);
  for (const Int value : {1, 2, 3, 4}) stat.add(value);
  place.at(2, seconds(1));
  stat.add(5);
  CHECK(place.events.size() == 1);
  CHECK(stat.count() == 1);
  CHECK(stat.get() == Got{{A::Sum, Int{6}}});  // torch: 0
}

TEST_CASE("monitor: deviation: handlers may log, register, unregister and use the Stat") {
  MonitorPlace place;
  auto stat = place.ints({A::Sum}, seconds(1), 1);
  int late = 0;
  place.then = [&](const Event& event) {
    if (event.name != "torch.monitor.Stat") return;
    CHECK(stat.get() == Got{{A::Sum, Int{7}}});
    place.monitor.log_event({"from a handler"});
    place.monitor.register_event_handler([&](const Event&) { late += 1; });
    CHECK(place.monitor.unregister_event_handler(place.handle));
  };
  stat.add(7);
  place.monitor.log_event({"after"});
  CHECK(place.events.size() == 1);
  CHECK(late == 2);
}

TEST_CASE("monitor: deviation: a handler that throws loses only its own event, counted") {
  MonitorPlace place;
  place.then = [](const Event&) { throw std::runtime_error("no"); };
  int others = 0;
  place.monitor.register_event_handler([&](const Event&) { others += 1; });
  place.monitor.log_event({"x"});
  { place.ints({A::Sum}, hours(1)).add(1); }  // from a destructor, too
  CHECK(others == 2);
  CHECK(place.pipeline.lost() == 2);
}

TEST_CASE("monitor: deviation: a window closes on time though nobody adds") {
  MonitorPlace place;
  auto stat = place.ints({A::Sum}, seconds(1));
  CHECK_FALSE(place.monitor.close_due());
  stat.add(4);
  CHECK(place.monitor.close_due() == TimePoint(seconds(1)));
  place.clock.mono += seconds(1);
  CHECK_FALSE(place.monitor.close_due());
  REQUIRE(place.events.size() == 1);
  CHECK(place.events[0].data == Data{{"a.sum", Int{4}}});
}

TEST_CASE("monitor: deviation: a window of no time is refused, and so is another Stat of a name") {
  MonitorPlace place;
  const auto stat = place.ints({A::Sum}, seconds(1));
  CHECK_THROWS_AS(place.ints({A::Sum}, milliseconds(0), 1, "b"), std::invalid_argument);
  CHECK_THROWS_AS(place.ints({A::Sum}, seconds(1), 0, "b"), std::invalid_argument);
  CHECK_THROWS_AS(place.ints({A::Mean}, seconds(1)), std::invalid_argument);
  CHECK_THROWS_AS(place.ints({A::Sum}, seconds(2)), std::invalid_argument);
  CHECK_THROWS_AS(
      monitor::Stat<double>("a", {A::Sum}, seconds(1), monitor::kNoLimit, place.monitor),
      std::invalid_argument);
  auto same = place.ints({A::Sum}, seconds(1));
  same.add(1);
  CHECK(stat.count() == 1);
}

TEST_CASE("monitor: what torch announced and never built: deviation and quantiles") {
  MonitorPlace place;
  auto stat = place.ints({A::Stddev, A::P99}, seconds(1), 100);
  for (Int i = 1; i <= 100; ++i) stat.add(i);
  const auto& data = place.events.at(0).data;
  CHECK(std::get<double>(data.at("a.stddev")) == doctest::Approx(28.866));
  CHECK(std::get<double>(data.at("a.p99")) == doctest::Approx(99).epsilon(0.011));
}

TEST_CASE("monitor: many threads add, nothing is lost") {
  MonitorPlace place;
  {
    auto stat = place.ints({A::Sum, A::Count}, seconds(1), 10);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          stat.add(1);
          place.monitor.close_due();
        }
      });
    }
  }
  CHECK(place.events.size() == 1);  // one window of ten, the rest of its time is dropped
  CHECK(place.events[0].data == Data{{"a.sum", Int{10}}, {"a.count", Int{10}}});
}
