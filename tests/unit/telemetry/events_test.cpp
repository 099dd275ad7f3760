// SPDX-License-Identifier: Apache-2.0
#include "telemetry/events.hpp"

#include "clock.hpp"

#include <cstdlib>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::telemetry;
using namespace elastrun::telemetry::events;

namespace {

AgentFacts an_agent() {
  return {
      .run_id = "RUN", .hostname = "localhost", .rdzv_backend = "c10d", .entry_point = "python3"};
}

struct Recorder final : EventHandler {
  void record(const Event& event) override { seen.push_back(event); }
  std::vector<Event> seen;
};

}  // namespace

TEST_CASE("events: an agent's event is torchrun's, byte by byte") {
  const auto event = agent_event("RENDEZVOUS", an_agent(), Duration(116491135));
  CHECK(
      event.to_json() ==
      R"({"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, )"
      R"("metadata": {"run_id": "RUN", "global_rank": null, "group_rank": null, )"
      R"("worker_id": null, )"
      R"("role": "default", "hostname": "localhost", "state": "RENDEZVOUS", "total_run_time": 0, )"
      R"("rdzv_backend": "c10d", "raw_error": null, )"
      R"("metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\"}", )"
      R"("agent_restarts": 0, "duration_ms": 116.491135}})");
}

TEST_CASE("events: a worker's events are torchrun's, byte by byte") {
  auto agent = an_agent();
  agent.group_rank = 0;
  agent.group_world_size = 1;
  const auto start = worker_event(
      "START", agent,
      {.global_rank = 1, .local_rank = 1, .role_rank = 1, .role_world_size = 2, .pid = 4243});
  CHECK(start.to_json() ==
        R"({"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, )"
        R"("metadata": {"run_id": "RUN", "global_rank": 1, "group_rank": 0, "worker_id": "4243", )"
        R"("role": "default", "hostname": "localhost", "state": "START", "total_run_time": 0, )"
        R"("rdzv_backend": "c10d", "raw_error": null, )"
        R"("metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", )"
        R"(\"local_rank\": [1], )"
        R"(\"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [null], )"
        R"(\"worker_pid\": [null]}", )"
        R"("agent_restarts": 0, "duration_ms": null}})");
  const auto failed =
      worker_event("FAILED", agent, {.role_world_size = 2, .pid = 4242, .exit_code = 3}, "{\"a\"}");
  CHECK(failed.to_json() ==
        R"({"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, )"
        R"("metadata": {"run_id": "RUN", "global_rank": 0, "group_rank": 0, "worker_id": "4242", )"
        R"("role": "default", "hostname": "localhost", "state": "FAILED", "total_run_time": 0, )"
        R"("rdzv_backend": "c10d", "raw_error": "{\"a\"}", )"
        R"("metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", )"
        R"(\"local_rank\": [0], )"
        R"(\"role_rank\": [0], \"role_world_size\": [2], \"exit_code\": [3], )"
        R"(\"worker_pid\": [4242]}", )"
        R"("agent_restarts": 0, "duration_ms": null}})");
}

TEST_CASE("events: a watchdog's event has no duration") {
  auto agent = an_agent();
  agent.group_rank = 0;
  CHECK(watchdog_event("watchdog started", agent).to_json() ==
        R"({"name": "watchdog started", "source": "AGENT", "timestamp": 0, "metadata": )"
        R"({"run_id": "RUN", "global_rank": null, "group_rank": 0, "worker_id": null, )"
        R"("role": "default", "hostname": "localhost", "state": "RUNNING", "total_run_time": 0, )"
        R"("rdzv_backend": "c10d", "raw_error": null, )"
        R"("metadata": "{\"watchdog_event\": \"watchdog started\"}", "agent_restarts": 0}})");
}

TEST_CASE("events: floats stay floats in an event's text") {
  const Event event{
      "n",
      Source::Worker,
      17,
      {{"i", std::int64_t{1}}, {"f", 1.0}, {"t", "\u00e9\n"}, {"b", false}, {"x", {}}}};
  CHECK(event.to_json() == R"({"name": "n", "source": "WORKER", "timestamp": 17, "metadata": )"
                           R"({"i": 1, "f": 1.0, "t": "\u00e9\n", "b": false, "x": null}})");
}

TEST_CASE_FIXTURE(OnePipeline,
                  "events: a handler gets the pipeline's events with their real time") {
  record(pipeline, agent_event("START", an_agent()));
  const auto handler = std::make_shared<Recorder>();
  attach(pipeline, handler);
  record(pipeline, worker_event("START", an_agent(), {}));
  pipeline.event("elastrun.agent", "not for torchelastic");
  REQUIRE(handler->seen.size() == 1);
  CHECK(handler->seen[0].source == Source::Worker);
  CHECK(handler->seen[0].timestamp == 1767323045000);
  record(pipeline, {.name = "old", .timestamp = 5});
  CHECK(handler->seen[1].timestamp == 5);
}

TEST_CASE("events: the console handler writes one line, and LOGLEVEL may silence it") {
  std::string written;
  const LineWriter write = [&](std::string_view line) { written += line; };
  ::unsetenv("LOGLEVEL");
  find_handler("console", write).value()->record({.name = "x"});
  CHECK(written == R"({"name": "x", "source": "AGENT", "timestamp": 0, "metadata": {}})"
                   "\n");
  written.clear();
  ::setenv("LOGLEVEL", "WARNING", 1);
  find_handler("console", write).value()->record({.name = "x"});
  CHECK(written.empty());
  ::setenv("LOGLEVEL", "20", 1);
  find_handler("console", write).value()->record({.name = "x"});
  CHECK_FALSE(written.empty());
  ::unsetenv("LOGLEVEL");
}

TEST_CASE("events: an unknown handler is refused at once, with the names there are") {
  const auto none = find_handler("consol");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Code::Usage);
  CHECK(none.error().text ==
        "unknown event log handler 'consol'; known are console, dynamic_rendezvous, null "
        "(did you mean console?)");
  const auto mine = std::make_shared<Recorder>();
  register_handler("mine", [mine](const LineWriter&) { return mine; });
  CHECK(find_handler("mine").value() == mine);
}

TEST_CASE_FIXTURE(OnePipeline, "events: a handler that throws loses its own events only, counted") {
  struct Bad final : EventHandler {
    void record(const Event&) override { throw 1; }
  };
  const auto good = std::make_shared<Recorder>();
  attach(pipeline, std::make_shared<Bad>());
  attach(pipeline, good);
  record(pipeline, Event{.name = "x"});
  CHECK(good->seen.size() == 1);
  CHECK(pipeline.lost() == 1);
}
