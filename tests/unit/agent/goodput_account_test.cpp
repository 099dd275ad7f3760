// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/goodput_account.hpp"

#include "support/fake_clock.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <stdlib.h>

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
  GoodputAccount account;
  workers::Worker worker;

  /// `waited`: since the scheduler has known the job.
  explicit MonitoredJob(std::optional<Duration> waited = {})
      : account(clock, clock.now(), false, true,
                {&host, nullptr, waited ? std::optional(clock.wall() - *waited) : std::nullopt}) {}
  void phase(Phase phase) { account.on(moment::PhaseChanged{phase, clock.now()}); }
  void run(int group_rank = 0, int world_size = 0) {
    rendezvous::Round round;
    round.group_rank = group_rank;
    round.world_size = world_size;
    phase(Phase::Joining);
    account.on(moment::RoundReady{round, 0s});
    phase(Phase::Starting);
    phase(Phase::Running);
  }
  void step(std::int64_t number) {
    account.on(moment::WorkerSaid{worker, workers::StepDone{number}});
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
  job.clock.advance(600s);
  job.run();
  job.step(0);
  job.steps(1, 54, 100s);
  job.phase(Phase::Waiting);
  job.account.on(moment::Stopped{{}, 0s});
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
  job.run();
  job.steps(0, 20, 1s);
  job.account.checkpoint(10);
  const auto restart = [&](rendezvous::Cause::Kind kind) {
    rendezvous::Restart order;
    order.cause.kind = kind;
    job.account.on(moment::Restarting{order});
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
  MonitoredJob job(20s);
  job.clock.advance(10s);
  job.run();
  job.clock.advance(50s);
  job.phase(Phase::Stopping);
  job.clock.advance(20s);
  CHECK(job.pulled().at("scheduling_goodput") == doctest::Approx(0.5));
  MonitoredJob wrong(-20s);
  wrong.run();
  wrong.clock.advance(1s);
  CHECK(!wrong.pulled().contains("scheduling_goodput"));
  CHECK_MESSAGE(!wrong.pulled().contains("proxy_runtime_goodput"), "nothing was measured");
}

TEST_CASE("goodput monitor: work that is lost is told as such, and its workers ran") {
  MonitoredJob job(20s);
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
  std::int64_t step = 0;
  for (const int ranks : {8, 4}) {
    job.run(0, ranks);
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
  job.run();
  job.clock.advance(5s);
  CHECK(!job.pulled().contains("goodput_time|TOTAL"));
  CHECK(job.pulled().contains("badput_time|OTHER|running"));
  CHECK(job.account.status().at("goodput").is_null());
  MonitoredJob other;
  CHECK(other.pulled().empty());  // nobody has any rank yet
  other.run(1);
  other.clock.advance(5s);
  CHECK(other.pulled().empty());
  CHECK(other.account.status().is_null());
}

TEST_CASE("goodput monitor: a sink is told at every interval, also while nothing happens") {
  MonitoredJob job;
  const auto heard = std::make_shared<HeardGoodput>();
  job.pipeline.route({.kind = Record::Kind::Window}, heard);
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
  CHECK(last.window->end - last.window->start == GoodputAccount::kInterval);
  job.account.on(moment::Ended{{}, nullptr});
  job.clock.advance(60s);
  CHECK(job.clock.armed() == 0);
}

TEST_CASE("goodput monitor: the status has the whole job and its windows") {
  MonitoredJob job;
  job.run();
  job.step(0);
  job.steps(1, 30, 1s);
  const auto status = job.account.status();
  CHECK(status.at("elapsed_s") == 30.0);
  CHECK(status.at("goodput") == 1.0);
  REQUIRE(status.at("windows").as_array().size() == 2);
  CHECK(status.at("windows").at(0).at("size_s") == 3600.0);
  CHECK(status.at("windows").at(1).at("covered_s") == 30.0);
  CHECK(status.at("windows").at(1).at("goodput_at_least") == 1.0);
  CHECK(status.at("windows").at(0).at("buckets_s").at("productive") == 30.0);
}

namespace {

/// At a second, with workers that have used so many cores, and GPUs of such a utilisation.
system::MachineSample look(int second, std::vector<double> cores,
                           std::vector<std::optional<double>> gpus = {}) {
  system::MachineSample sample;
  sample.at = TimePoint() + std::chrono::seconds(second);
  for (const double one : cores) {
    system::WorkerUse use;
    use.cores = one;
    sample.workers.push_back(std::move(use));
  }
  for (const auto& one : gpus) {
    system::GpuUse use;
    use.utilization = one;
    use.memory_used = 1 << 20;
    sample.gpus.push_back(std::move(use));
  }
  return sample;
}

}  // namespace

TEST_CASE("duty cycle: without accelerators all workers must use their processors") {
  DutyCycle duty;
  CHECK_FALSE(duty.busy());
  duty.take(look(10, {1, 1}));
  CHECK_FALSE(duty.busy());
  duty.take(look(20, {1, 0.5}));
  CHECK(duty.busy() == 10s);
  duty.take(look(30, {1, 0.05}));  // a rank that waits
  duty.take(look(40, {}));         // between two starts
  CHECK(duty.busy() == 10s);
  duty.take(look(35, {1, 1}));  // too late
  CHECK(duty.busy() == 10s);
  duty.take(look(50, {0.2, 4}));
  CHECK(duty.busy() == 20s);
}

TEST_CASE("duty cycle: accelerators count, whatever processors do, but not those of others") {
  DutyCycle duty;
  duty.take(look(0, {1}, {0.9, 0.9}));
  duty.take(look(10, {0.01}, {0.9, 0.2}));
  CHECK(duty.busy() == 10s);
  duty.take(look(20, {1}, {0.9, 0.05}));
  CHECK(duty.busy() == 10s);
  auto shared = look(30, {1}, {0.9, 0.0});
  shared.gpus[1].memory_used = 0;
  duty.take(shared);
  CHECK(duty.busy() == 20s);
  duty.take(look(40, {1}, {std::nullopt}));  // a driver that says nothing
  CHECK(duty.busy() == 30s);
}

namespace {

std::optional<std::int64_t> seconds(const std::vector<std::string>& environment,
                                    const std::string& root = "/nowhere") {
  const auto time = scheduled_since(environment, root);
  if (!time) return std::nullopt;
  return std::chrono::floor<std::chrono::seconds>(time->time_since_epoch()).count();
}

}  // namespace

TEST_CASE("scheduled since: what a user or Slurm says") {
  CHECK(seconds({}) == std::nullopt);
  CHECK(seconds({"SLURM_JOB_START_TIME=1790000000"}) == 1790000000);
  CHECK(seconds({"SLURM_JOB_START_TIME=soon"}) == std::nullopt);
  CHECK(seconds({"ELASTRUN_JOB_CREATED=1780000000", "SLURM_JOB_START_TIME=1790000000"}) ==
        1780000000);
  CHECK(seconds({"ELASTRUN_JOB_CREATED=2026-01-02T03:04:05Z"}) == 1767323045);
  // No reason to know nothing.
  CHECK(seconds({"ELASTRUN_JOB_CREATED=2026-01-02", "SLURM_JOB_START_TIME=1790000000"}) ==
        1790000000);
  CHECK(seconds({"ELASTRUN_JOB_CREATED=-5"}) == std::nullopt);
}

TEST_CASE("scheduled since: on Kubernetes, when the pod came to the node") {
  auto name = (std::filesystem::temp_directory_path() / "pod_XXXXXX").string();
  const std::string root = ::mkdtemp(name.data());
  const std::vector<std::string> pod{"KUBERNETES_SERVICE_HOST=10.0.0.1"};
  CHECK(seconds(pod, root) == std::nullopt);  // a pod without a service account
  std::filesystem::create_directories(root + "/var/run/secrets/kubernetes.io/serviceaccount");
  const auto now = std::chrono::system_clock::now().time_since_epoch() / 1s;
  const auto told = seconds(pod, root);
  REQUIRE(told);
  CHECK(*told <= now);
  CHECK(*told > now - 600);
  CHECK(seconds({}, root) == std::nullopt);  // no pod
  std::filesystem::remove_all(root);
}

namespace {

using goodput::Bucket;
using process::ExitStatus;

std::vector<workers::Worker> group_of(std::initializer_list<ExitStatus> statuses) {
  std::vector<workers::Worker> group;
  for (const auto& status : statuses) {
    auto& worker = group.emplace_back();
    worker.exit = process::Exit{status, {}, {}, 0};
  }
  return group;
}

const auto kWell = ExitStatus::exited(0), kBadly = ExitStatus::exited(1);

/// A job whose time passes phase by phase, as its agent would tell it.
struct AccountedJob {
  test::FakeClock clock;
  GoodputAccount account;
  explicit AccountedJob(bool several_nodes = false) : account(clock, clock.now(), several_nodes) {}

  AccountedJob& in(Phase phase, Duration time) {
    account.on(moment::PhaseChanged{phase, clock.now()});
    clock.advance(time);
    return *this;
  }
  AccountedJob& started() { return in(Phase::Joining, 1s).in(Phase::Starting, 2s); }
  void ended(Ending::Kind kind) {
    JobResult result;
    result.ending.kind = kind;
    account.on(moment::PhaseChanged{Phase::Ended, clock.now()});
    account.on(moment::Ended{result, nullptr});
  }
  Duration of(Bucket bucket) const {
    const auto summary = account.summary();
    CHECK(std::accumulate(summary.buckets.begin(), summary.buckets.end(), Duration{}) ==
          summary.elapsed);
    return summary.of(bucket);
  }
};

}  // namespace

TEST_CASE("account: a job of one node starts up, runs and stops") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kWell, kWell}), 1s});
  job.in(Phase::Barrier, 0s).ended(Ending::Kind::Succeeded);
  CHECK(job.of(Bucket::Startup) == 3s);
  CHECK(job.of(Bucket::Running) == 20s);
  CHECK(job.of(Bucket::Stopping) == 1s);
  CHECK(job.account.summary().restarts == 0);
}

TEST_CASE("account: the connections of the ranks tell imports and initialization apart") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s);
  job.account.on(moment::Joined{false});
  job.clock.advance(5s);
  job.account.on(moment::Joined{true});
  job.clock.advance(3s);
  job.account.step(0);
  job.clock.advance(10s);
  CHECK(job.of(Bucket::Preparation) == 20s);
  CHECK(job.of(Bucket::Initialization) == 5s);
  CHECK(job.of(Bucket::Running) == 3s);
  CHECK(job.of(Bucket::Unexplained) == 10s);  // nothing tells yet what a step takes
  CHECK(job.account.summary().restarts == 0);

  // After a restart the same; a step ends what nobody has ended.
  job.in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kBadly}), 1s});
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Starting, 1s).in(Phase::Running, 4s);
  job.account.on(moment::Joined{false});
  job.clock.advance(2s);
  job.account.step(1);
  job.clock.advance(7s);
  CHECK(job.of(Bucket::Preparation) == 24s);
  CHECK(job.of(Bucket::Initialization) == 7s);
  CHECK(job.of(Bucket::Unexplained) == 7s);  // step 1 was broken off, and done again
  CHECK(job.of(Bucket::Lost) == 10s);
  CHECK(job.account.summary().restarts == 1);
  job.account.on(moment::Joined{false});  // late: there is a step already
  CHECK(job.of(Bucket::Preparation) == 24s);
}

TEST_CASE("account: ranks that never connect take nothing from what may be training") {
  AccountedJob job;
  job.started().in(Phase::Running, 2s);
  job.account.on(moment::Joined{false});
  job.clock.advance(10s);
  CHECK(job.of(Bucket::Preparation) == 2s);
  CHECK(job.of(Bucket::Running) == 10s);
  CHECK(job.of(Bucket::Initialization) == 0s);
  CHECK(job.account.summary().goodput_at_most() > 0.6);
}

TEST_CASE("account: of a node that gets rank 0 later the steps before count, too") {
  AccountedJob job(true);
  rendezvous::Round round;
  round.rank_base = 2;
  const auto train = [&](int rank, std::int64_t first) {
    job.account.on(moment::PhaseChanged{Phase::Starting, job.clock.now()});
    job.account.on(moment::RoundReady{round, {}});
    job.account.on(moment::PhaseChanged{Phase::Running, job.clock.now()});
    for (auto step = first; step < first + 20; ++step) {
      job.clock.advance(1s);
      for (int i : {rank, rank + 1}) {
        workers::Worker worker;
        worker.rank = i;
        job.account.on(moment::WorkerSaid{worker, workers::StepDone{step}});
      }
    }
  };
  train(2, 0);
  CHECK(job.of(Bucket::Productive) == 20s);
  rendezvous::Restart order;
  order.cause.kind = rendezvous::Cause::Kind::NodeLost;
  job.account.on(moment::Restarting{order});
  job.account.on(moment::Stopped{group_of({kWell, kWell}), 0s});
  round.rank_base = 0;
  train(0, 15);
  CHECK(job.of(Bucket::Productive) == 35s);
  CHECK(job.of(Bucket::Lost) == 5s);
  CHECK(job.account.summary().goodput());
}

TEST_CASE("account: recorders, steps and phases of rank 0 count, checkpoints of all that save") {
  AccountedJob job;
  job.started().in(Phase::Running, 1s);
  workers::Worker zero, one;
  zero.rank = 0;
  one.rank = 1;
  const auto posix = [&] {
    return std::chrono::duration<double>(job.clock.wall().time_since_epoch()).count();
  };
  const auto say = [&](const workers::Worker& who, goodput::MeasurementKind kind, double ago) {
    workers::GoodputEntries said;
    said.entries.push_back({{kind, -1, 0, posix() - ago}, {}, {}});
    job.account.on(moment::WorkerSaid{who, said});
  };
  say(zero, goodput::MeasurementKind::DataLoadingStart, 0);
  say(one, goodput::MeasurementKind::DataLoadingEnd, 0);
  job.clock.advance(4s);
  say(zero, goodput::MeasurementKind::DataLoadingEnd, 1);
  job.account.on(moment::WorkerSaid{one, workers::StepDone{7}});
  CHECK_FALSE(job.account.summary().last_step);
  job.account.on(moment::WorkerSaid{one, workers::CheckpointDone{3}});
  CHECK_MESSAGE(!job.account.summary().last_checkpoint, "what rank 1 alone saves is its own");
  job.account.on(moment::WorkerSaid{zero, workers::CheckpointDone{4}});
  CHECK_MESSAGE(job.account.summary().last_checkpoint == 3, "a part of 4 is not there");
  job.account.on(moment::WorkerSaid{one, workers::CheckpointDone{4}});
  CHECK(job.account.summary().last_checkpoint == 4);
  CHECK(job.of(Bucket::DataLoading) == 3s);
  CHECK(job.of(Bucket::Running) == 2s);
  job.account.on(moment::WorkerSaid{one, workers::PhaseEntered{"eval"}});
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"Validation"}});
  job.clock.advance(5s);
  job.account.on(moment::WorkerSaid{one, workers::PhaseEntered{"train"}});
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"export"}});
  job.clock.advance(7s);
  job.account.on(moment::WorkerSaid{zero, workers::PhaseEntered{"train"}});
  CHECK(job.of(Bucket::Evaluation) == 5s);
  CHECK(job.of(Bucket::Custom) == 7s);
}

TEST_CASE("account: on several nodes waiting for them is no start-up") {
  AccountedJob job(true);
  job.in(Phase::Joining, 30s).in(Phase::Starting, 2s).in(Phase::Running, 5s);
  CHECK(job.of(Bucket::Rendezvous) == 30s);
  CHECK(job.of(Bucket::Startup) == 2s);
}

TEST_CASE("account: all from a failure to the next start is restart, also before it is ordered") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Settling, 1s).in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly, kWell}), 2s});
  job.in(Phase::Waiting, 3s);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Joining, 4s).in(Phase::Starting, 5s).in(Phase::Running, 10s);
  CHECK(job.of(Bucket::Restart) == 15s);
  CHECK(job.of(Bucket::Stopping) == 0s);
  CHECK(job.of(Bucket::Running) == 30s);
  CHECK(job.account.summary().restarts == 1);
}

TEST_CASE("account: a failure without a restart is the end of the job") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s).in(Phase::Settling, 1s).in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.ended(Ending::Kind::WorkersFailed);
  CHECK(job.of(Bucket::Stopping) == 3s);
  CHECK(job.of(Bucket::Restart) == 0s);
}

TEST_CASE("account: no checkpoint told, and what a failure costs is not known") {
  AccountedJob job;
  job.started().in(Phase::Running, 20s);
  job.account.step(1);
  job.in(Phase::Stopping, 1s);
  job.account.on(moment::Stopped{group_of({kBadly}), 1s});
  job.ended(Ending::Kind::WorkersFailed);
  CHECK(job.of(Bucket::Lost) == 0s);
  CHECK(job.of(Bucket::Running) == 20s);
  CHECK_FALSE(job.account.summary().loss_known);
}

TEST_CASE("account: a checkpoint saved while the workers are being stopped still counts") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.step(1);
  job.account.checkpoint(1);
  job.clock.advance(10s);
  job.account.step(2);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 1s);
  job.account.checkpoint(2);
  job.clock.advance(1s);
  job.account.on(moment::Stopped{group_of({ExitStatus::signaled(SIGTERM)}), 2s});
  CHECK(job.of(Bucket::Lost) == 0s);
  CHECK(job.of(Bucket::Restart) == 2s);
  CHECK(job.account.summary().loss_known);
}

TEST_CASE("account: what ran since the checkpoint is lost, whoever is to blame") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.clock.advance(7s);
  SUBCASE("another node, while ours run") {
    job.account.on(moment::Restarting{{}});
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({ExitStatus::signaled(SIGTERM)}), 1s});
  }
  SUBCASE("another node, when ours have all succeeded") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell}), 1s});
    job.in(Phase::Barrier, 60s);
    CHECK(job.of(Bucket::Lost) == 0s);
    job.account.on(moment::Restarting{{}});
    CHECK(job.of(Bucket::Stopping) == 61s);
  }
  SUBCASE("a worker of ours") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell, kBadly}), 1s});
  }
  SUBCASE("a signal to us, which the workers took well") {
    job.in(Phase::Stopping, 1s);
    job.account.on(moment::Stopped{group_of({kWell}), 1s});
    job.ended(Ending::Kind::Signalled);
  }
  CHECK(job.of(Bucket::Lost) == 7s);
  CHECK(job.of(Bucket::Running) == 10s);
}

TEST_CASE("account: an order to restart that comes twice, or while joining, changes nothing") {
  AccountedJob job(true);
  job.in(Phase::Joining, 5s);
  job.account.on(moment::Restarting{{}});
  job.clock.advance(5s);
  CHECK(job.of(Bucket::Rendezvous) == 10s);
  job.in(Phase::Starting, 1s).in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.account.on(moment::Restarting{{}});
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.in(Phase::Joining, 3s).in(Phase::Starting, 4s).in(Phase::Running, 0s);
  CHECK(job.of(Bucket::Restart) == 6s);
  CHECK(job.of(Bucket::Rendezvous) == 13s);
  CHECK(job.of(Bucket::Stopping) == 0s);
}

TEST_CASE("account: ended in the middle of a restart") {
  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.checkpoint(-1);
  job.clock.advance(2s);
  job.in(Phase::Settling, 1s);
  job.account.on(moment::Restarting{{}});
  job.in(Phase::Stopping, 2s);
  job.account.on(moment::Stopped{group_of({kBadly}), 2s});
  job.in(Phase::Joining, 3s).in(Phase::Starting, 4s);
  job.ended(Ending::Kind::NoStart);
  job.clock.advance(1s);
  CHECK(job.of(Bucket::Restart) == 10s);
  CHECK(job.of(Bucket::Stopping) == 1s);
  CHECK(job.of(Bucket::Lost) == 2s);
  CHECK(job.account.summary().restarts == 0);  // the workers never ran again
}

TEST_CASE("account: a job without workers, and a clock that is set back") {
  AccountedJob spare(true);
  spare.in(Phase::Joining, 9s).ended(Ending::Kind::NotNeeded);
  CHECK(spare.of(Bucket::Rendezvous) == 9s);
  CHECK(spare.account.summary().goodput_at_most() == 0);

  AccountedJob job;
  job.started().in(Phase::Running, 10s);
  job.account.on(moment::PhaseChanged{Phase::Settling,
                                      job.clock.now() - 60s});  // before it ran: not one second
  job.account.on(moment::Restarting{{}});
  job.account.on(moment::Stopped{{}, 0s});
  CHECK(job.of(Bucket::Running) == 0s);
  CHECK(job.of(Bucket::Restart) == 10s);
  CHECK(job.of(Bucket::Startup) == 3s);
}

}  // namespace elastrun::agent
