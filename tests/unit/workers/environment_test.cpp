// SPDX-License-Identifier: Apache-2.0
#include "workers/environment.hpp"

#include <doctest/doctest.h>
#include <map>

using Entries = std::vector<std::string>;

namespace elastrun::workers {
namespace {

std::map<std::string, std::string> variables(const Entries& agent, int local_rank = 0,
                                             const spec::JobSpec& job = {}) {
  const rendezvous::Round round;
  const rendezvous::Node node;
  const auto entries = worker_environment(
      agent, {.job = job, .round = round, .node = node, .local_rank = local_rank});
  REQUIRE(entries.has_value());
  std::map<std::string, std::string> map;
  for (const auto& entry : *entries) {
    const auto at = entry.find('=');
    CHECK_MESSAGE(map.emplace(entry.substr(0, at), entry.substr(at + 1)).second,
                  "twice: " << entry);
  }
  return map;
}

TEST_CASE("environment: with --goodput auto workers are told, and never what an agent was told") {
  spec::JobSpec job;
  const Entries outer{"ELASTRUN_GOODPUT=auto/17"};
  CHECK_FALSE(variables(outer, 0, job).contains("ELASTRUN_GOODPUT"));
  job.goodput = spec::Goodput::Auto;
  CHECK(variables(outer, 0, job).at("ELASTRUN_GOODPUT") == "auto");
}

TEST_CASE("environment: each worker has a socket file for torch's control plane") {
  const Entries agent{"TORCH_WORKER_SERVER_SOCKET=/run/job/${local_rank}.sock"};
  for (const int rank : {0, 3}) {
    const auto have = variables(agent, rank);
    CHECK(have.at("TORCH_WORKER_SERVER_SOCKET") == "/run/job/" + std::to_string(rank) + ".sock");
  }
  CHECK_FALSE(variables({}).contains("TORCH_WORKER_SERVER_SOCKET"));
}

TEST_CASE("environment: the interpreter that called the agent is not that of all below") {
  const std::string caller = "ELASTRUN_CALLED_BY=/usr/bin/python3";
  const auto environment = [&](const std::string& interpreter) {
    return variables({"PYTHON_EXEC=" + interpreter, caller});
  };
  CHECK_FALSE(environment("/usr/bin/python3").contains("PYTHON_EXEC"));
  CHECK_FALSE(environment("/usr/bin/python3").contains("ELASTRUN_CALLED_BY"));
  CHECK(environment("/opt/python3").at("PYTHON_EXEC") == "/opt/python3");
}

TEST_CASE("environment: variables of the job lie over the agent's and under the contract") {
  spec::JobSpec job;
  job.worker_env = {{"HOME", "/job"}, {"RANK", "99"}, {"NEW", "1"}};
  const auto have = variables({"HOME=/root"}, 0, job);
  CHECK(have.at("HOME") == "/job");
  CHECK(have.at("RANK") == "0");
  CHECK(have.at("NEW") == "1");
}

TEST_CASE("command: only the local rank and $$ are filled in, as Python's safe_substitute does") {
  const std::pair<const char*, const char*> table[] = {
      {"$local_rank", "3"},
      {"x${local_rank}y", "x3y"},
      {"$$", "$"},
      {"$$local_rank", "$local_rank"},
      {"$x", "$x"},
      {"${x}", "${x}"},
      {"$1", "$1"},
      {"$", "$"},
      {"$LOCAL_RANK", "$LOCAL_RANK"},
      {"$local_rankx", "$local_rankx"},
      {"${local_rank", "${local_rank"},
      {"", ""},
      {"$local_rank$local_rank", "33"},
      {"$$$local_rank", "$3"},
      {"${local_rank }", "${local_rank }"},
      {"a$", "a$"},
      {"${}", "${}"},
  };
  for (const auto& [text, wanted] : table) CHECK(fill_local_rank(text, 3) == wanted);
}

}  // namespace
}  // namespace elastrun::workers
