// SPDX-License-Identifier: Apache-2.0
// Stats, collectors and sampling of the headers for C++ workers: elastrun.monitor's twin.
#include "worker/agent_socket.hpp"
#include "worker/elastrun.hpp"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace elastrun;
using test::in_worker, test::Listener, test::packets_of;
using A = worker::Aggregation;

namespace {
constexpr auto kHour = std::chrono::hours(1);
const worker::Stat::Clock::time_point kStart(std::chrono::hours(10));

std::string attributes(const std::string& members) {
  return R"({"kind":"event","name":"torch.monitor.Stat","attributes":{)" + members + "}}";
}
}  // namespace

TEST_CASE("worker header: a window of a Stat is one event, as torch.monitor's vectors say") {
  const Listener listener;
  in_worker(listener.path, [] {
    const worker::Stat::Clock::time_point start(std::chrono::hours(10));
    worker::Stat d1("d1", {A::Sum, A::Count}, std::chrono::seconds(1), 3);
    for (const int value : {1, 2, 3, 4}) d1.add(value, start);
    d1.add(5, start + std::chrono::seconds(1));
    const bool counted = d1.count() == 1;
    worker::Stat d8("d8", {A::Min, A::Max, A::Mean, A::Value}, std::chrono::seconds(1));
    d8.add(7, start);
    d8.add(-7, start + std::chrono::seconds(5));
    d8.add(std::nan(""), start + std::chrono::seconds(5));
    worker::Stat("d7", {A::Sum}, std::chrono::seconds(1));
    return counted ? 0 : 1;
  });
  const std::string begin = R"({"kind":"event","name":"torch.monitor.Stat","attributes":)";
  CHECK(listener.packets() ==
        std::vector<std::string>{begin + R"({"d1.sum":6,"d1.count":3}})",
                                 begin + R"({"d8.min":7,"d8.max":7,"d8.mean":7,"d8.value":7}})",
                                 begin + R"({"d8.min":-7,"d8.max":-7,"d8.mean":-7,"d8.value":-7}})",
                                 begin + R"({"d1.sum":5,"d1.count":1}})"});
}

TEST_CASE("worker header: a Stat has count windows, quantiles, a histogram, unit and help") {
  const Listener listener;
  in_worker(listener.path, [] {
    ::setenv("ELASTRUN_AGGREGATIONS", "x=mean,over*=p99+max", 1);
    worker::Stat stat("s", {A::Stddev, A::P50, A::Count, A::Histogram}, {{}, 4, "s", "A help."});
    for (int i = 1; i <= 9; ++i) stat.add(i);  // two windows, and one that is left
    stat.add(std::numeric_limits<double>::infinity());
    worker::Stat over("over.it", {A::Sum}, {{}, 2, {}, {}});
    over.add(1);
    over.add(2);
    worker::Stat timed("timed", {A::Count}, {{}, 1, {}, {}});
    { const auto timing = timed.add_time(); }
    worker::Stat asked("asked", {A::Value}, std::chrono::seconds(1));
    const worker::Stat::Clock::time_point start(std::chrono::hours(10));
    asked.observe([] { return 42.0; });
    asked.close_due(start);
    asked.close_due(start + std::chrono::seconds(1));
    return static_cast<int>(stat.dropped());
  });
  const auto told = listener.packets();
  const std::string about = R"(,"unit":"s","help":"A help."})";
  REQUIRE(told.size() == 9);
  CHECK(told[0].find(R"({"s.stddev":1.118033988749895,"s.p50":1.978)") != std::string::npos);
  CHECK(told[0].find(R"("s.count":4,"stat.unit":"s","stat.help":"A help."}})") !=
        std::string::npos);
  CHECK(told[1] ==
        R"({"kind":"metric","type":"histogram","group":"torch.monitor","name":"s","value":4,)"
        R"("count":4,"sum":10,"min":1,"max":4,"scale":5,"zeros":0,)"
        R"("buckets":[[-1,1],[31,1],[50,1],[63,1]],"negative":[])" +
            about);
  CHECK(told[3].find(R"("count":4,"sum":26)") != std::string::npos);
  // Within 1.09 %, as quantiles are.
  CHECK(told[4].find(R"({"over.it.max":2,"over.it.p99":1.978)") != std::string::npos);
  CHECK(told[5] == attributes(R"("timed.count":1)"));
  CHECK(told[6] == attributes(R"("asked.value":42)"));
  CHECK(told[8].find(R"("count":1,"sum":9)") != std::string::npos);  // at its end
}

TEST_CASE("worker stat: a window without values may be zero or no data, but not a full one") {
  const auto told = packets_of([] {
    std::vector<worker::Stat> made;
    for (const auto& [name, kind] : {std::pair{"a", worker::OnEmpty::Skip},
                                     {"b", worker::OnEmpty::Zero},
                                     {"c", worker::OnEmpty::NoData}}) {
      made.emplace_back(name, std::initializer_list<A>{A::Sum, A::Min},
                        worker::Stat::Options{std::chrono::seconds(1), 0, {}, {}, kind});
    }
    made.emplace_back(
        "full", std::initializer_list<A>{A::Sum},
        worker::Stat::Options{std::chrono::seconds(1), 1, {}, {}, worker::OnEmpty::Zero});
    const bool none_before =
        !worker::close_due(kStart).has_value() || worker::close_due(kStart)->count() == 1;
    for (auto& stat : made) stat.add(3, kStart);
    worker::close_due(kStart + std::chrono::seconds(1));
    const auto next = worker::close_due(kStart + std::chrono::milliseconds(1400));
    const bool on_time = next && std::abs(next->count() - 0.6) < 1e-9;
    worker::close_due(kStart + std::chrono::seconds(2));
    const bool kept = made[1].get()[A::Sum] == 3;
    return none_before && on_time && kept ? 0 : 1;
  });
  CHECK(told == std::vector<std::string>{
                    attributes(R"("full.sum":3)"), attributes(R"("a.sum":3,"a.min":3)"),
                    attributes(R"("b.sum":3,"b.min":3)"), attributes(R"("c.sum":3,"c.min":3)"),
                    attributes(R"("b.sum":0,"b.min":0)"), attributes(R"("c.count":0)"),
                    attributes(R"("full.sum":0)")});
}

TEST_CASE("worker stat: a child forked while a thread adds tells none of its parent's values") {
  const Listener listener;
  const int status = in_worker(listener.path, [] {
    worker::Stat stat("f", {A::Sum, A::Count}, kHour);
    worker::Collector collector("f");
    std::atomic<bool> ends{false};
    std::thread thread([&] {
      while (!ends) stat.add(1000);
    });
    int wrong = 0;
    for (int i = 0; i < 50; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        stat.add(1);
        const auto told = collector.report();
        ::_exit(told.at("f.sum") == 1 && stat.count() == 1 && worker::stats().size() == 1 ? 0 : 1);
      }
      int ended = -1;
      ::waitpid(child, &ended, 0);
      wrong += ended != 0;
    }
    ends = true;
    thread.join();
    return wrong;
  });
  CHECK(status == 0);
}

TEST_CASE("worker stat: events and spans can be sampled and asked for, windows always pass") {
  const Listener listener;
  const int status = in_worker(listener.path, [] {
    bool well = worker::is_enabled("data.read");
    worker::sample("data.*", 0.25);
    for (int i = 0; i < 8; ++i) {
      worker::event("data.read", {{"n", i}});
      worker::event("other");
    }
    worker::sample("data.read", 0);
    well = well && !worker::is_enabled("data.read") && worker::is_enabled("data.write");
    worker::event("data.read");
    worker::sample("span", 0.5);
    for (int i = 0; i < 3; ++i) const worker::Span span("span");
    worker::sample("*", 0);
    worker::Stat stat("w", {A::Sum}, kHour);
    stat.add(1);
    try {
      worker::sample("a", 2);
      well = false;
    } catch (const std::invalid_argument& wrong) {
      well = well && std::string(wrong.what()).find("between 0 and 1") != std::string::npos;
    }
    return well ? 0 : 1;
  });
  CHECK(status == 0);
  std::string told;
  int others = 0, starts = 0, stops = 0;
  for (const auto& packet : listener.packets()) {
    if (packet.find("data.read") != packet.npos) told += packet[packet.find(R"("n":)") + 4];
    others += packet.find("other") != packet.npos;
    starts += packet.find(R"("span.phase":"start")") != packet.npos;
    stops += packet.find(R"("span.phase":"stop")") != packet.npos;
  }
  CHECK(told == "04");
  CHECK(others == 8);
  CHECK(starts == 2);  // the first and the third
  CHECK(stops == 2);
}

// From here on this process itself looks for an agent, which it does once: workers are above.

TEST_CASE(
    "worker stat: Stats of one name are one, which can be listed by name with unit and help") {
  worker::Stat first("t.a", {A::Sum, A::P50}, {kHour, 0, "s", "of a step"});
  worker::Stat same("t.a", {A::P50, A::Sum}, {kHour, 0, {}, {}});
  const worker::Stat others[] = {{"t.b", {A::Max}, kHour}, {"u", {A::Sum}, kHour}};
  first.add(2);
  same.add(3);
  CHECK(first.count() == 2);
  CHECK(same.unit() == "s");
  CHECK_THROWS_AS(worker::Stat("t.a", {A::Sum}, kHour), std::invalid_argument);

  auto found = worker::stats("t.?");
  REQUIRE(found.size() == 2);
  CHECK(found.begin()->second.help() == "of a step");
  CHECK(found.begin()->second.aggregations() == std::vector{A::Sum, A::P50});
  found.at("t.b").add(1);
  CHECK(others[0].count() == 1);
  CHECK(worker::stats().size() == 3);
  CHECK(worker::stats("*.b*").size() == 1);
  CHECK(worker::stats("t").empty());
  found.clear();
  { const worker::Stat ended("t.c", {A::Sum}, kHour); }
  CHECK(worker::stats("t.*").size() == 2);
}

TEST_CASE("worker stat: get() keeps the last window that had values") {
  worker::Stat stat("g", {A::Mean, A::P99, A::Histogram}, std::chrono::seconds(1));
  CHECK(stat.get() == std::map<A, double>{{A::Mean, 0}, {A::P99, 0}, {A::Histogram, 0}});
  for (const double value : {-1.0, 0.0, 4.0}) stat.add(value, kStart);
  for (const int second : {1, 2}) stat.close_due(kStart + std::chrono::seconds(second));
  const auto last = stat.get();
  CHECK(last.at(A::Mean) == 1);
  CHECK(last.at(A::P99) == doctest::Approx(4).epsilon(0.0109));
  CHECK(last.at(A::Histogram) == 3);
  const auto buckets = stat.histogram();
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].first == doctest::Approx(-1));
  CHECK(buckets[1] == std::pair<double, std::uint64_t>(0, 1));
  CHECK(buckets[2].first == doctest::Approx(4));
}

TEST_CASE("worker stat: torch.monitor's vectors M1 to M8 and D5: what a full window has") {
  struct Vector {
    std::vector<double> values;
    std::uint64_t most, left;  // values in the open window afterwards
    std::map<A, double> expected;
  };
  const Vector vectors[] = {
      {{5, 6}, 2, 0, {{A::Mean, 5.5}, {A::Count, 2}}},
      {{5, 6}, 2, 0, {{A::Sum, 11}, {A::Value, 6}}},
      {{0, 5, -5, -6, 9, 2}, 6, 0, {{A::Max, 9}, {A::Min, -6}}},
      {{1, 2}, 3, 2, {{A::Count, 0}, {A::Sum, 0}}},
      {{1, 2, 3, 4}, 3, 0, {{A::Count, 3}, {A::Sum, 6}}},
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5, 0, {{A::Count, 5}, {A::Sum, 10}}},
  };
  for (const auto& [values, most, left, expected] : vectors) {
    const auto first = expected.begin()->first, second = expected.rbegin()->first;
    worker::Stat stat("m", {first, second}, std::chrono::seconds(100), most);
    CHECK(stat.get() == std::map<A, double>{{first, 0}, {second, 0}});
    for (const double value : values) stat.add(value, kStart);
    CHECK(stat.count() == left);
    CHECK(stat.get() == expected);
    CHECK(stat.dropped() == values.size() - std::min<std::size_t>(most, values.size()));
  }
}

TEST_CASE(
    "worker stat: R20: windows by number weigh all values alike, those by time the slow ones") {
  // 100 batches take 1 s, 100 take 3 s; by time, a window of slow ones has fewer values.
  worker::Stat timed("r.timed", {A::Mean, A::Count}, std::chrono::seconds(30));
  worker::Stat counted("r.counted", {A::Mean, A::Count}, {{}, 10, {}, {}});
  const auto mean_of_windows = [](worker::Stat& stat) {
    double sum = 0;
    int windows = 0;
    auto now = kStart;
    for (int i = 0; i < 200; ++i) {
      const int took = i < 100 ? 1 : 3;
      now += std::chrono::seconds(took);
      const auto open = stat.count();
      stat.add(took, now);
      if (stat.count() > open) continue;  // no window has ended
      sum += stat.get().at(A::Mean);
      ++windows;
    }
    return sum / windows;
  };
  CHECK(mean_of_windows(counted) == doctest::Approx(2));
  CHECK(mean_of_windows(timed) > 2.3);
}

TEST_CASE("worker stat: the largest doubles have buckets, too") {
  worker::Stat stat("h", {A::Histogram}, {{}, 2, {}, {}});
  stat.add(std::numeric_limits<double>::max());
  stat.add(std::numeric_limits<double>::denorm_min());
  for (const auto& [end, count] : stat.histogram()) CHECK(std::isfinite(end));
}

TEST_CASE("worker stat: a collector has an explicit zero, and aggregations of its choice") {
  worker::Stat before("c.a", {A::Mean, A::Sum}, kHour);
  auto collector = std::make_unique<worker::Collector>(
      "c.*", worker::Collector::Aggregations{{"c.b*", {A::P99, A::Histogram}}});
  worker::Stat after("c.b", {A::Mean}, {{}, 2, {}, {}}), other("d", {A::Mean}, kHour);
  using Told = std::map<std::string, double>;
  CHECK(collector->report() == Told{{"c.a.count", 0}, {"c.a.sum", 0}, {"c.b.count", 0}});
  for (const int value : {1, 2, 3}) {
    before.add(value);
    after.add(5);
    other.add(1);
  }
  before.add(std::nan(""));
  CHECK(collector->report() == Told{{"c.a.count", 3},
                                    {"c.a.mean", 2},
                                    {"c.a.sum", 6},
                                    {"c.b.count", 3},
                                    {"c.b.p99", 5},
                                    {"c.b.histogram", 3}});
  REQUIRE(collector->histogram("c.b").size() == 1);
  CHECK(collector->histogram("c.b")[0].second == 3);
  CHECK(collector->histogram("d").empty());
  {
    worker::Stat ended("c.ended", {A::Sum}, kHour);
    ended.add(4);
  }
  CHECK(collector->report().at("c.ended.sum") == 4);  // until it is forgotten
  collector->reset();
  int asked = 0;
  before.observe([&] { return ++asked == 2 ? throw std::runtime_error("no") : 7.0; });
  CHECK(collector->report() ==
        Told{{"c.a.count", 1}, {"c.a.mean", 7}, {"c.a.sum", 7}, {"c.b.count", 0}});
  const auto dropped = before.dropped();
  collector->report();
  CHECK(before.dropped() == dropped + 1);
  collector.reset();
  before.add(1);  // into no collector that has ended
  CHECK(before.count() == 5);
}

TEST_CASE("worker stat: threads add, list and collect at once, and nothing is lost") {
  worker::Stat stat("threads", {A::Count}, kHour);
  worker::Collector collector("threads");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      worker::Stat mine("threads", {A::Count}, kHour);
      for (int k = 0; k < 5000; ++k) mine.add(1);
    });
  }
  for (int k = 0; k < 200; ++k) {
    const worker::Stat passing("threads." + std::to_string(k), {A::Sum}, kHour);
    const worker::Collector other("threads*");
    CHECK(worker::stats("threads*").size() == 2);
  }
  for (auto& thread : threads) thread.join();
  CHECK(collector.report().at("threads.count") == 20'000);
}
