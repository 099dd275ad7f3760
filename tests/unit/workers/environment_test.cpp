// SPDX-License-Identifier: Apache-2.0
#include "workers/environment.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <map>

namespace elastrun::workers {
namespace {

using Entries = std::vector<std::string>;
const spec::JobSpec kAnyJob;

std::map<std::string, std::string> as_map(const Result<Entries>& entries) {
  REQUIRE(entries.has_value());
  std::map<std::string, std::string> map;
  for (const auto& entry : *entries) {
    const auto at = entry.find('=');
    CHECK_MESSAGE(map.emplace(entry.substr(0, at), entry.substr(at + 1)).second,
                  "twice: " << entry);
  }
  return map;
}

Placement second_of_two_nodes() {
  Placement place;
  place.attempt = 2;
  place.group_rank = 1;
  place.group_world_size = 2;
  place.local_world_size = 3;
  place.rank_base = 4;
  place.world_size = 7;
  place.role_rank_base = 1;
  place.role_world_size = 5;
  place.role = "trainer";
  place.master_addr = "10.0.0.1";
  place.master_port = 4711;
  return place;
}

TEST_CASE("environment: with --goodput auto workers are told, and never what an agent was told") {
  spec::JobSpec job;
  const Entries outer{"ELASTRUN_GOODPUT=auto/17"};
  CHECK_FALSE(
      as_map(worker_environment(outer, {job, "a"}, {}, 0, {})).contains("ELASTRUN_GOODPUT"));
  job.goodput = spec::Goodput::Auto;
  CHECK(as_map(worker_environment(outer, {job, "a"}, {}, 0, {})).at("ELASTRUN_GOODPUT") == "auto");
}

TEST_CASE("environment: a worker gets every variable of the contract") {
  spec::JobSpec job;
  job.run_id = "job-7";
  job.max_restarts = 3;
  const auto have = as_map(worker_environment({}, {job, "node_17"}, second_of_two_nodes(), 2,
                                              {"/run/2/error.json", "/run/2", "/run/channel"}));
  const std::map<std::string, std::string> wanted{
      {"RANK", "6"},
      {"LOCAL_RANK", "2"},
      {"GROUP_RANK", "1"},
      {"ROLE_RANK", "3"},
      {"ROLE_NAME", "trainer"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"WORLD_SIZE", "7"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_WORLD_SIZE", "5"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "4711"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "job-7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCHELASTIC_ERROR_FILE", "/run/2/error.json"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"ELASTRUN_JOB", "job-7"},
      {"ELASTRUN_AGENT_ID", "node_17"},
      {"ELASTRUN_RUN_DIR", "/run/2"},
      {"ELASTRUN_CHANNEL", "/run/channel"},
  };
  CHECK(have == wanted);
}

TEST_CASE("environment: the FIFO of timers is the agent's own, or what it was given") {
  spec::JobSpec job;
  const Entries agent{"TORCHELASTIC_TIMER_FILE=given"};
  JobFacts facts{job};
  const auto of_worker = [&] {
    return as_map(worker_environment(agent, facts, second_of_two_nodes(), 0, {}))
        .at("TORCHELASTIC_TIMER_FILE");
  };
  CHECK(of_worker() == "given");
  facts.timer_file = "/tmp/made";
  CHECK(of_worker() == "/tmp/made");
}

TEST_CASE("environment: stale values of the agent are replaced, others stay untouched") {
  const Entries agent{"RANK=7",
                      "MASTER_ADDR=old",
                      "HOME=/root",
                      "ODD=a=b\nc",
                      "EMPTY=",
                      "ELASTRUN_CHANNEL=/outer/channel",
                      "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"};
  const auto have =
      as_map(worker_environment(agent, {kAnyJob}, Placement{}, 0, {"/e.json", "", ""}));
  CHECK(have.at("RANK") == "0");
  CHECK(have.at("MASTER_ADDR") == "127.0.0.1");
  CHECK(have.at("HOME") == "/root");
  CHECK(have.at("ODD") == "a=b\nc");
  CHECK(have.at("EMPTY").empty());
  CHECK(have.at("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "3");
  CHECK_MESSAGE(!have.contains("ELASTRUN_CHANNEL"), "the outer agent's channel is not ours");
}

TEST_CASE("environment: each worker has a socket file for torch's control plane") {
  const Entries agent{"TORCH_WORKER_SERVER_SOCKET=/run/job/${local_rank}.sock"};
  for (const int rank : {0, 3}) {
    const auto have = as_map(worker_environment(agent, {kAnyJob}, Placement{}, rank, {}));
    CHECK(have.at("TORCH_WORKER_SERVER_SOCKET") == "/run/job/" + std::to_string(rank) + ".sock");
  }
  const auto without = as_map(worker_environment({}, {kAnyJob}, Placement{}, 0, {}));
  CHECK_FALSE(without.contains("TORCH_WORKER_SERVER_SOCKET"));
}

TEST_CASE("environment: what opens the rendezvous is not handed to workers") {
  const Entries agent{"ELASTRUN_SECRET=s", "PET_RDZV_CONF=user=u,password=p", "PET_RDZV_ID=7",
                      "ELASTRUN_SECRET_SANTA=1"};
  spec::JobSpec job;
  job.worker_env = {{"ELASTRUN_SECRET", "t"}};
  const auto have = as_map(worker_environment(agent, {job}, Placement{}, 0, {}));
  CHECK_FALSE(have.contains("ELASTRUN_SECRET"));
  CHECK_FALSE(have.contains("PET_RDZV_CONF"));
  CHECK(have.at("PET_RDZV_ID") == "7");
  CHECK(have.at("ELASTRUN_SECRET_SANTA") == "1");
  const Entries harmless{"PET_RDZV_CONF=join_timeout=9"};
  CHECK(as_map(worker_environment(harmless, {kAnyJob}, Placement{}, 0, {}))
            .contains("PET_RDZV_CONF"));
}

TEST_CASE("environment: the interpreter that called the agent is not that of all below") {
  const std::string caller = "ELASTRUN_CALLED_BY=/usr/bin/python3";
  const auto environment = [&](const std::string& interpreter) {
    const Entries agent{"PYTHON_EXEC=" + interpreter, caller};
    return as_map(worker_environment(agent, {kAnyJob}, Placement{}, 0, {}));
  };
  CHECK_FALSE(environment("/usr/bin/python3").contains("PYTHON_EXEC"));
  CHECK_FALSE(environment("/usr/bin/python3").contains("ELASTRUN_CALLED_BY"));
  CHECK(environment("/opt/python3").at("PYTHON_EXEC") == "/opt/python3");
}

TEST_CASE("environment: variables of the job lie over the agent's and under the contract") {
  spec::JobSpec job;
  job.worker_env = {{"HOME", "/job"}, {"RANK", "99"}, {"NEW", "1"}};
  const Entries agent{"HOME=/root"};
  const auto have = as_map(worker_environment(agent, {job}, Placement{}, 0, {}));
  CHECK(have.at("HOME") == "/job");
  CHECK(have.at("RANK") == "0");
  CHECK(have.at("NEW") == "1");
}

TEST_CASE("environment: OMP_NUM_THREADS is limited only if nobody set it and there are several") {
  Placement one, two;
  two.local_world_size = 2;
  spec::JobSpec job;
  CHECK_FALSE(as_map(worker_environment({}, {job}, one, 0, {})).contains("OMP_NUM_THREADS"));
  CHECK(as_map(worker_environment({}, {job}, two, 0, {})).at("OMP_NUM_THREADS") == "1");
  const Entries empty{"OMP_NUM_THREADS="};
  CHECK(as_map(worker_environment(empty, {job}, two, 0, {})).at("OMP_NUM_THREADS").empty());
  job.worker_env["OMP_NUM_THREADS"] = "4";
  CHECK(as_map(worker_environment({}, {job}, two, 0, {})).at("OMP_NUM_THREADS") == "4");
}

TEST_CASE("environment: --virtual-local-rank shows each worker one device") {
  spec::JobSpec job;
  job.virtual_local_rank = true;
  Placement place;
  place.local_world_size = 2;
  const Entries agent{"CUDA_VISIBLE_DEVICES=6, GPU-ab ,2"};
  const auto second = as_map(worker_environment(agent, {job}, place, 1, {}));
  CHECK(second.at("LOCAL_RANK") == "0");
  CHECK(second.at("RANK") == "1");
  CHECK(second.at("CUDA_VISIBLE_DEVICES") == "GPU-ab");
  CHECK(as_map(worker_environment({}, {job}, place, 1, {})).at("CUDA_VISIBLE_DEVICES") == "1");
}

TEST_CASE("environment: --virtual-local-rank with too few devices says so") {
  spec::JobSpec job;
  job.virtual_local_rank = true;
  const Entries agent{"CUDA_VISIBLE_DEVICES=0,1"};
  const auto refused = worker_environment(agent, {job}, Placement{}, 2, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::Usage);
  CHECK(refused.error().text.starts_with(
      "local_rank 2 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1"));
}

TEST_CASE("environment: without a log folder the error file's name is empty, but there") {
  const auto have = as_map(worker_environment({}, {kAnyJob}, Placement{}, 0, {}));
  CHECK(have.at("TORCHELASTIC_ERROR_FILE").empty());
  CHECK_FALSE(have.contains("ELASTRUN_RUN_DIR"));
}

TEST_CASE("environment: a variable is found by its whole name") {
  const Entries entries{"AB=1", "A=2", "A=3"};
  CHECK(find_variable(entries, "A") == "2");
  CHECK(find_variable(entries, "B") == std::nullopt);
  CHECK(find_variable(entries, "AB") == "1");
}

}  // namespace
}  // namespace elastrun::workers
