// SPDX-License-Identifier: Apache-2.0
#include "agent/web/job_view.hpp"

#include "unit/agent/records.hpp"

namespace elastrun::agent {
namespace {

using std::chrono::seconds;

struct Watched {
  Watched() {
    spec.script = "train.py";
    spec.max_restarts = 3;
    view = std::make_unique<JobView>(
        spec, clock,
        JobView::Sources{[this] { return group.empty() ? nullptr : &group; }, [] { return true; },
                         [this] { ++changes; }});
  }
  json::object worker(std::size_t index = 0) const {
    return view->status().at("workers").at(index).as_object();
  }
  spec::JobSpec spec;
  test::FakeClock clock;
  std::vector<workers::Worker> group;
  int changes = 0;
  std::unique_ptr<JobView> view;
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

}  // namespace

TEST_CASE("job view: before there is a round, it says what is waited for") {
  Watched watched;
  watched.view->on(moment::Progress{"1 of 2 nodes"});
  watched.clock.advance(seconds(4));
  const auto status = watched.view->status();
  CHECK(status.at("phase") == "joining");
  CHECK(status.at("phase_s") == 4.0);
  CHECK(status.at("progress") == "1 of 2 nodes");
  CHECK(status.at("round").is_null());
  CHECK(status.at("store").at("workers").is_null());
  CHECK(status.at("workers").as_array().empty());
  CHECK(watched.changes == 1);
}

TEST_CASE("job view: steps have a rate, which begins anew with a round or a smaller step") {
  Watched watched;
  watched.group.emplace_back();
  for (int step = 1; step <= 41; ++step) {
    watched.view->on(moment::WorkerSaid{{}, workers::StepDone{step}});
    watched.clock.advance(std::chrono::milliseconds(500));
  }
  CHECK(watched.worker().at("steps_per_s").as_double() == doctest::Approx(2));
  watched.clock.advance(seconds(3));
  CHECK(watched.worker().at("step") == 41);
  CHECK_MESSAGE(watched.worker().at("steps_per_s").as_double() == doctest::Approx(1 / 3.5),
                "it stands still");
  CHECK(watched.worker().at("step_age_s") == 3.5);
  watched.view->on(moment::WorkerSaid{{}, workers::StepDone{7}});  // from a checkpoint
  CHECK(watched.worker().at("steps_per_s") == 0.0);
  watched.view->on(moment::RoundReady{round_of(1, 2), {}});
  CHECK(watched.worker().at("step").is_null());
}

TEST_CASE("job view: workers that are stopped or traced are told as long as they are") {
  Watched watched;
  watched.group.resize(2);
  watched.group[1].rank = 1;
  watched.view->on(HeldSeen{{{1, "stopped by a signal"}}});
  CHECK(watched.changes == 1);
  CHECK(watched.worker(0).at("held").is_null());
  CHECK(watched.worker(1).at("held") == "stopped by a signal");
  watched.view->on(HeldSeen{{}});
  CHECK(watched.worker(1).at("held").is_null());
}

TEST_CASE("job view: once the job has ended, its workers stay although their group has gone") {
  Watched watched;
  watched.group = workers_of({process::ExitStatus::exited(0)});
  watched.view->on(moment::Ended{{}, &watched.group});
  const auto last = watched.worker();
  watched.group.clear();
  CHECK(watched.worker() == last);
}

TEST_CASE("job view: restarts are told with their causes, as many as fit") {
  Watched watched;
  rendezvous::Restart order;
  order.attempt_spent = true;
  order.restarts_left = 2;
  order.cause.text = "rank 3 \x1b[31mended\x1b[0m with exit code 3";
  order.cause.rank = 3;
  watched.view->on(moment::Restarting{order});
  order.attempt_spent = false;
  for (int i = 0; i < 200; ++i) watched.view->on(moment::Restarting{order});
  const auto restarts = watched.view->status().at("restarts");
  CHECK(restarts.at("count") == 201);
  CHECK(restarts.at("spent") == 1);
  CHECK(restarts.at("left") == 2);
  CHECK(restarts.at("limit") == 3);
  const auto& latest = restarts.at("latest").as_array();
  CHECK(latest.size() == 100);
  CHECK(latest[0].at("rank") == 3);
  CHECK(latest[0].at("text").as_string().find('\x1b') == json::string::npos);
}

}  // namespace elastrun::agent
