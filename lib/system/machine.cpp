// SPDX-License-Identifier: Apache-2.0

#include "system/machine.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "system/oom_kills.hpp"

#include <algorithm>
#include <charconv>
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <unistd.h>

namespace elastrun::system {
namespace {

constexpr std::size_t kMostZones = 256;

std::optional<std::uint64_t> microjoules(const std::string& file) {
  const auto number = parse_int(trim(read_kernel_file(file)));
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

bool counts(std::string_view name) {
  // "core" and "uncore" are parts of the package, and would count twice.
  return name.starts_with("package") || name == "dram";
}

}  // namespace

std::vector<EnergyUse> CpuEnergy::sample() {
  std::vector<EnergyUse> all;
  std::error_code error;
  std::filesystem::directory_iterator zone(folder_, error);
  const std::filesystem::directory_iterator end;
  for (std::size_t i = 0; !error && zone != end && i < kMostZones; zone.increment(error), ++i) {
    const auto path = zone->path().string();
    const auto id = zone->path().filename().string();
    // "intel-rapl-mmio:0" is the same package by another way.
    if (!id.starts_with("intel-rapl:")) continue;
    const std::string name(trim(read_kernel_file(path + "/name")));
    // For root only since Linux 5.10, because its steps tell what runs (CVE-2020-8694): others get
    // no value.
    const auto now = counts(name) ? microjoules(path + "/energy_uj") : std::nullopt;
    if (!now) continue;
    const auto [counter, is_new] = counters_.try_emplace(id, Counter{*now});
    auto& [last, joules] = counter->second;
    const auto range = microjoules(path + "/max_energy_range_uj").value_or(0);
    // A counter that has wrapped has gone to the end of its range, and on from zero.
    const auto risen = *now >= last ? *now - last : range - std::min(range, last) + *now;
    joules += static_cast<double>(risen) * 1e-6;
    last = *now;
    all.push_back({id, name, joules});
  }
  std::ranges::sort(all, {}, &EnergyUse::id);
  return all;
}

namespace {

constexpr std::size_t kMostThreads = 512;  // of a worker whose switches are counted
constexpr std::size_t kMostDescriptors = 65536;

using Directory = std::unique_ptr<DIR, decltype([](DIR* directory) { ::closedir(directory); })>;

/// Calls `each` with the names in a directory, at most so many; how many there are. Nothing: it
/// cannot be read.
std::optional<std::uint64_t> each_entry(const std::string& path, std::size_t most,
                                        const std::function<void(const char*)>& each) {
  const Directory directory(::opendir(path.c_str()));
  if (!directory) return std::nullopt;
  std::uint64_t count = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    // A process can have any number of them, and this runs on each sample.
    if (++count > most) break;
    each(entry->d_name);
  }
  return count;
}

template <class T>
void raise(T& value, const T& before) {
  value = std::max(value, before);
}

/// A descendant that was never waited for takes its use with it; a total that falls would look like
/// a new start.
void never_fall(WorkerUse& use, const WorkerUse& before) {
  raise(use.use.user, before.use.user);
  raise(use.use.system, before.use.system);
  raise(use.use.minor_faults, before.use.minor_faults);
  raise(use.use.major_faults, before.use.major_faults);
  raise(use.voluntary_switches, before.voluntary_switches);
  raise(use.involuntary_switches, before.involuntary_switches);
  // /proc/PID/io may not be readable this time, say after a change of user id (proc_pid_io(5)).
  if (!use.io) use.io = before.io;
  if (use.io && before.io) {
    raise(use.io->in, before.io->in);
    raise(use.io->out, before.io->out);
  }
}

double per_second(std::uint64_t now, std::uint64_t before, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

/// How much all devices that were there before have carried since.
void add_rates(const std::vector<DeviceIo>& now, const std::vector<DeviceIo>& before,
               double seconds, double& in, double& out) {
  for (const auto& device : now) {
    const auto old = std::ranges::find(before, device.name, &DeviceIo::name);
    // A device that has just come has counted since it was plugged in or the machine started: its
    // total is not a rate of this interval.
    if (old == before.end()) continue;
    in += per_second(device.in, old->in, seconds);
    out += per_second(device.out, old->out, seconds);
  }
}

}  // namespace

Machine::Machine(MachineSources sources)
    : sources_(std::move(sources)),
      nvml_(sources_.nvml),
      energy_(sources_.powercap),
      ticks_(static_cast<double>(::sysconf(_SC_CLK_TCK))),
      page_(static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))) {}

void Machine::add_process(WorkerUse& use, pid_t pid) const {
  const std::string folder = sources_.proc + "/" + std::to_string(pid);
  const auto one = process_use_in(read_kernel_file(folder + "/stat"), ticks_, page_);
  if (!one) return;
  // The worker's alone: sample() takes 0 as the sign that it has gone, while its children may live
  // on.
  if (pid == use.worker.pid) use.use.start_ticks = one->start_ticks;
  use.use.user += one->user;
  use.use.system += one->system;
  use.use.minor_faults += one->minor_faults;
  use.use.major_faults += one->major_faults;
  use.use.threads += one->threads;
  use.use.virtual_bytes += one->virtual_bytes;
  use.use.resident_bytes += one->resident_bytes;
  // Last, since it needs the right to trace the process (ptrace(2)): without it the rest counts.
  const auto io = process_io_in(read_kernel_file(folder + "/io"));
  if (!io) return;
  if (!use.io) use.io.emplace();
  use.io->in += io->in;
  use.io->out += io->out;
}

void Machine::add_threads(WorkerUse& use) const {
  const std::string folder = sources_.proc + "/" + std::to_string(use.worker.pid);
  each_entry(folder + "/task", kMostThreads, [&](const char* thread) {
    const auto status = read_kernel_file(folder + "/task/" + thread + "/status");
    use.voluntary_switches += value_in(status, "voluntary_ctxt_switches").value_or(0);
    use.involuntary_switches += value_in(status, "nonvoluntary_ctxt_switches").value_or(0);
  });
  use.descriptors = each_entry(folder + "/fd", kMostDescriptors, [](const char*) {});
}

WorkerUse Machine::worker_use(const WatchedWorker& worker, const process::ProcessTable& all) const {
  WorkerUse use;
  use.worker = worker;
  for (const auto& process : all) {
    // By session, which a worker leads: children of children are in it, too, also when those
    // between have ended and they belong to init.
    if (process.session == worker.pid && !process.zombie()) add_process(use, process.pid);
  }
  add_threads(use);
  const double up = to_seconds(Duration(0));
  const auto uptime = read_kernel_file(sources_.proc + "/uptime");
  const auto now = parse_float(uptime.substr(0, uptime.find(' '))).value_or(up);
  use.uptime = std::max(0.0, now - static_cast<double>(use.use.start_ticks) / ticks_);
  return use;
}

CgroupUse Machine::read_cgroup() const {
  const auto own = memory_cgroup(read_kernel_file(sources_.proc + "/self/cgroup"));
  // These files are those of cgroup v2; the first version has other names and units.
  if (own && !own->unified) return {};
  // Inside a container the path may lie outside of what is mounted; then the root is ours.
  const auto read = [&](const char* file) {
    auto text = own ? read_kernel_file(sources_.cgroups + own->path + "/" + file) : std::string();
    return text.empty() ? read_kernel_file(sources_.cgroups + "/" + file) : text;
  };
  return cgroup_use_in({read("cpu.stat"), read("memory.current"), read("memory.max"),
                        read("memory.events"), read("io.stat")});
}

void Machine::read_node(MachineSample& sample) const {
  const auto read = [&](const char* file) { return read_kernel_file(sources_.proc + file); };
  sample.cpu = cpu_times_in(read("/stat"), ticks_);
  sample.memory = memory_in(read("/meminfo"));
  const auto vmstat = read("/vmstat");
  const auto faults = value_in(vmstat, "pgfault"), major = value_in(vmstat, "pgmajfault");
  sample.major_faults = major;
  // pgfault counts major faults as well.
  if (faults) sample.minor_faults = *faults - std::min(*faults, major.value_or(0));
  sample.oom_kills = value_in(vmstat, "oom_kill");
  const auto load = read("/loadavg");
  if (!load.empty()) sample.load = parse_float(load.substr(0, load.find(' ')));
  sample.disks = disks_in(read("/diskstats"));
  sample.networks = networks_in(read("/net/dev"));
  sample.cgroup = read_cgroup();
}

void Machine::compare(MachineSample& sample) {
  if (!before_) return;
  const auto& before = *before_;
  const double seconds = to_seconds(sample.at - before.at);
  if (sample.cpu && before.cpu) {
    const double all = sample.cpu->all() - before.cpu->all();
    const double idle =
        sample.cpu->idle + sample.cpu->iowait - before.cpu->idle - before.cpu->iowait;
    // iowait may fall (proc_stat(5)), so the share is kept within its bounds.
    if (all > 0) sample.cpu_utilization = std::clamp(1 - idle / all, 0.0, 1.0);
  }
  add_rates(sample.disks, before.disks, seconds, sample.disk_read_per_s, sample.disk_written_per_s);
  add_rates(sample.networks, before.networks, seconds, sample.received_per_s, sample.sent_per_s);
  for (auto& worker : sample.workers) {
    const auto old = std::ranges::find_if(before.workers, [&](const WorkerUse& one) {
      // The pid alone may be that of a later process; with the time of its start it is one process.
      return one.worker.pid == worker.worker.pid && one.use.start_ticks == worker.use.start_ticks;
    });
    if (old == before.workers.end()) continue;
    never_fall(worker, *old);
    const double used = worker.use.user + worker.use.system - old->use.user - old->use.system;
    if (seconds > 0) worker.cores = used / seconds;
    if (!worker.io || !old->io) continue;
    worker.read_per_s = per_second(worker.io->in, old->io->in, seconds);
    worker.written_per_s = per_second(worker.io->out, old->io->out, seconds);
  }
}

MachineSample Machine::sample(TimePoint now, const std::vector<WatchedWorker>& workers) {
  MachineSample sample;
  sample.at = now;
  read_node(sample);
  const auto all =
      // Once for all workers: it reads a file of every process of the machine.
      workers.empty() ? process::ProcessTable() : process::read_all_processes(sources_.proc);
  for (const auto& worker : workers) {
    auto use = worker_use(worker, all);
    if (use.use.start_ticks != 0) sample.workers.push_back(std::move(use));  // else it has gone
  }
  sample.gpus = nvml_.sample();
  sample.energy = energy_.sample();
  compare(sample);
  // After compare(), which keeps totals from falling: the next sample compares with those.
  before_ = sample;
  return sample;
}

std::uint64_t bytes_written(const process::ProcessTable& processes) {
  std::uint64_t sum = 0;
  for (const auto& process : processes) {
    // Not write_bytes, which many network file systems and tmpfs do not count.
    const auto io = read_kernel_file("/proc/" + std::to_string(process.pid) + "/io");
    sum += value_in(io, "wchar").value_or(0);
  }
  return sum;
}

}  // namespace elastrun::system
