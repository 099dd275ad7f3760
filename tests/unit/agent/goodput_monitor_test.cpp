// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/goodput_monitor.hpp"

#include "support/fake_clock.hpp"

#include <doctest/doctest.h>
#include <map>
#include <set>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using telemetry::Record;

struct HeardGoodput final : telemetry::Sink {
  void consume(const Record& record) override { records.push_back(record); }
  std::vector<Record> of(std::string_view name) const {
    std::vector<Record> found;
    std::ranges::copy_if(records, std::back_inserter(found),
                         [&](const Record& record) { return record.name == name; });
    return found;
  }
  std::vector<Record> records;
};

struct Told final : exporter::MetricsSink {
  Told() : MetricsSink("told") {}
  void finish(std::function<void()> done) override { done(); }
  exporter::SinkAccount account() const override { return {}; }
};

/// A job on the node of rank 0, or on another one.
struct MonitoredJob {
  test::FakeClock clock;
  telemetry::Pipeline pipeline{clock};
  telemetry::Registry registry{clock};
  TelemetryHost host{clock, pipeline, registry};
  GoodputAccount account{clock, clock.now(), false};
  std::optional<WallTime> scheduled;
  std::unique_ptr<GoodputMonitor> monitor;
  workers::Worker worker;

  void watch() {
    monitor = std::make_unique<GoodputMonitor>(
        GoodputMonitor::Parts{clock, account, host, nullptr, scheduled}, clock.now());
  }
  void phase(Phase phase) {
    account.on(moment::PhaseChanged{phase, clock.now()});
    monitor->on(moment::PhaseChanged{phase, clock.now()});
  }
  void run(int group_rank = 0) {
    rendezvous::Round round;
    round.group_rank = group_rank;
    phase(Phase::Joining);
    monitor->on(moment::RoundReady{round, 0s});
    phase(Phase::Starting);
    phase(Phase::Running);
  }
  void step(std::int64_t number) {
    const workers::Message message = workers::StepDone{number};
    account.on(moment::WorkerSaid{worker, message});
    monitor->on(moment::WorkerSaid{worker, message});
  }
  void steps(std::int64_t first, std::int64_t last, Duration each) {
    for (auto number = first; number <= last; ++number) {
      clock.advance(each);
      step(number);
    }
  }
  /// "name|label|label" -> value, as who pulls sees it now.
  std::map<std::string, double> pulled() {
    std::map<std::string, double> found;
    for (const auto& point : registry.collect("elastrun.**").points) {
      if (point.no_data) continue;
      auto name = point.spec->name.substr(std::string_view("elastrun.").size());
      for (const auto& [key, value] : point.labels) name += "|" + std::get<std::string>(value);
      found[name] = std::get<double>(point.value);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("goodput monitor: who pulls gets all series of the reference, and wakes nobody up") {
  MonitoredJob job;
  job.watch();
  job.clock.advance(600s);
  job.run();
  job.step(0);
  job.steps(1, 54, 100s);
  job.phase(Phase::Waiting);
  job.monitor->on(moment::Stopped{{}, 0s});
  job.clock.advance(1200s);
  CHECK(job.clock.armed() == 0);
  const auto seen = job.pulled();
  const std::map<std::string, double> expected{
      {"goodput_time|TOTAL", 5400},
      {"badput_time|OTHER|startup", 600},
      {"badput_time|OTHER|stopping", 1200},
      {"total_elapsed_time|cumulative", 7200},
      {"disruptions|cumulative", 0},
      {"max_productive_steps", 54},
      {"step_time_deviation", 0},
      {"performance", 100},
      {"interval_goodput|3600|TOTAL", 100 * 2.0 / 3},
      {"interval_goodput|86400|TOTAL", 75},
      {"interval_badput|3600|OTHER|startup", 0},
      {"interval_badput|3600|OTHER|stopping", 100 / 3.0},
      {"interval_badput|86400|OTHER|startup", 600 / 72.0},
      {"interval_badput|86400|OTHER|stopping", 1200 / 72.0}};
  CHECK(seen.size() == expected.size());
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(seen.at(name) == doctest::Approx(value));
  }
  job.account.checkpoint(-2);
  job.clock.advance(1s);
  CHECK(job.pulled().at("doubtful_time") == 0);
}

TEST_CASE("goodput monitor: steps that are lost and nodes that join count for nothing") {
  MonitoredJob job;
  job.watch();
  job.run();
  job.steps(0, 20, 1s);
  job.account.checkpoint(10);
  const auto restart = [&](rendezvous::Cause::Kind kind) {
    rendezvous::Restart order;
    order.cause.kind = kind;
    job.account.on(moment::Restarting{order});
    job.monitor->on(moment::Restarting{order});
    job.phase(Phase::Stopping);
    job.account.on(moment::Stopped{{}, 0s});
    job.clock.advance(1s);
    const auto seen = job.pulled();
    job.run();
    return seen;
  };
  CHECK(job.pulled().at("max_productive_steps") == 20);
  auto seen = restart(rendezvous::Cause::Kind::WorkerFailed);
  CHECK(seen.at("max_productive_steps") == 10);
  CHECK(seen.at("disruptions|cumulative") == 1);
  job.step(9);
  job.clock.advance(1s);
  CHECK(job.pulled().at("max_productive_steps") == 9);
  seen = restart(rendezvous::Cause::Kind::NodeJoined);
  CHECK(seen.at("disruptions|cumulative") == 1);
  CHECK(restart(rendezvous::Cause::Kind::NodeLeft).at("disruptions|cumulative") == 2);
}

TEST_CASE("goodput monitor: where the scheduler says since when, the share in which workers ran") {
  MonitoredJob job;
  job.scheduled = job.clock.wall() - 20s;
  job.watch();
  job.clock.advance(10s);
  job.run();
  job.clock.advance(50s);
  job.phase(Phase::Stopping);
  job.clock.advance(20s);
  CHECK(job.pulled().at("scheduling_goodput") == doctest::Approx(0.5));
  MonitoredJob wrong;
  wrong.scheduled = wrong.clock.wall() + 20s;
  wrong.watch();
  wrong.run();
  wrong.clock.advance(1s);
  CHECK(!wrong.pulled().contains("scheduling_goodput"));
  CHECK_MESSAGE(!wrong.pulled().contains("proxy_runtime_goodput"), "nothing was measured");
}

TEST_CASE("goodput monitor: work that is lost is told as such, and its workers ran") {
  MonitoredJob job;
  job.scheduled = job.clock.wall() - 20s;
  job.watch();
  job.clock.advance(10s);
  job.run();
  job.clock.advance(10s);
  job.step(1);
  job.clock.advance(30s);
  job.step(2);
  job.account.checkpoint(1);
  job.phase(Phase::Stopping);
  std::vector<workers::Worker> group(1);
  group[0].exit = process::Exit{process::ExitStatus::exited(1), {}, {}, 0};
  job.account.on(moment::Stopped{group, {}});
  job.clock.advance(30s);
  CHECK(job.pulled().at("scheduling_goodput") == doctest::Approx(0.4));
  CHECK(job.pulled().at("badput_time|WASTED_PROGRESS|lost") == doctest::Approx(30));
}

TEST_CASE("goodput monitor: the reference's words for where time went, saves and restores apart") {
  MonitoredJob job;
  job.watch();
  job.run();
  const auto during = [&](std::string name, Duration time) {
    const workers::Message begun = workers::PhaseEntered{std::move(name)};
    job.account.on(moment::WorkerSaid{job.worker, begun});
    job.clock.advance(time);
    const workers::Message over = workers::PhaseEntered{"train"};
    job.account.on(moment::WorkerSaid{job.worker, over});
  };
  during("checkpoint", 4s);  // before the first step: loading
  job.steps(0, 10, 1s);
  during("checkpoint", 2s);
  during("RESTORE", 1s);
  during("eval", 3s);
  during("Sweep up", 5s);
  during("data_loading", 6s);
  std::map<std::string, double> seen;
  for (const auto& point : job.registry.collect("elastrun.**").points) {
    if (point.spec->name != "elastrun.badput_time") continue;
    seen[std::get<std::string>(point.labels[0].second)] += std::get<double>(point.value);
  }
  CHECK(seen.at("CHECKPOINT_RESTORE") == 5);
  CHECK(seen.at("CHECKPOINT_SAVE") == 2);
  CHECK(seen.at("CUSTOM_BADPUT_EVENTS.EVALUATION") == 3);
  CHECK(seen.at("CUSTOM_BADPUT_EVENTS.SWEEP UP") == 5);
  CHECK(seen.at("DATA_LOADING_SYNC") == 6);
  for (const auto& point : job.registry.collect("elastrun.**interval_badput").points) {
    if (std::get<std::string>(point.labels[1].second) != "CHECKPOINT_RESTORE") continue;
    CHECK(std::get<double>(point.value) == doctest::Approx(100 * 5.0 / 32));
  }
}

TEST_CASE("goodput monitor: where fewer ranks did a part of the steps, the share at full pace") {
  MonitoredJob job;
  job.watch();
  std::int64_t step = 0;
  for (const int ranks : {8, 4}) {
    rendezvous::Round round;
    round.world_size = ranks;
    job.account.on(moment::RoundReady{round, {}});
    job.run();
    CHECK(!job.pulled().contains("goodput_at_full_pace"));
    for (int i = 0; i < 20; ++i) {
      job.clock.advance(ranks == 8 ? 1s : 2s);
      job.step(++step);
    }
    if (ranks == 8) job.phase(Phase::Starting);
  }
  CHECK(job.pulled().at("goodput_at_full_pace") == doctest::Approx(40.0 / 60).epsilon(0.03));
}

TEST_CASE("goodput monitor: what is not known is not told, and other nodes tell nothing") {
  MonitoredJob job;
  job.watch();
  job.run();
  job.clock.advance(5s);
  CHECK(!job.pulled().contains("goodput_time|TOTAL"));
  CHECK(job.pulled().contains("badput_time|OTHER|running"));
  CHECK(job.monitor->status().at("goodput").is_null());
  MonitoredJob other;
  other.watch();
  CHECK(other.pulled().empty());  // nobody has any rank yet
  other.run(1);
  other.clock.advance(5s);
  CHECK(other.pulled().empty());
  CHECK(other.monitor->status().is_null());
}

TEST_CASE("goodput monitor: a sink is told at every interval, also while nothing happens") {
  MonitoredJob job;
  const auto heard = std::make_shared<HeardGoodput>();
  job.pipeline.route({.kind = Record::Kind::Window}, heard);
  job.watch();
  job.run();
  job.step(0);
  CHECK(job.clock.armed() <= 1);  // a journal alone is no reason to wake up again and again
  job.clock.advance(1min);
  CHECK(job.clock.armed() == 0);
  heard->records.clear();
  job.host.add(std::make_shared<Told>(), {telemetry::Selector()});
  job.run();
  job.clock.advance(300s);
  CHECK(heard->of("elastrun.goodput_time").size() >= 9);
  const auto last = heard->of("elastrun.interval_goodput").back();
  CHECK(last.window->unit == "%");
  CHECK(last.window->end - last.window->start == GoodputMonitor::kInterval);
  job.monitor->on(moment::Ended{{}, nullptr});
  job.clock.advance(60s);
  CHECK(job.clock.armed() == 0);
}

TEST_CASE("goodput monitor: the status has the whole job and its windows") {
  MonitoredJob job;
  job.watch();
  job.run();
  job.step(0);
  job.steps(1, 30, 1s);
  const auto status = job.monitor->status();
  CHECK(status.at("elapsed_s") == 30.0);
  CHECK(status.at("goodput") == 1.0);
  REQUIRE(status.at("windows").as_array().size() == 2);
  CHECK(status.at("windows").at(0).at("size_s") == 3600.0);
  CHECK(status.at("windows").at(1).at("covered_s") == 30.0);
  CHECK(status.at("windows").at(1).at("goodput_at_least") == 1.0);
  CHECK(status.at("windows").at(0).at("buckets_s").at("productive") == 30.0);
}

}  // namespace elastrun::agent
