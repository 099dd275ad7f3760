// SPDX-License-Identifier: Apache-2.0
#include "system/machine.hpp"

#include "support/fake_files.hpp"
#include "support/scratch.hpp"
#include "support/stub_worker.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <map>
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

/// In the folder "cgroup", where version 2 is mounted, and version 1 for memory below it.
std::optional<process::CgroupPlace> memory_cgroup(const Folder& folder, std::string_view own) {
  const auto mounts = "30 23 0:26 / " + folder.path +
                      "/cgroup rw - cgroup2 cgroup2 rw\n31 23 0:27 / " + folder.path +
                      "/cgroup/memory rw - cgroup cgroup rw,memory\n";
  return process::cgroup_place(own, mounts, "memory");
}

Machine machine_of(const Folder& folder, const std::string& nvml = "libnone.so",
                   std::string_view own_cgroup = "0::/\n") {
  return Machine(
      {folder.path + "/proc", memory_cgroup(folder, own_cgroup), nvml, folder.path + "/powercap"});
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
                           "10/stat", "10/io", "uptime"}) {
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
  CHECK(gpus[1].throttled_by == std::vector<std::string>{"hw_power_brake"});
  CHECK_FALSE(gpus[1].power);  // it is one that does not tell
  GpuUse silent;
  silent.index = 2;
  silent.driver = "555.1";
  CHECK(gpus[2] == silent);
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

/// What the machine and its process 4242, a worker, look like by these files.
MachineSample look_at(const std::map<std::string, std::string_view>& files) {
  const Folder folder;
  for (const auto& [name, text] : files) folder.add(name, std::string(text));
  return machine_of(folder).sample(kStart, {{0, 0, 4242}});
}

TEST_CASE("proc files: CPU time is that of all CPUs, and interrupts are one") {
  const auto times = [](std::string_view stat) { return look_at({{"proc/stat", stat}}).cpu; };
  CHECK(times(kStat) == CpuTimes{1.02, 0.02, 0.33, 90.0, 0.44, 0.11, 0.07, 2});
  for (const char* text : {"", "cpu  1 2\n", "cpu x\nctxt 9\n"}) CHECK_FALSE(times(text));
  CHECK(times("cpu  1 2 3 400")->idle == 4);  // an old kernel, and no line end
}

TEST_CASE("proc files: memory in bytes") {
  const auto in = [](std::string_view text) { return look_at({{"proc/meminfo", text}}).memory; };
  const auto memory = in(kMeminfo);
  REQUIRE(memory);
  CHECK(memory->total == 24684084ull << 10);
  CHECK(memory->used() == 3684084ull << 10);
  CHECK(memory->cached == 1500000ull << 10);  // not that of SwapCached
  CHECK_FALSE(in("MemFree: 3 kB\n"));
  // What cannot be true does no harm.
  CHECK(in("MemTotal: 10 kB\nMemAvailable: 99999999999999999999 kB")->used() == 10 << 10);
  CHECK(in("MemTotal: 10 kB\nMemAvailable: 11 kB")->used() == 0);
}

TEST_CASE("proc files: disks, without what is made of them; interfaces, without loopback") {
  CHECK(look_at({{"proc/diskstats", kDisks}}).disks ==
        std::vector<DeviceIo>{{"nvme0n1", 3000 * 512, 7000 * 512},
                              {"sda", 8 * 512, 16 * 512},
                              {"sdaa", 24 * 512, 32 * 512}});
  CHECK(look_at({{"proc/diskstats", "8 0\n8 0 sda 1 2 x\n\n"}}).disks.empty());
  CHECK(look_at({{"proc/net/dev", kNetworks}}).networks ==
        std::vector<DeviceIo>{{"eth0", 123456, 654321, 2, 3}});
  CHECK(look_at({{"proc/net/dev", "eth0: 1 2 3\n:\nno colon\n"}}).networks.empty());
}

TEST_CASE("proc files: a process with an ugly name, and the children that it waited for") {
  const auto workers = look_at({{"proc/4242/stat", kProcess}}).workers;
  REQUIRE(workers.size() == 1);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  CHECK(workers[0].use == ProcessUse{2.8, 0.7, 1520, 8, 9, 123456789, 2048 * page, 8887});
  // I/O is told only where it may be read.
  CHECK_FALSE(workers[0].io);
  const auto told = look_at({{"proc/4242/stat", kProcess},
                             {"proc/4242/io",
                              "rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 8192\n"
                              "cancelled_write_bytes: 0\n"}});
  CHECK(told.workers.at(0).io == DeviceIo{"", 4096, 8192});
}

TEST_CASE("proc files: text that is cut anywhere is understood or left out, never misread") {
  for (const auto& [name, text] :
       std::map<std::string, std::string_view>{{"proc/stat", kStat},
                                               {"proc/meminfo", kMeminfo},
                                               {"proc/diskstats", kDisks},
                                               {"proc/net/dev", kNetworks},
                                               {"proc/4242/stat", kProcess}}) {
    for (std::size_t size = 0; size <= text.size(); ++size) {
      const auto sample = look_at({{name, text.substr(0, size)}});
      for (const auto& disk : sample.disks) CHECK(disk.in <= 3000 * 512);
      for (const auto& network : sample.networks) CHECK(network.in == 123456);
      for (const auto& worker : sample.workers) CHECK(worker.use.minor_faults == 1520);
    }
  }
}

TEST_CASE("proc files: a value is found by its whole key") {
  const auto faults = [](const char* text) {
    return look_at({{"proc/vmstat", text}}).minor_faults;
  };
  CHECK(faults("pgfaults 1\npgfault 2\n") == 2);
  CHECK(faults("pgfault 5\npgmajfault 2") == 3);
  for (const char* text : {"pgfault -1\n", "pgfault", "pgfault 99999999999999999999999"}) {
    CHECK_FALSE(faults(text));
  }
}

TEST_CASE("proc files: a cgroup with all of its controllers, and one with none") {
  const auto use =
      look_at({{"cgroup/cpu.stat",
                "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\n"
                "nr_throttled 4\nthrottled_usec 1500000\n"},
               {"cgroup/memory.current", "1048576\n"},
               {"cgroup/memory.max", "max\n"},
               {"cgroup/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n"},
               {"cgroup/io.stat",
                "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n"
                "259:0 rbytes=1 wbytes=2\n"}})
          .cgroup;
  CHECK(use == CgroupUse{3.0, 2.0, 1.5, 10, 4, 1 << 20, {}, 2, 101, 202});
  CHECK(look_at({}).cgroup == CgroupUse());
  CHECK(look_at({{"cgroup/memory.max", "536870912\n"}}).cgroup.memory_limit == 512u << 20);
}

TEST_CASE("proc files: the memory cgroup is found in both versions") {
  const auto usage = [](const char* own, const std::string& place) {
    const Folder folder;
    folder.add("cgroup" + place + "/memory.current", "7\n");
    return machine_of(folder, "libnone.so", own).sample(kStart, {}).cgroup.memory;
  };
  CHECK(usage("0::/user.slice/job\n", "/user.slice/job") == 7);
  CHECK(usage("0::/user.slice/job\n", "") == 7);  // in a container
  CHECK_FALSE(usage("0::/user.slice/job\n", "/other"));
  CHECK(usage("0::/\n", "") == 7);
  CHECK_FALSE(usage("nonsense\n1:cpu\n", ""));
  // What version 1 has for the job is under other names: it tells of OOM kills alone.
  CHECK_FALSE(usage("9:cpu,cpuacct:/\n4:memory:/slurm/job:7\n0::/\n", ""));
  const Folder folder;
  OomKills deaths(
      {.proc = folder.path + "/proc",
       .cgroup = memory_cgroup(folder, "9:cpu,cpuacct:/\n4:memory:/slurm/job:7\n0::/\n")});
  const std::string control = "cgroup/memory/slurm/job:7/memory.oom_control";
  folder.add(control, "oom_kill_disable 0\noom_kill 1\n");
  deaths.begin();
  folder.add(control, "oom_kill_disable 0\noom_kill 2\n");
  CHECK(deaths.diagnostics(ExitStatus::signaled(SIGKILL), 4711, "")
            .contains("the memory limit of its cgroup"));
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
  std::ofstream(sources.kernel_log, std::ios::app)
      << "6,2,2,-;audit: Killed process 4714 (python3)\n"
      << "6,3,3,-;Memory cgroup out of memory: Killed process 4713 (python3) total-vm:1kB\n";
  std::ofstream(sources.proc + "/vmstat") << "oom_kill " << ++kills << "\n";
  CHECK(is_named(deaths, 4713));
  CHECK(is_named(deaths, 4712));
  for (const int other : {471, 4711, 4714}) CHECK_FALSE(is_named(deaths, other));
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
