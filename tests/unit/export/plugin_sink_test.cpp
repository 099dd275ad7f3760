// SPDX-License-Identifier: Apache-2.0
#include "export/plugin_sink.hpp"

#include "support/fake_clock.hpp"
#include "support/loop.hpp"

#include <condition_variable>
#include <doctest/doctest.h>
#include <memory>
#include <mutex>
#include <vector>

using namespace elastrun;
using namespace elastrun::exporter;
using std::chrono::seconds;
using telemetry::Record;

namespace {

/// A plug-in whose calls return when the test lets them.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool shut = false;
  int inside = 0, ill = 0;
  std::vector<std::string> calls;

  void pass(std::string call) {
    std::unique_lock lock(mutex);
    calls.push_back(std::move(call));
    inside += 1;
    changed.notify_all();
    changed.wait(lock, [this] { return !shut; });
    inside -= 1;
  }
  void close() {
    const std::lock_guard lock(mutex);
    shut = true;
  }
  void open() {
    const std::lock_guard lock(mutex);
    shut = false;
    changed.notify_all();
  }
  void wait_for_visitor() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return inside > 0; });
  }
  std::size_t count(const std::string& call) {
    const std::lock_guard lock(mutex);
    return static_cast<std::size_t>(std::count(calls.begin(), calls.end(), call));
  }
};

// A thread may be inside when its test ends: they stay, found by this and so no leak.
std::vector<std::unique_ptr<Gate>>& gates() {
  static auto& all = *new std::vector<std::unique_ptr<Gate>>;
  return all;
}

Gate* gate_of_the_next = nullptr;

Gate& gate(void* self) {
  return *static_cast<Gate*>(self);
}

const elastrun_plugin* table() {
  static const elastrun_plugin all = [] {
    elastrun_plugin one{};
    one.abi = ELASTRUN_PLUGIN_ABI;
    one.size = sizeof(one);
    one.name = "gate";
    one.open = [](const elastrun_host*, void** self) {
      *self = gate_of_the_next;
      gate_of_the_next->pass("open");
      return 0;
    };
    one.event = one.metric = one.series = [](void* self, const elastrun_record* record) {
      gate(self).pass(record->name);
      return std::string_view(record->name) == "bad" ? 1 : 0;
    };
    one.flush = [](void* self) { return gate(self).pass("flush"), 0; };
    one.health = [](void* self) { return gate(self).pass("health"), gate(self).ill; };
    one.error = [](void*) { return "it is bad"; };
    one.close = [](void* self) { gate(self).pass("close"); };
    return one;
  }();
  return &all;
}

struct PluginPlace {
  Gate& gate = *gates().emplace_back(std::make_unique<Gate>());
  boost::asio::io_context loop;
  test::FakeClock clock;
  std::shared_ptr<PluginSink> sink;

  PluginPlace() {
    gate_of_the_next = &gate;
    auto made = PluginSink::open(loop.get_executor(), clock, "plugin:gate",
                                 [] { return plugin::Library::open(table(), "gate", {}); });
    REQUIRE(made.has_value());
    sink = *made;
    test::run_ready(loop);
  }
  ~PluginPlace() { gate.open(); }

  void give(std::string name, Record::Kind kind = Record::Kind::Event) {
    Record record;
    record.kind = kind;
    record.name = std::move(name);
    sink->consume(record);
  }
  void finish() {
    bool done = false;
    sink->finish([&] { done = true; });
    test::run_until(loop, [&] { return done; });
  }
};

}  // namespace

TEST_CASE("plugin sink: events at once, samples a little later, series together, then the end") {
  PluginPlace place;
  place.give("sample", Record::Kind::Sample);
  place.give("unwanted", Record::Kind::Window);
  CHECK(place.gate.count("sample") == 0);
  place.clock.advance(PluginSink::kPause);
  test::run_until(place.loop, [&] { return place.gate.count("flush") == 1; });
  CHECK(place.gate.count("sample") == 1);
  place.give("event");
  test::run_until(place.loop, [&] { return place.gate.count("flush") == 2; });
  telemetry::Snapshot snapshot;
  telemetry::Point point;
  point.spec = std::make_shared<const telemetry::Spec>(telemetry::Spec{.name = "series"});
  snapshot.points = {point, point};
  CHECK(place.sink->pulls() == telemetry::Cursor::Temporality::Cumulative);
  place.sink->pull(snapshot);
  place.finish();
  CHECK(place.gate.calls == std::vector<std::string>{"open", "sample", "flush", "event", "flush",
                                                     "series", "series", "flush", "close"});
  CHECK(place.sink->account().delivered == 4);
  CHECK(place.sink->account().lost == 0);
}

TEST_CASE("plugin sink: what fails is counted, and the first reason kept") {
  PluginPlace place;
  place.give("good");
  place.give("bad");
  place.give("bad");
  place.finish();
  CHECK(place.sink->account().delivered == 1);
  CHECK(place.sink->account().lost == 2);
  CHECK(place.sink->account().trouble == "it is bad");
}

TEST_CASE("plugin sink: one that blocks holds up nobody, and costs what does not fit") {
  PluginPlace place;
  place.gate.close();
  place.give("first");
  place.gate.wait_for_visitor();
  for (int i = 0; i < 100; ++i) place.give(std::string(PluginSink::kMost / 50, 'x'));
  const auto before = place.sink->account();
  CHECK(before.delivered == 0);
  CHECK(before.lost == 101);
  place.gate.open();
  place.finish();
  CHECK(place.sink->account().delivered > 40);
  CHECK(place.sink->account().delivered < 60);
  CHECK(place.sink->account().delivered + place.sink->account().lost == 101);
}

TEST_CASE("plugin sink: one that never returns is left to itself") {
  PluginPlace place;
  place.gate.close();
  place.give("event");
  place.gate.wait_for_visitor();
  place.sink->finish([] { FAIL("it cannot have finished"); });
  test::run_ready(place.loop);
  place.sink.reset();
}

TEST_CASE("plugin sink: one that does not open in time is refused") {
  boost::asio::io_context loop;
  test::FakeClock clock;
  auto& gate = *gates().emplace_back(std::make_unique<Gate>());
  gate.close();
  gate_of_the_next = &gate;
  const auto made = PluginSink::open(
      loop.get_executor(), clock, "plugin:gate",
      [] { return plugin::Library::open(table(), "gate", {}); }, std::chrono::milliseconds(20));
  REQUIRE(!made);
  CHECK(made.error().text == "the plug-in was not open within 20.0 ms");
  gate.open();
}

TEST_CASE("plugin sink: health is asked for when somebody wants to know, and every 10 s then") {
  PluginPlace place;
  place.clock.advance(seconds(100));
  CHECK(place.gate.count("health") == 0);
  CHECK(place.clock.armed() == 0);
  place.sink->watch_health();
  test::run_until(place.loop, [&] { return place.gate.count("health") == 1; });
  CHECK(place.sink->ailment().empty());
  place.gate.ill = 1;
  test::run_ready(place.loop);
  place.clock.advance(PluginSink::kBetweenChecks);
  test::run_until(place.loop, [&] { return !place.sink->ailment().empty(); });
  CHECK(place.sink->ailment() == "plugin:gate: it is bad");
  place.gate.ill = 0;
  place.clock.advance(PluginSink::kBetweenChecks);
  test::run_until(place.loop, [&] { return place.sink->ailment().empty(); });
}

TEST_CASE("plugin sink: a check that does not return is a bad sign, one that has to wait is none") {
  PluginPlace place;
  place.gate.close();
  place.give("event");
  place.gate.wait_for_visitor();
  place.sink->watch_health();
  place.clock.advance(seconds(200));  // behind an event that takes long
  CHECK(place.sink->ailment().empty());
  place.gate.open();
  test::run_until(place.loop, [&] { return place.gate.count("health") == 1; });
  test::run_ready(place.loop);
  place.gate.close();
  place.clock.advance(PluginSink::kBetweenChecks);
  place.gate.wait_for_visitor();
  place.clock.advance(seconds(60));
  CHECK(place.sink->ailment().empty());
  place.clock.advance(seconds(20));
  CHECK(place.sink->ailment() == "the health check of plugin:gate has not returned for 1 min 10 s");
}
