// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web_services.hpp"

#include "core/text.hpp"
#include "support/fake_clock.hpp"
#include "support/fake_run.hpp"
#include "unit/agent/records.hpp"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

struct ServingStore final : RoundStore {
  Result<std::uint16_t> prepare() override { return 1; }
  void begin(const rendezvous::Round&) override {}
  bool serves_workers() const override { return true; }
};

struct Watched : test::FakeRun {
  Watched() : FakeRun(trained()) {}
  static spec::JobSpec trained() {
    spec::JobSpec spec;
    spec.script = "train.py";
    spec.max_restarts = 3;
    return spec;
  }
  const std::vector<workers::Worker>* workers() const override {
    return group.empty() ? nullptr : &group;
  }
  json::object status() const { return view.status(nullptr); }
  json::object nth_worker(std::size_t index = 0) const {
    return status().at("workers").at(index).as_object();
  }

  test::FakeClock& clock = time;
  std::vector<workers::Worker> group;
  ServingStore store;
  JobView view{*this, store};
};

rendezvous::Round round_of(int nodes, std::int64_t number) {
  rendezvous::Round round;
  round.members.resize(static_cast<std::size_t>(nodes));
  round.number = number;
  round.world_size = 2 * nodes;
  round.master_addr = "10.0.0.1";
  round.master_port = 29500;
  return round;
}

TEST_CASE("job view: before there is a round, it says what is waited for") {
  Watched watched;
  watched.view.on(moment::Progress{"1 of 2 nodes"});
  watched.clock.advance(std::chrono::seconds(4));
  const auto status = watched.status();
  CHECK(status.at("phase") == "joining");
  CHECK(status.at("phase_s") == 4.0);
  CHECK(status.at("progress") == "1 of 2 nodes");
  CHECK(status.at("round").is_null());
  CHECK(status.at("store").at("workers").is_null());
  CHECK(status.at("workers").as_array().empty());
}

TEST_CASE("job view: steps have a rate, which begins anew with a round or a smaller step") {
  Watched watched;
  watched.group.emplace_back();
  for (int step = 1; step <= 41; ++step) {
    watched.view.on(moment::WorkerSaid{{}, workers::StepDone{step}});
    watched.clock.advance(std::chrono::milliseconds(500));
  }
  CHECK(watched.nth_worker().at("steps_per_s").as_double() == doctest::Approx(2));
  watched.clock.advance(std::chrono::seconds(3));
  CHECK(watched.nth_worker().at("step") == 41);
  CHECK_MESSAGE(watched.nth_worker().at("steps_per_s").as_double() == doctest::Approx(1 / 3.5),
                "it stands still");
  CHECK(watched.nth_worker().at("step_age_s") == 3.5);
  watched.view.on(moment::WorkerSaid{{}, workers::StepDone{7}});  // from a checkpoint
  CHECK(watched.nth_worker().at("steps_per_s") == 0.0);
  watched.view.on(moment::RoundReady{round_of(1, 2), {}});
  CHECK(watched.nth_worker().at("step").is_null());
}

TEST_CASE("job view: workers that are stopped or traced are told as long as they are") {
  Watched watched;
  watched.group.resize(2);
  watched.group[1].rank = 1;
  watched.view.on(HeldSeen{{{1, "stopped by a signal"}}});
  CHECK(watched.nth_worker(0).at("held").is_null());
  CHECK(watched.nth_worker(1).at("held") == "stopped by a signal");
  watched.view.on(HeldSeen{{}});
  CHECK(watched.nth_worker(1).at("held").is_null());
}

TEST_CASE("job view: once the job has ended, its workers stay although their group has gone") {
  Watched watched;
  watched.group = workers_of({process::ExitStatus::exited(0)});
  watched.view.on(moment::Ended{{}, &watched.group});
  const auto last = watched.nth_worker();
  watched.group.clear();
  CHECK(watched.nth_worker() == last);
}

TEST_CASE("job view: restarts are told with their causes, as many as fit") {
  Watched watched;
  rendezvous::Restart order;
  order.attempt_spent = true;
  order.restarts_left = 2;
  order.cause.text = "rank 3 \x1b[31mended\x1b[0m with exit code 3";
  order.cause.rank = 3;
  watched.view.on(moment::Restarting{order});
  order.attempt_spent = false;
  for (int i = 0; i < 200; ++i) watched.view.on(moment::Restarting{order});
  const auto restarts = watched.status().at("restarts");
  CHECK(restarts.at("count") == 201);
  CHECK(restarts.at("spent") == 1);
  CHECK(restarts.at("left") == 2);
  CHECK(restarts.at("limit") == 3);
  const auto& latest = restarts.at("latest").as_array();
  CHECK(latest.size() == 100);
  CHECK(latest[0].at("rank") == 3);
  CHECK(latest[0].at("text").as_string().find('\x1b') == json::string::npos);
}

TEST_CASE("health: an agent whose loop turns is well, whatever its job does") {
  CHECK(ailments({std::chrono::seconds(6), {}, "stopping"}).empty());
  CHECK(ailments({std::chrono::seconds(60), std::chrono::seconds(60), "running"}).empty());
  const auto text = health_json({std::chrono::seconds(1), std::chrono::seconds(2), "waiting"});
  CHECK(text.at("status") == "ok");
  CHECK(text.at("phase") == "waiting");
  CHECK(text.at("timer_overdue_s") == 2.0);
}

TEST_CASE("health: what ails it is said") {
  const auto text = health_json({std::chrono::seconds(61), std::chrono::seconds(75), "running"});
  CHECK(text.at("status") == "failing");
  CHECK(json::serialize(text.at("why")) ==
        R"(["the agent's loop stood still for 1 min 01 s",)"
        R"("a worker lives on 1 min 15 s after one of its timers expired"])");
}

TEST_CASE("health: the heartbeat is as old as the last turn of the loop") {
  test::FakeClock clock;
  const LoopBeat beat(clock);
  CHECK(beat.since() == std::chrono::seconds(0));
  clock.advance(std::chrono::seconds(12));
  CHECK(beat.since() == std::chrono::seconds(2));
}

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

void add(JobHistory& history, int second, const JobHistory::Values& values) {
  history.add(TimePoint(std::chrono::seconds(second)),
              WallTime(std::chrono::seconds(1000 + second)), values);
}

TEST_CASE("job history: a value that began later, ended or is no number is null at other points") {
  JobHistory history;
  add(history, 0, {{"cpu", 0.5}});
  add(history, 2, {{"cpu", std::numeric_limits<double>::infinity()}, {"loss", 0.123456789}});
  add(history, 4, {{"cpu", 0}});
  CHECK(
      json::serialize(history.text()) ==
      R"({"at":[1E3,1.002E3,1.004E3],"series":{"cpu":[5E-1,null,0],"loss":[null,1.2346E-1,null]}})");
}

TEST_CASE("job history: what comes within the stretch of the last point is left out") {
  JobHistory history;
  for (int i = 0; i < 5; ++i) add(history, i, {{"cpu", i}});
  CHECK(history.text().at("at").as_array().size() == 3);
}

TEST_CASE(
    "job history: weeks take no more points than minutes, the first and the last among them") {
  JobHistory history;
  const int month = 30 * 24 * 3600;
  for (int i = 0; i <= month; i += 60) add(history, i, {{"cpu", 1.0}});
  const auto text = history.text();
  const auto& at = text.at("at").as_array();
  CHECK(at.size() > JobHistory::kPoints / 2);
  CHECK(at.size() <= JobHistory::kPoints);
  CHECK(at.front().to_number<double>() == 1000);
  CHECK(at.back().to_number<double>() > 1000 + month - 4 * to_seconds(history.stretch()));
}

TEST_CASE("job history: names beyond the limit are left out") {
  JobHistory history;
  JobHistory::Values values;
  for (int i = 0; i < 100; ++i) values.emplace_back("metric" + std::to_string(i), i);
  add(history, 0, values);
  CHECK(history.text().at("series").as_object().size() == JobHistory::kSeries);
}

}  // namespace
}  // namespace elastrun::agent
