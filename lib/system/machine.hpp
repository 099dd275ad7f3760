// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"
#include "system/nvml.hpp"
#include "system/proc_files.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::system {

/// The energy that a processor package, or its memory, has drawn since it was first looked at.
struct EnergyUse {
  std::string id;    // "intel-rapl:0", "intel-rapl:0:2"
  std::string name;  // "package-0", "dram"
  double joules = 0;
};

/// The energy counters of the processors (RAPL; those of AMD have the same files), as powercap
/// shows them. The kernel lets only root read them unless the administrator has changed that: then
/// there is nothing to tell.
class CpuEnergy {
 public:
  explicit CpuEnergy(std::string folder) : folder_(std::move(folder)) {}
  /// Packages and memory, which is beside them; parts of packages (cores, uncore) and what holds
  /// all ("psys") would count twice. Counters wrap: to be asked every few minutes at least.
  std::vector<EnergyUse> sample();

 private:
  struct Counter {
    std::uint64_t last = 0;  // microjoules
    double joules = 0;
  };
  const std::string folder_;
  std::map<std::string, Counter> counters_;
};

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
  std::string cgroups = "/sys/fs/cgroup";
  std::string nvml = "libnvidia-ml.so.1";
  std::string powercap = "/sys/class/powercap";
};

/// Looks at the machine when it is asked, for one that asks at a time. Reads some dozen small
/// files, and the driver of GPUs, which may wait without end: for a thread.
class Machine {
 public:
  explicit Machine(MachineSources sources = {});
  MachineSample sample(TimePoint now, const std::vector<WatchedWorker>& workers);

 private:
  WorkerUse worker_use(const WatchedWorker& worker, const process::ProcessTable& all) const;
  void add_process(WorkerUse& use, pid_t pid) const;
  void add_threads(WorkerUse& use) const;
  void read_node(MachineSample& sample) const;
  CgroupUse read_cgroup() const;
  void compare(MachineSample& sample);

  const MachineSources sources_;
  Nvml nvml_;
  CpuEnergy energy_;
  const double ticks_;
  const std::uint64_t page_;
  std::optional<MachineSample> before_;
};

/// Bytes that these processes have written by system calls, to files of any kind; 0 where they may
/// not be traced (ptrace(2)).
std::uint64_t bytes_written(const process::ProcessTable& processes);

}  // namespace elastrun::system
