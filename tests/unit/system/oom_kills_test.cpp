// SPDX-License-Identifier: Apache-2.0
#include "system/oom_kills.hpp"

#include "support/fake_files.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <fstream>

namespace elastrun::system {
namespace {

using process::ExitStatus;

TEST_CASE("OOM kills: a counter is found by its whole name") {
  constexpr std::string_view kEvents =
      "low 0\nhigh 3\nmax 12\noom 2\noom_kill 5\noom_group_kill 1\n";
  CHECK(counter_in(kEvents, "oom_kill") == 5);
  CHECK(counter_in(kEvents, "oom") == 2);
  CHECK(counter_in(kEvents, "kill") == std::nullopt);
  CHECK(counter_in("oom_kill", "oom_kill") == std::nullopt);
  CHECK(counter_in("oom_kill x\noom_kill 7", "oom_kill") == 7);
  CHECK(counter_in("", "oom_kill") == std::nullopt);
  CHECK(counter_in("oom_kill 99999999999999999999999\n", "oom_kill") == std::nullopt);
}

TEST_CASE("OOM kills: the memory cgroup is found in both versions") {
  const auto v2 = memory_cgroup("0::/user.slice/job\n");
  REQUIRE(v2.has_value());
  CHECK(v2->path == "/user.slice/job");
  CHECK(v2->unified);
  const auto v1 = memory_cgroup("9:cpu,cpuacct:/\n4:memory:/slurm/job:7\n0::/\n");
  REQUIRE(v1.has_value());
  CHECK(v1->path == "/slurm/job:7");
  CHECK_FALSE(v1->unified);
  CHECK(memory_cgroup("0::/\n")->path.empty());
  CHECK_FALSE(memory_cgroup("").has_value());
  CHECK_FALSE(memory_cgroup("nonsense\n1:cpu\n").has_value());
}

TEST_CASE("OOM kills: the kernel's log names its victims by pid") {
  constexpr std::string_view kLog =
      "6,1,1,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB\n"
      "6,2,2,-;Out of memory: Killed process 4712 (python3) total-vm:1kB\n"
      "6,3,3,-;audit: Killed process 4713 (python3)\n";
  CHECK(log_names_victim(kLog, 4711, 2));
  CHECK_FALSE(log_names_victim(kLog, 4711, 1));
  CHECK(log_names_victim(kLog, 4712, 1));
  CHECK_FALSE(log_names_victim(kLog, 4712, 0));
  CHECK_FALSE(log_names_victim(kLog, 471, 9));
  CHECK_FALSE(log_names_victim(kLog, 4713, 9));
  CHECK_FALSE(log_names_victim("", 4711, 9));
}

TEST_CASE("OOM kills: an old record is about another process that had the same number") {
  const test::FakeFiles files;
  const auto path = files.root() + "/kmsg";
  std::uint64_t kills = 7;
  const auto count = [&] { return OomCounts{.cgroup = {}, .machine = kills}; };
  const auto kill = [&](int pid) {
    kills += 1;
    std::ofstream(path, std::ios::app)
        << "6,1,1,-;Out of memory: Killed process " << pid << " (python3) total-vm:1kB\n";
  };
  const auto is_named = [](const OomKills& deaths, int pid) {
    return deaths.diagnostics(ExitStatus::signaled(SIGKILL), pid, "")
        .contains("its log names the process");
  };
  kill(4711);
  OomKills deaths(count, path);
  deaths.begin();
  CHECK_FALSE(is_named(deaths, 4711));
  kill(4712);
  CHECK(is_named(deaths, 4712));
  CHECK_FALSE(is_named(deaths, 4711));
  kill(4713);
  CHECK(is_named(deaths, 4713));
  CHECK(is_named(deaths, 4712));
  deaths.begin();
  CHECK_FALSE(is_named(deaths, 4712));
  OomKills without(count, files.root() + "/absent");
  without.begin();
  kill(4711);
  CHECK_FALSE(is_named(without, 4711));
  CHECK(without.diagnostics(ExitStatus::signaled(SIGKILL), 4711, "").contains("memory ran out"));
}

TEST_CASE("OOM kills: what the program says of memory is diagnostics whatever its exit code") {
  OomKills deaths;
  deaths.begin();
  const auto failed = ExitStatus::exited(1);
  CHECK(deaths.diagnostics(failed, 1, "torch.OutOfMemoryError: CUDA out of memory. Tried") ==
        "the GPU ran out of memory");
  CHECK(deaths.diagnostics(failed, 1, "MemoryError").starts_with("it could not get memory"));
  CHECK(
      deaths.diagnostics(failed, 1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you")
          .starts_with("it could not get memory"));
  CHECK(deaths.diagnostics(failed, 1, "ValueError: boom").empty());
  CHECK(deaths.diagnostics(ExitStatus::signaled(SIGSEGV), 1, "").empty());
}

}  // namespace
}  // namespace elastrun::system
