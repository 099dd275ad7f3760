// SPDX-License-Identifier: Apache-2.0
#include "system/machine.hpp"

#include "support/fake_files.hpp"
#include "support/scratch.hpp"
#include "support/stub_worker.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace elastrun::system {
namespace {

using Folder = test::Scratch;
using process::ExitStatus;

constexpr TimePoint kStart{std::chrono::seconds(1000)};

/// A process of a session, with so many ticks of CPU time.
std::string stat_of(int pid, int session, int ticks, int start = 77) {
  return std::to_string(pid) + " (python) S 1 " + std::to_string(session) + " " +
         std::to_string(session) + " 0 -1 0 10 0 1 0 " + std::to_string(ticks) +
         " 0 0 0 20 0 2 0 " + std::to_string(start) + " 1000 5 0\n";
}

Machine machine_of(const Folder& folder, const std::string& nvml = "libnone.so") {
  return Machine({folder.path + "/proc", folder.path + "/cgroup", nvml, folder.path + "/powercap"});
}

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

// Linux 6.1, shortened.
constexpr std::string_view kStat =
    "cpu  102 2 33 9000 44 5 6 7 8 9\ncpu0 51 1 16 4500 22 2 3 3 4 4\n"
    "cpu1 51 1 17 4500 22 3 3 4 4 5\nintr 5 0 9\nctxt 12345\nbtime 1763690000\n";
constexpr std::string_view kMeminfo =
    "MemTotal:       24684084 kB\nMemFree:        20000000 kB\nMemAvailable:   21000000 kB\n"
    "Buffers:          100000 kB\nCached:          1500000 kB\nSwapCached:            0 kB\n";
constexpr std::string_view kDisks =
    "   7       0 loop0 10 0 20 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    " 259       0 nvme0n1 1000 20 3000 400 500 60 7000 80 0 90 100 0 0 0 0 0 0\n"
    " 259       1 nvme0n1p1 900 20 2900 400 500 60 7000 80 0 90 100 0 0 0 0 0 0\n"
    " 253       0 dm-0 1 0 8 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    "   8       0 sda 1 0 8 0 2 0 16 0 0 0 0 0 0 0 0 0 0\n"
    "   8      16 sdaa 1 0 24 0 2 0 32 0 0 0 0\n   8       1 sda1 1 0 8 0 2 0 16 0 0 0 0\n";
constexpr std::string_view kNetworks =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
    "    lo:  999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0\n"
    "  eth0:123456 100 2 0 0 0 0 0 654321 90 3 0 0 0 0 0\n";
constexpr std::string_view kProcess =
    "4242 (py) thon (3)) S 1 4242 4242 0 -1 4194304 1500 20 7 1 250 50 30 20 20 0 9 0 8887 "
    "123456789 2048 18446744073709551615 1 1 0 0 0 0 0 0 0\n";

TEST_CASE("proc files: CPU time is that of all CPUs, and interrupts are one") {
  const auto times = cpu_times_in(kStat, 100);
  REQUIRE(times);
  CHECK(*times == CpuTimes{1.02, 0.02, 0.33, 90.0, 0.44, 0.11, 0.07, 2});
  CHECK_FALSE(cpu_times_in("", 100));
  CHECK_FALSE(cpu_times_in("cpu  1 2\n", 100));
  CHECK_FALSE(cpu_times_in("cpu x\nctxt 9\n", 100));
  CHECK(cpu_times_in("cpu  1 2 3 4", 1)->idle == 4);  // an old kernel, and no line end
}

TEST_CASE("proc files: memory in bytes") {
  const auto memory = memory_in(kMeminfo);
  REQUIRE(memory);
  CHECK(memory->total == 24684084ull << 10);
  CHECK(memory->used() == 3684084ull << 10);
  CHECK(memory->cached == 1500000ull << 10);  // not that of SwapCached
  CHECK_FALSE(memory_in("MemFree: 3 kB\n"));
  // What cannot be true does no harm.
  CHECK(memory_in("MemTotal: 10 kB\nMemAvailable: 99999999999999999999 kB")->used() == 10 << 10);
  CHECK(memory_in("MemTotal: 10 kB\nMemAvailable: 11 kB")->used() == 0);
}

TEST_CASE("proc files: disks, without what is made of them") {
  const auto disks = disks_in(kDisks);
  REQUIRE(disks.size() == 3);
  CHECK(disks[0] == DeviceIo{"nvme0n1", 3000 * 512, 7000 * 512});
  CHECK(disks[1] == DeviceIo{"sda", 8 * 512, 16 * 512});
  CHECK(disks[2] == DeviceIo{"sdaa", 24 * 512, 32 * 512});
  CHECK(disks_in("8 0\n8 0 sda 1 2 x\n\n").empty());
}

TEST_CASE("proc files: interfaces, without loopback") {
  const auto networks = networks_in(kNetworks);
  REQUIRE(networks.size() == 1);
  CHECK(networks[0] == DeviceIo{"eth0", 123456, 654321, 2, 3});
  CHECK(networks_in("eth0: 1 2 3\n:\nno colon\n").empty());
}

TEST_CASE("proc files: a process with an ugly name, and the children that it waited for") {
  const auto use = process_use_in(kProcess, 100, 4096);
  REQUIRE(use);
  CHECK(use->minor_faults == 1520);
  CHECK(use->major_faults == 8);
  CHECK(use->user == 2.8);
  CHECK(use->system == 0.7);
  CHECK(use->threads == 9);
  CHECK(use->start_ticks == 8887);
  CHECK(use->virtual_bytes == 123456789);
  CHECK(use->resident_bytes == 2048 * 4096);
}

TEST_CASE("proc files: text that is cut anywhere is understood or left out, never misread") {
  for (const auto text : {kStat, kMeminfo, kDisks, kNetworks, kProcess}) {
    for (std::size_t size = 0; size <= text.size(); ++size) {
      const auto part = text.substr(0, size);
      static_cast<void>(cpu_times_in(part, 100));
      static_cast<void>(memory_in(part));
      for (const auto& disk : disks_in(part)) CHECK(disk.in <= 3000 * 512);
      for (const auto& network : networks_in(part)) CHECK(network.in == 123456);
      if (const auto use = process_use_in(part, 100, 1)) CHECK(use->minor_faults == 1520);
    }
  }
}

TEST_CASE("proc files: I/O of a process is told only where it may be read") {
  CHECK(process_io_in("rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 8192\n"
                      "cancelled_write_bytes: 0\n") == DeviceIo{"", 4096, 8192});
  CHECK_FALSE(process_io_in(""));
}

TEST_CASE("proc files: a value is found by its whole key") {
  CHECK(value_in("pgfaults 1\npgfault 2\n", "pgfault") == 2);
  CHECK(value_in("a: 5", "a") == 5);
  CHECK(value_in("a=5", "a") == 5);
  CHECK(value_in("voluntary_ctxt_switches:\t12\n", "voluntary_ctxt_switches") == 12);
  CHECK_FALSE(value_in("a -1\n", "a"));
  CHECK_FALSE(value_in("a", "a"));
  CHECK_FALSE(value_in("a 99999999999999999999999", "a"));
}

TEST_CASE("proc files: a cgroup with all of its controllers, and one with none") {
  const auto use = cgroup_use_in(
      {"usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\n"
       "nr_throttled 4\nthrottled_usec 1500000\n",
       "1048576\n", "max\n", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n",
       "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n259:0 rbytes=1 wbytes=2\n"});
  CHECK(use.cpu_user == 3.0);
  CHECK(use.cpu_system == 2.0);
  CHECK(use.throttled == 1.5);
  CHECK(use.throttled_periods == 4);
  CHECK(use.memory == 1 << 20);
  CHECK_FALSE(use.memory_limit);
  CHECK(use.oom_kills == 2);
  CHECK(use.read == 101);
  CHECK(use.written == 202);
  CHECK(cgroup_use_in({}) == CgroupUse());
  CHECK(cgroup_use_in({"", "", "536870912\n", "", ""}).memory_limit == 512u << 20);
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
  MachineSources sources;
  sources.proc = files.root();
  sources.kernel_log = files.root() + "/kmsg";
  int kills = 7;
  const auto kill = [&](int pid) {
    std::ofstream(sources.proc + "/vmstat") << "oom_kill " << ++kills << "\n";
    std::ofstream(sources.kernel_log, std::ios::app)
        << "6,1,1,-;Out of memory: Killed process " << pid << " (python3) total-vm:1kB\n";
  };
  const auto is_named = [](const OomKills& deaths, int pid) {
    return deaths.diagnostics(ExitStatus::signaled(SIGKILL), pid, "")
        .contains("its log names the process");
  };
  kill(4711);
  OomKills deaths(sources);
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
  auto closed = sources;
  closed.kernel_log = files.root() + "/absent";
  OomKills without(closed);
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
