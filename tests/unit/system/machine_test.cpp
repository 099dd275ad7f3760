// SPDX-License-Identifier: Apache-2.0
#include "system/machine.hpp"

#include "support/scratch.hpp"
#include "support/stub_worker.hpp"
#include "system/machine_points.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::system;

namespace {

constexpr TimePoint kStart{std::chrono::seconds(1000)};

using Folder = test::Scratch;

/// A process of a session, with so many ticks of CPU time.
std::string stat_of(int pid, int session, int ticks, int start = 77) {
  return std::to_string(pid) + " (python) S 1 " + std::to_string(session) + " " +
         std::to_string(session) + " 0 -1 0 10 0 1 0 " + std::to_string(ticks) +
         " 0 0 0 20 0 2 0 " + std::to_string(start) + " 1000 5 0\n";
}

Machine machine_of(const Folder& folder, const std::string& nvml = "libnone.so") {
  return Machine({folder.path + "/proc", folder.path + "/cgroup", nvml, folder.path + "/powercap"});
}

}  // namespace

TEST_CASE("machine: without anything to read there is nothing to tell") {
  const Folder folder;
  auto machine = machine_of(folder);
  const auto sample = machine.sample(kStart, {{0, 0, 4242}});
  CHECK_FALSE(sample.cpu);
  CHECK_FALSE(sample.memory);
  CHECK(sample.workers.empty());
  CHECK(sample.gpus.empty());
  CHECK(points_of(sample, kStart).empty());
}

TEST_CASE("machine: garbage in each file costs that file's values only") {
  const Folder folder;
  for (const char* file : {"stat", "meminfo", "vmstat", "loadavg", "diskstats", "net/dev",
                           "self/cgroup", "10/stat", "10/io", "uptime"}) {
    folder.add(std::string("proc/") + file, std::string(5000, '\xff') + "\n1 2 :::\n((((\n");
  }
  auto machine = machine_of(folder);
  CHECK(points_of(machine.sample(kStart, {{0, 0, 10}}), kStart).empty());
}

TEST_CASE("machine: what is a rate is told from the second look on") {
  const Folder folder;
  folder.add("proc/stat", "cpu  0 0 0 100 0 0 0 0\ncpu0 0 0 0 100\n");
  folder.add("proc/net/dev", "eth0: 1000 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  auto machine = machine_of(folder);
  CHECK_FALSE(machine.sample(kStart, {}).cpu_utilization);
  folder.add("proc/stat", "cpu  30 0 0 170 0 0 0 0\ncpu0 30 0 0 170\n");
  folder.add("proc/net/dev", "eth0: 5000 1 0 0 0 0 0 0 8000 0 0 0 0 0 0 0\n");
  const auto second = machine.sample(kStart + std::chrono::seconds(2), {});
  CHECK(second.cpu_utilization.value() == doctest::Approx(0.3));
  CHECK(second.received_per_s == 2000);
  CHECK(second.sent_per_s == 4000);
}

TEST_CASE("machine: a worker has what its session has, and its totals do not fall") {
  const Folder folder;
  folder.add("proc/10/stat", stat_of(10, 10, 100));
  folder.add("proc/11/stat", stat_of(11, 10, 900, 80));
  folder.add("proc/12/stat", stat_of(12, 12, 5000));
  folder.add("proc/10/task/10/status",
             "voluntary_ctxt_switches:\t3\n"
             "nonvoluntary_ctxt_switches:\t4\n");
  folder.add("proc/10/task/19/status", "voluntary_ctxt_switches:\t30\n");
  auto machine = machine_of(folder);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto first = machine.sample(kStart, {{3, 1, 10}});
  REQUIRE(first.workers.size() == 1);
  const auto& worker = first.workers[0];
  CHECK(worker.worker.rank == 3);
  CHECK(worker.use.user == 1000 / ticks);
  CHECK(worker.use.threads == 4);
  CHECK(worker.voluntary_switches == 33);
  CHECK(worker.involuntary_switches == 4);
  CHECK_FALSE(worker.io);
  CHECK_FALSE(worker.cores);
  std::filesystem::remove_all(folder.path + "/proc/11");  // nobody has waited for it
  const auto second = machine.sample(kStart + std::chrono::seconds(1), {{3, 1, 10}});
  CHECK(second.workers.at(0).use.user == 1000 / ticks);
  CHECK(second.workers.at(0).use.threads == 2);
  CHECK(second.workers.at(0).cores == 0.0);
  // Its number has been given to another process: that is not the same worker.
  folder.add("proc/10/stat", stat_of(10, 10, 7, 99));
  const auto third = machine.sample(kStart + std::chrono::seconds(2), {{3, 1, 10}});
  CHECK(third.workers.at(0).use.user == 7 / ticks);
}

TEST_CASE("machine: GPUs by the driver's library; one that does not answer has a number only") {
  const Folder folder;
  auto machine = machine_of(
      folder, std::filesystem::path(test::stub_worker()).parent_path() / "libfake_nvml.so");
  const auto gpus = machine.sample(kStart, {}).gpus;
  REQUIRE(gpus.size() == 3);
  CHECK(gpus[0].uuid == "GPU-aaaa-1");
  CHECK(gpus[0].name == "Fake H200");
  CHECK(gpus[0].utilization == 0.75);
  CHECK(gpus[0].memory_used == 4096);
  CHECK(gpus[0].memory_total == 8192);
  CHECK(gpus[0].power == 350.5);
  CHECK(gpus[0].energy == 12.345);
  CHECK(gpus[0].temperature == 61);
  CHECK(gpus[0].ecc_errors == 2);
  CHECK(gpus[0].throttled_by == std::vector<std::string>{"sw_power_cap", "hw_thermal"});
  CHECK(gpus[0].xid_errors == 0);
  CHECK(gpus[1].xid_errors == 1);
  CHECK(gpus[1].last_xid == 79);
  CHECK_FALSE(gpus[1].power);  // it is one that does not tell
  CHECK(gpus[2] == GpuUse{2, "", "", "555.1", {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, 0, 0});
}

TEST_CASE("machine: throttling that is none is not told") {
  CHECK(throttle_reasons(0x1 | 0x2 | 0x100).empty());
  CHECK(throttle_reasons(0x80) == std::vector<std::string>{"hw_power_brake"});
}

namespace {

/// Leads a session, as a worker does.
class SessionLeader {
 public:
  SessionLeader() {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      ::close(ready[0]), ::close(ready[1]);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte;
    CHECK(::read(ready[0], &byte, 1) == 0);  // its end says that it leads
    ::close(ready[0]);
  }
  ~SessionLeader() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  SessionLeader(const SessionLeader&) = delete;
  SessionLeader& operator=(const SessionLeader&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_CASE("machine: this very machine can be told, each series once") {
  const SessionLeader leader;
  Machine machine;
  const std::vector<WatchedWorker> workers = {{0, 0, leader.pid()}};
  machine.sample(kStart, workers);
  // The kernel counts time in ticks: without one in between there is no share of it.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto points = points_of(machine.sample(kStart + std::chrono::seconds(1), workers), kStart);
  std::set<std::string> series;
  for (const auto& point : points) {
    std::string name = point.spec->name;
    for (const auto& [key, value] : point.labels)
      name += " " + key + "=" + std::get<std::string>(value);
    CHECK_MESSAGE(series.insert(name).second, name);
    CHECK_MESSAGE(telemetry::is_name(point.spec->name), name);
    CHECK_FALSE(point.spec->help.empty());
  }
  for (const char* one : {"system.cpu.time cpu.mode=user", "system.cpu.utilization",
                          "system.memory.usage system.memory.state=used",
                          "process.memory.usage rank=0 local_rank=0"}) {
    CHECK_MESSAGE(series.contains(one), std::string(one));
  }
}

TEST_CASE("machine: processors and their memory tell their energy, each once, also when it wraps") {
  const Folder folder;
  const auto zone = [&](const std::string& id, const std::string& name, const char* energy) {
    folder.add("powercap/" + id + "/name", name + "\n");
    folder.add("powercap/" + id + "/energy_uj", energy);
    folder.add("powercap/" + id + "/max_energy_range_uj", "10000000\n");
  };
  zone("intel-rapl:0", "package-0", "9000000\n");
  zone("intel-rapl:0:0", "core", "5000000\n");  // part of the package
  zone("intel-rapl:0:1", "dram", "1000000\n");
  zone("intel-rapl:1", "psys", "9000000\n");            // all of them
  zone("intel-rapl-mmio:0", "package-0", "9000000\n");  // the same by another way
  zone("intel-rapl:2", "package-1", "not a number\n");
  auto machine = machine_of(folder);
  auto sample = machine.sample(kStart, {});
  REQUIRE(sample.energy.size() == 2);
  CHECK(sample.energy[0].joules == 0);
  zone("intel-rapl:0", "package-0", "2000000\n");
  zone("intel-rapl:0:1", "dram", "1500000\n");
  sample = machine.sample(kStart + std::chrono::seconds(10), {});
  CHECK(sample.energy[0].joules == doctest::Approx(3));
  CHECK(sample.energy[1].joules == doctest::Approx(0.5));
  const auto number = [](const std::vector<telemetry::Point>& points, const std::string& name) {
    double sum = 0;
    for (const auto& point : points) {
      if (point.spec->name == name) sum += std::get<double>(point.value);
    }
    return sum;
  };
  CHECK(number(points_of(sample, kStart), "hw.energy") == doctest::Approx(3.5));
}

TEST_CASE(
    "machine: the NVLink domain is that of a GPU whose fabric is complete, and not of zeros") {
  const auto library =
      (std::filesystem::path(test::stub_worker()).parent_path() / "libfake_nvml.so").string();
  CHECK(nvlink_domain(std::chrono::seconds(60), library).empty());
  ::setenv("FAKE_NVML_CLIQUE", "7", 1);
  CHECK(nvlink_domain(std::chrono::seconds(60), library) ==
        "nvlink-ab000000000000000000000000000001-7");
  // A driver that does not answer delays a job for the limit, and no longer.
  ::setenv("FAKE_NVML_CLIQUE", "hangs", 1);
  CHECK(nvlink_domain(std::chrono::milliseconds(10), library).empty());
  ::unsetenv("FAKE_NVML_CLIQUE");
  CHECK(nvlink_domain(std::chrono::seconds(60), "libnone.so").empty());
}
