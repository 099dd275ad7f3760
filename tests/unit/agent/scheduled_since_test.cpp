// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/goodput_monitor.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <stdlib.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

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

}  // namespace elastrun::agent
