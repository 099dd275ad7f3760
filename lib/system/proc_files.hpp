// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Parsers of proc(5) and cgroup v2 files. Pure; text that is not as the kernel writes it gives
/// nothing, or leaves out the line that is not.
namespace elastrun::system {

/// Seconds since boot, of all CPUs together.
struct CpuTimes {
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, interrupt = 0, steal = 0;
  int cpus = 0;
  double all() const { return user + nice + system + idle + iowait + interrupt + steal; }
  bool operator==(const CpuTimes&) const = default;
};
/// Reads /proc/stat; `ticks`: clock ticks of a second.
std::optional<CpuTimes> cpu_times_in(std::string_view stat, double ticks);

/// Bytes.
struct MemoryUse {
  std::uint64_t total = 0, free = 0, available = 0, buffers = 0, cached = 0;
  std::uint64_t used() const { return total - available; }
  bool operator==(const MemoryUse&) const = default;
};
/// Reads /proc/meminfo.
std::optional<MemoryUse> memory_in(std::string_view meminfo);

/// Bytes since boot in both directions: read and written, or received and sent.
struct DeviceIo {
  std::string name;
  std::uint64_t in = 0, out = 0, errors_in = 0, errors_out = 0;
  bool operator==(const DeviceIo&) const = default;
};
/// Reads /proc/diskstats: disks that are not made of others' parts: no partitions, no loop and RAM
/// devices, no device mapper.
std::vector<DeviceIo> disks_in(std::string_view diskstats);
/// Reads /proc/net/dev, without loopback.
std::vector<DeviceIo> networks_in(std::string_view dev);

/// The resources that a process has used, with its children that have ended and were waited for.
struct ProcessUse {
  double user = 0, system = 0;  // seconds
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t threads = 0, virtual_bytes = 0, resident_bytes = 0;  // of itself alone
  std::uint64_t start_ticks = 0;
  bool operator==(const ProcessUse&) const = default;
};
/// Reads /proc/PID/stat.
std::optional<ProcessUse> process_use_in(std::string_view stat, double ticks, std::uint64_t page);
/// `in` and `out` of /proc/PID/io: what came from and went to storage. Nothing without the right.
std::optional<DeviceIo> process_io_in(std::string_view io);

/// One line "key value" of a text such as /proc/vmstat, "key: value" or "key=value".
std::optional<std::uint64_t> value_in(std::string_view text, std::string_view key);

/// The numbers that cgroup v2 has for the group of this job, as far as its controllers are there.
struct CgroupUse {
  std::optional<double> cpu_user, cpu_system, throttled;  // seconds
  std::optional<std::uint64_t> periods, throttled_periods;
  std::optional<std::uint64_t> memory, memory_limit;  // bytes; no limit: none
  std::optional<std::uint64_t> oom_kills;
  std::optional<std::uint64_t> read, written;  // bytes
  bool operator==(const CgroupUse&) const = default;
};
struct CgroupTexts {
  std::string cpu_stat, memory_current, memory_max, memory_events, io_stat;
};
CgroupUse cgroup_use_in(const CgroupTexts& texts);

}  // namespace elastrun::system
