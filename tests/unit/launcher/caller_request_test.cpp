// SPDX-License-Identifier: Apache-2.0
#include "elastrun/caller_request.hpp"

#include <doctest/doctest.h>

namespace elastrun {
namespace {

Result<CallerRequest> read(std::string_view text) {
  const auto value = parse_json(text);
  REQUIRE(value);
  return read_caller_request(*value);
}

std::string refusal(std::string_view text) {
  const auto request = read(text);
  return request ? "" : request.error().text;
}

constexpr std::string_view kWhole = R"({
  "entrypoint": "sh", "args": ["-c", "true"], "local_world_size": 4, "role": "trainer",
  "max_restarts": 2, "monitor_interval": 0.5, "master_addr": "node1", "master_port": 29500,
  "local_addr": null, "env": {"A": "1"}, "inherited_fds": [7, 5], "log_dir": "logs",
  "redirects": 3, "tee": {"0": 1, "12": 2}, "local_ranks_filter": [0, 1],
  "duplicate_stdout_filters": ["a", ""], "numa_binding": "core-complex",
  "exit_barrier_timeout": 1.5, "shutdown_timeout": 0, "signals_to_handle": ["SIGTERM"],
  "metrics": true, "options": ["--http=:0"],
  "rendezvous": {"backend": "c10d", "endpoint": "node1:29400", "run_id": "r", "min_nodes": 1,
                 "max_nodes": 3, "conf": {"join_timeout": "7"}}})";

TEST_CASE("a caller's request is read as a whole") {
  const auto request = read(kWhole);
  REQUIRE(request);
  const auto& spec = request->spec;
  CHECK(spec.entrypoint == "sh");
  CHECK(spec.args == std::vector<std::string>{"-c", "true"});
  CHECK(spec.local_world_size == 4);
  CHECK(spec.monitor_interval == std::chrono::milliseconds(500));
  CHECK(spec.master_port == 29500);
  CHECK(spec.local_addr.empty());
  CHECK(spec.env.at("A") == "1");
  CHECK(spec.inherited_fds == std::vector<int>{7, 5});
  CHECK(spec.logs.redirects.of(9) == 3);
  CHECK(spec.logs.tee.of(12) == 2);
  CHECK(spec.logs.tee.of(1) == 0);
  REQUIRE(spec.duplicate_stdout_filters);
  CHECK(spec.duplicate_stdout_filters->size() == 2);
  CHECK_FALSE(spec.duplicate_stderr_filters);
  CHECK(spec.numa_binding == spec::NumaBinding::CoreComplex);
  CHECK(spec.exit_barrier_timeout == std::chrono::milliseconds(1500));
  CHECK(spec.shutdown_timeout == Duration::zero());
  CHECK(request->wants_metrics);
  CHECK_FALSE(request->wants_events);
  CHECK(request->options == std::vector<std::string>{"--http=:0"});
  REQUIRE(spec.rdzv_handler);
  CHECK(spec.rdzv_handler->get_run_id() == "r");
  CHECK(agent::job_of(spec)->max_nodes == 3);
}

TEST_CASE("a caller's own rendezvous needs no handler of ours") {
  const auto request =
      read(R"({"entrypoint": "x", "rendezvous": {"backend": "m", "run_id": "i", "asked_at": 9}})");
  REQUIRE(request);
  CHECK(request->asked_at == 9);
  CHECK(request->backend == "m");
  CHECK_FALSE(request->spec.rdzv_handler);
  CHECK_FALSE(request->fork_socket);
}

TEST_CASE("a caller that forks its workers names the socket of its copy") {
  const auto request = read(
      R"({"entrypoint": "x", "fork_socket": 12, "rendezvous": {"backend": "m", "asked_at": 9}})");
  REQUIRE(request);
  CHECK(request->fork_socket == 12);
}

TEST_CASE("a faulty request is refused by the name of its field") {
  const auto with = [](std::string_view field) {
    return refusal("{" + std::string(field) + R"(, "rendezvous": {"backend": "c10d"}})");
  };
  CHECK(with(R"("args": "sh")") == "args is of another type than it has to be");
  CHECK(with(R"("local_world_size": 1e30)").starts_with("local_world_size is of another"));
  CHECK(with(R"("master_port": 70000)").starts_with("master_port is of another"));
  CHECK(with(R"("shutdown_timeout": -1)").starts_with("shutdown_timeout has to be a number"));
  CHECK(with(R"("shutdown_timeout": 1e300)").starts_with("shutdown_timeout has to be"));
  CHECK(with(R"("tee": {"-1": 1})").starts_with("tee has to be 0, 1, 2 or 3"));
  CHECK(with(R"("tee": {"0": 4})").starts_with("tee has to be 0, 1, 2 or 3"));
  CHECK(with(R"("redirects": 9)").starts_with("redirects has to be 0, 1, 2 or 3"));
  CHECK(with(R"("numa_binding": "all")").starts_with("numa_binding has to be node"));
  CHECK(with(R"("fork_socket": 2)") == "fork_socket has to be above 2");
  CHECK(with(R"("fork_socket": "x")").starts_with("fork_socket is of another type"));
  CHECK(with(R"("speed": 1)") == "speed is not known to this elastrun");
  CHECK(refusal(R"({"rendezvous": {"backend": "c10d", "nodes": 1}})") ==
        "rendezvous.nodes is not known to this elastrun");
  CHECK(refusal(R"({"rendezvous": {"backend": "none"}})").contains("is not registered"));
  CHECK(refusal(R"({"rendezvous": 1})") == "rendezvous has to be an object");
  CHECK(refusal("{}") == "rendezvous is missing");
  CHECK(refusal("[]") == "the caller's request has to be an object");
}

}  // namespace
}  // namespace elastrun
