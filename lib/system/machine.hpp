// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/cgroup.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"
#include "telemetry/registry.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::system {

/// One NVIDIA GPU at one moment. What the driver does not tell is empty.
struct GpuUse {
  int index = 0;
  std::string uuid, name, driver;
  std::string pci_address;                         // "0000:17:00.0", as in /sys/bus/pci/devices
  std::optional<double> utilization, memory_busy;  // 0 to 1, of the last moments
  std::optional<std::uint64_t> memory_used, memory_total;
  std::optional<double> power, power_limit;  // watts
  std::optional<double> energy;              // joules since the driver was loaded
  std::optional<double> temperature;         // degrees Celsius
  std::optional<double> sm_clock;            // hertz
  std::optional<std::uint64_t> ecc_errors;   // uncorrected, since the driver was loaded
  std::vector<std::string> throttled_by;     // "power_cap", "hw_thermal", ...; idle is none
  std::uint64_t xid_errors = 0;              // since we watch
  std::uint64_t last_xid = 0;                // its number, 0: none so far
  bool operator==(const GpuUse&) const = default;
};

/// The driver's library, loaded when it is first asked. Its calls may wait without end for a GPU
/// that has fallen off the bus: for a thread.
class Nvml {
 public:
  explicit Nvml(std::string library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Empty without a driver, which the next call looks for again.
  std::vector<GpuUse> sample();
  /// What is known of them without a look at what they do. Nothing without a driver that answers.
  std::optional<std::vector<GpuUse>> known();
  /// See nvlink_domain() below; without a time limit.
  std::string nvlink_domain();

 private:
  struct Library;
  bool is_open();

  std::string name_;
  std::unique_ptr<Library> library_;
};

/// "nvlink-CLUSTER-CLIQUE": which nodes reach each other's GPUs by NVLink, as of a rack of GB200;
/// nvidia-smi -q calls both ClusterUUID and CliqueId. Empty: these GPUs reach no other node's,
/// there are none, or the driver has not answered within `limit`, of which a warning tells.
std::string nvlink_domain(Duration limit, const std::string& library = "libnvidia-ml.so.1");

/// Seconds since boot, of all CPUs together.
struct CpuTimes {
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, interrupt = 0, steal = 0;
  int cpus = 0;
  double all() const { return user + nice + system + idle + iowait + interrupt + steal; }
  bool operator==(const CpuTimes&) const = default;
};
/// Bytes.
struct MemoryUse {
  std::uint64_t total = 0, free = 0, available = 0, buffers = 0, cached = 0;
  std::uint64_t used() const { return total - available; }
  bool operator==(const MemoryUse&) const = default;
};

/// Bytes since boot in both directions: read and written, or received and sent.
struct DeviceIo {
  std::string name;
  std::uint64_t in = 0, out = 0, errors_in = 0, errors_out = 0;
  bool operator==(const DeviceIo&) const = default;
};
/// The resources that a process has used, with its children that have ended and were waited for.
struct ProcessUse {
  double user = 0, system = 0;  // seconds
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t threads = 0, virtual_bytes = 0, resident_bytes = 0;  // of itself alone
  std::uint64_t start_ticks = 0;
  bool operator==(const ProcessUse&) const = default;
};
/// The numbers that cgroup v2 has for the group of this job, as far as its controllers are there.
struct CgroupUse {
  std::optional<double> cpu_user, cpu_system, throttled;  // seconds
  std::optional<std::uint64_t> periods, throttled_periods;
  std::optional<std::uint64_t> memory, memory_limit;  // bytes; no limit: none
  std::optional<std::uint64_t> oom_kills;
  std::optional<std::uint64_t> read, written;  // bytes
  bool operator==(const CgroupUse&) const = default;
};
/// The energy that a processor package, or its memory, has drawn since it was first looked at.
struct EnergyUse {
  std::string id;    // "intel-rapl:0", "intel-rapl:0:2"
  std::string name;  // "package-0", "dram"
  double joules = 0;
};

/// The last value of each counter, in microjoules, and the joules that it has counted so far. The
/// kernel lets only root read them unless the administrator has changed that: then there are none.
using EnergyCounters = std::map<std::string, std::pair<std::uint64_t, double>>;

struct WatchedWorker {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
};

/// The resources that a worker has used, with the processes of its session. Totals never fall as
/// long as it is the same process.
struct WorkerUse {
  WatchedWorker worker;
  ProcessUse use;              // threads and memory: of all that live
  std::optional<DeviceIo> io;  // `in` read from storage, `out` written
  std::uint64_t voluntary_switches = 0, involuntary_switches = 0;  // of the agent's threads
  std::optional<std::uint64_t> descriptors;                        // of the agent
  double uptime = 0;                                               // seconds
  std::optional<double> cores;  // CPU seconds per second since the sample before
  double read_per_s = 0, written_per_s = 0;
};

/// The machine and the workers of this node at one moment. What cannot be read is empty.
struct MachineSample {
  TimePoint at;
  std::optional<CpuTimes> cpu;
  std::optional<double> cpu_utilization;  // 0 to 1, since the sample before
  std::optional<MemoryUse> memory;
  std::optional<std::uint64_t> minor_faults, major_faults, oom_kills;
  std::optional<double> load;  // of one minute
  std::vector<DeviceIo> disks, networks;
  double disk_read_per_s = 0, disk_written_per_s = 0, received_per_s = 0, sent_per_s = 0;
  CgroupUse cgroup;
  std::vector<WorkerUse> workers;
  std::vector<GpuUse> gpus;
  std::vector<EnergyUse> energy;  // of processors and memory
};

/// The places to look at; only tests change them.
struct MachineSources {
  std::string proc = "/proc";
  std::optional<process::CgroupPlace> cgroup = process::own_cgroup("memory");
  std::string nvml = "libnvidia-ml.so.1";
  std::string powercap = "/sys/class/powercap";
  std::string kernel_log = "/dev/kmsg";
};

/// Looks at the machine when it is asked, for one that asks at a time. Reads some dozen small
/// files, and the driver of GPUs, which may wait without end: for a thread.
class Machine {
 public:
  explicit Machine(MachineSources sources = {})
      : sources_(std::move(sources)), nvml_(sources_.nvml) {}
  MachineSample sample(TimePoint now, const std::vector<WatchedWorker>& workers);

 private:
  const MachineSources sources_;
  Nvml nvml_;
  EnergyCounters energy_;
  std::optional<MachineSample> before_;
};

/// Bytes that these processes have written by system calls, to files of any kind; 0 where they may
/// not be traced (ptrace(2)).
std::uint64_t bytes_written(const process::ProcessTable& processes);

/// A sample as points of a snapshot, under the names of OpenTelemetry's semantic conventions where
/// there is one (system.*, process.*, hw.*), else under elastrun.cgroup.*. elastrun-telemetry(7)
/// lists them. Counters count from `start`. Pure.
std::vector<telemetry::Point> points_of(const MachineSample& sample, TimePoint start);
/// Lists the prefixes of their names.
std::vector<std::string> machine_point_names();

/// Tells whether a worker died because memory ran out, by comparing the kernel's counters before
/// and after, and by the victims that its log names where we may read it: as many of the last ones
/// as were counted meanwhile. Nothing is watched: two or three small files are read at `begin`, and
/// the same again when a death looks like it. The log is not opened before: that takes as long as
/// starting a process where it is large.
class OomKills {
 public:
  explicit OomKills(MachineSources sources = {}) : sources_(std::move(sources)) {}

  /// An attempt starts now: what was counted or logged before is not its doing, and may be about
  /// another process that had the same number.
  void begin() { before_ = count(); }
  /// Returns a sentence about what the kernel or the program says of it; or empty. `error_text`:
  /// the exception's text, if there is one.
  std::string diagnostics(const process::ExitStatus& status, pid_t process,
                          std::string_view error_text) const;

 private:
  /// How many processes the kernel has killed because memory ran out so far; empty where not told.
  struct Counts {
    std::optional<std::uint64_t> cgroup;   // in our memory cgroup and below
    std::optional<std::uint64_t> machine;  // everywhere: /proc/vmstat
  };
  Counts count() const;

  const MachineSources sources_;
  Counts before_;
};

}  // namespace elastrun::system
