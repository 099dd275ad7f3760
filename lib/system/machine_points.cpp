// SPDX-License-Identifier: Apache-2.0
#include "system/machine_points.hpp"

#include <string>
#include <utility>

namespace elastrun::system {
namespace {

using telemetry::Attribute;
using telemetry::Kind;
using Labels = std::vector<Attribute>;

std::string text(std::uint64_t number) {
  return std::to_string(number);
}

/// Collects points; those of one name have one Spec.
class Points {
 public:
  Points(std::vector<telemetry::Point>& all, TimePoint start) : all_(all), start_(start) {}

  /// Names the metric that add() adds to from now on.
  void metric(Kind kind, const char* name, const char* unit, const char* help) {
    kind_ = kind;
    spec_ = std::make_shared<const telemetry::Spec>(
        telemetry::Spec{.name = name, .unit = unit, .help = help});
  }
  void add(double value, Labels labels = {}) { put(value, std::move(labels)); }
  void add(std::uint64_t value, Labels labels = {}) {
    put(static_cast<std::int64_t>(std::min<std::uint64_t>(value, INT64_MAX)), std::move(labels));
  }
  template <class T>
  void add(const std::optional<T>& value, Labels labels = {}) {
    if (value) add(*value, std::move(labels));
  }

 private:
  void put(telemetry::Value value, Labels labels) {
    telemetry::Point point;
    point.spec = spec_;
    point.kind = kind_;
    point.labels = std::move(labels);
    point.value = std::move(value);
    point.start = start_;
    all_.push_back(std::move(point));
  }
  std::vector<telemetry::Point>& all_;
  const TimePoint start_;
  Kind kind_ = Kind::Gauge;
  std::shared_ptr<const telemetry::Spec> spec_;
};

void add_node(Points& points, const MachineSample& sample) {
  if (const auto& cpu = sample.cpu) {
    points.metric(Kind::Counter, "system.cpu.time", "s", "Seconds of all CPUs by what they did.");
    const std::pair<const char*, double> modes[] = {
        {"user", cpu->user},  {"nice", cpu->nice},     {"system", cpu->system},
        {"idle", cpu->idle},  {"iowait", cpu->iowait}, {"interrupt", cpu->interrupt},
        {"steal", cpu->steal}};
    for (const auto& [mode, seconds] : modes) points.add(seconds, {{"cpu.mode", mode}});
    points.metric(Kind::Gauge, "system.cpu.logical.count", "{cpu}", "CPUs that are on.");
    points.add(static_cast<std::uint64_t>(cpu->cpus));
  }
  points.metric(Kind::Gauge, "system.cpu.utilization", "1",
                "Share of CPU time that was used since the collection before.");
  points.add(sample.cpu_utilization);
  points.metric(Kind::Gauge, "system.cpu.load_average.1m", "{thread}",
                "Threads that ran or wanted to, over a minute.");
  points.add(sample.load);
  if (const auto& memory = sample.memory) {
    points.metric(Kind::Gauge, "system.memory.usage", "By", "Memory by what it is used for.");
    const auto cache = memory->cached + memory->buffers;
    // Bounded, because it is taken from an unsigned number.
    const auto given = std::min(memory->total, memory->free + cache);
    points.add(memory->total - given, {{"system.memory.state", "used"}});
    points.add(memory->free, {{"system.memory.state", "free"}});
    points.add(cache, {{"system.memory.state", "cached"}});
    points.metric(Kind::Gauge, "system.memory.limit", "By", "Memory of the machine.");
    points.add(memory->total);
    points.metric(Kind::Gauge, "system.memory.linux.available", "By",
                  "Memory that programs could still get.");
    points.add(memory->available);
  }
  points.metric(Kind::Counter, "system.paging.faults", "{fault}", "Page faults.");
  points.add(sample.major_faults, {{"system.paging.fault.type", "major"}});
  points.add(sample.minor_faults, {{"system.paging.fault.type", "minor"}});
  points.metric(Kind::Counter, "system.linux.oom_kills", "{process}",
                "Processes that the kernel killed because memory ran out.");
  points.add(sample.oom_kills);
}

void add_devices(Points& points, const MachineSample& sample) {
  points.metric(Kind::Counter, "system.disk.io", "By", "Bytes read from and written to disks.");
  for (const auto& disk : sample.disks) {
    points.add(disk.in, {{"system.device", disk.name}, {"disk.io.direction", "read"}});
    points.add(disk.out, {{"system.device", disk.name}, {"disk.io.direction", "write"}});
  }
  points.metric(Kind::Counter, "system.network.io", "By", "Bytes received and sent.");
  const auto both = [&](const DeviceIo& network, std::uint64_t in, std::uint64_t out) {
    const Attribute name("network.interface.name", network.name);
    points.add(in, {name, {"network.io.direction", "receive"}});
    points.add(out, {name, {"network.io.direction", "transmit"}});
  };
  for (const auto& one : sample.networks) both(one, one.in, one.out);
  points.metric(Kind::Counter, "system.network.errors", "{error}", "Errors of interfaces.");
  for (const auto& one : sample.networks) both(one, one.errors_in, one.errors_out);
}

void add_cgroup(Points& points, const CgroupUse& use) {
  points.metric(Kind::Counter, "elastrun.cgroup.cpu.time", "s", "CPU time of the job's cgroup.");
  points.add(use.cpu_user, {{"cpu.mode", "user"}});
  points.add(use.cpu_system, {{"cpu.mode", "system"}});
  points.metric(Kind::Counter, "elastrun.cgroup.cpu.throttled.time", "s",
                "Time that the CPU limit of the cgroup has cost.");
  points.add(use.throttled);
  points.metric(Kind::Counter, "elastrun.cgroup.cpu.periods", "{period}",
                "Periods of the CPU limit, and those in which it was reached.");
  points.add(use.periods, {{"state", "all"}});
  points.add(use.throttled_periods, {{"state", "throttled"}});
  points.metric(Kind::Gauge, "elastrun.cgroup.memory.usage", "By", "Memory of the cgroup.");
  points.add(use.memory);
  points.metric(Kind::Gauge, "elastrun.cgroup.memory.limit", "By", "What it may have.");
  points.add(use.memory_limit);
  points.metric(Kind::Counter, "elastrun.cgroup.oom_kills", "{process}",
                "Processes of the cgroup killed because its memory ran out.");
  points.add(use.oom_kills);
  points.metric(Kind::Counter, "elastrun.cgroup.disk.io", "By", "Bytes of the cgroup.");
  points.add(use.read, {{"disk.io.direction", "read"}});
  points.add(use.written, {{"disk.io.direction", "write"}});
}

template <class Each>
void each_worker(const MachineSample& sample, Each each) {
  for (const auto& use : sample.workers) {
    each(use, Labels{{"rank", text(static_cast<std::uint64_t>(use.worker.rank))},
                     {"local_rank", text(static_cast<std::uint64_t>(use.worker.local_rank))}});
  }
}

Labels with(Labels labels, const char* key, const char* value) {
  labels.emplace_back(key, value);
  return labels;
}

void add_worker_memory(Points& points, const MachineSample& sample) {
  points.metric(Kind::Gauge, "process.memory.usage", "By",
                "Resident memory of a worker and its children; shared pages count in each.");
  each_worker(sample, [&](const auto& one, Labels labels) {
    points.add(one.use.resident_bytes, std::move(labels));
  });
  points.metric(Kind::Gauge, "process.memory.virtual", "By", "Address space of the same.");
  each_worker(sample, [&](const auto& one, Labels labels) {
    points.add(one.use.virtual_bytes, std::move(labels));
  });
  points.metric(Kind::Counter, "process.paging.faults", "{fault}", "Page faults of the same.");
  each_worker(sample, [&](const auto& one, const Labels& labels) {
    points.add(one.use.major_faults, with(labels, "system.paging.fault.type", "major"));
    points.add(one.use.minor_faults, with(labels, "system.paging.fault.type", "minor"));
  });
}

void add_workers(Points& points, const MachineSample& sample) {
  points.metric(Kind::Counter, "process.cpu.time", "s", "CPU time of a worker and its children.");
  each_worker(sample, [&](const auto& one, const Labels& labels) {
    points.add(one.use.user, with(labels, "cpu.mode", "user"));
    points.add(one.use.system, with(labels, "cpu.mode", "system"));
  });
  points.metric(Kind::Counter, "process.disk.io", "By", "Bytes from and to storage, of the same.");
  each_worker(sample, [&](const auto& one, const Labels& labels) {
    if (!one.io) return;
    points.add(one.io->in, with(labels, "disk.io.direction", "read"));
    points.add(one.io->out, with(labels, "disk.io.direction", "write"));
  });
  points.metric(Kind::Gauge, "process.thread.count", "{thread}", "Threads of the same.");
  each_worker(sample, [&](const auto& one, Labels labels) {
    points.add(one.use.threads, std::move(labels));
  });
  points.metric(Kind::Counter, "process.context_switches", "{context_switch}",
                "Context switches of the threads of a worker.");
  each_worker(sample, [&](const auto& one, const Labels& labels) {
    const char* const key = "process.context_switch.type";
    points.add(one.voluntary_switches, with(labels, key, "voluntary"));
    points.add(one.involuntary_switches, with(labels, key, "involuntary"));
  });
  points.metric(Kind::Gauge, "process.unix.file_descriptor.count", "{file_descriptor}",
                "Descriptors that a worker has open.");
  each_worker(sample, [&](const auto& one, Labels labels) {
    points.add(one.descriptors, std::move(labels));
  });
  points.metric(Kind::Gauge, "process.uptime", "s", "Since the start of a worker.");
  each_worker(sample,
              [&](const auto& one, Labels labels) { points.add(one.uptime, std::move(labels)); });
}

Labels labels_of(const GpuUse& gpu) {
  return {{"hw.id", gpu.uuid.empty() ? text(static_cast<std::uint64_t>(gpu.index)) : gpu.uuid},
          {"hw.type", "gpu"},
          {"index", text(static_cast<std::uint64_t>(gpu.index))},
          {"hw.model", gpu.name}};
}

void add_gpu_load(Points& points, const std::vector<GpuUse>& gpus) {
  points.metric(Kind::Gauge, "hw.gpu.utilization", "1", "Share of time in which the GPU worked.");
  for (const auto& gpu : gpus) {
    points.add(gpu.utilization, with(labels_of(gpu), "hw.gpu.task", "general"));
  }
  points.metric(Kind::Gauge, "hw.gpu.memory.usage", "By", "Memory in use.");
  for (const auto& gpu : gpus) points.add(gpu.memory_used, labels_of(gpu));
  points.metric(Kind::Gauge, "hw.gpu.memory.limit", "By", "Memory of the GPU.");
  for (const auto& gpu : gpus) points.add(gpu.memory_total, labels_of(gpu));
  points.metric(Kind::Gauge, "elastrun.gpu.memory.busy", "1",
                "Share of time in which its memory was read or written.");
  for (const auto& gpu : gpus) points.add(gpu.memory_busy, labels_of(gpu));
  points.metric(Kind::Gauge, "elastrun.gpu.clock", "Hz", "Clock of its multiprocessors.");
  for (const auto& gpu : gpus) points.add(gpu.sm_clock, labels_of(gpu));
}

void add_gpu_state(Points& points, const std::vector<GpuUse>& gpus) {
  points.metric(Kind::Gauge, "hw.power", "W", "Power drawn.");
  for (const auto& gpu : gpus) points.add(gpu.power, labels_of(gpu));
  points.metric(Kind::Gauge, "elastrun.gpu.power.limit", "W", "Power that it may draw.");
  for (const auto& gpu : gpus) points.add(gpu.power_limit, labels_of(gpu));
  points.metric(Kind::Gauge, "hw.temperature", "Cel", "Temperature.");
  for (const auto& gpu : gpus) points.add(gpu.temperature, labels_of(gpu));
  points.metric(Kind::Counter, "hw.errors", "{error}",
                "Errors: ECC, uncorrected since the driver was loaded; Xid, since we watch.");
  for (const auto& gpu : gpus) {
    points.add(gpu.ecc_errors, with(labels_of(gpu), "error.type", "ecc_uncorrected"));
    points.add(gpu.xid_errors, with(labels_of(gpu), "error.type", "xid"));
  }
  points.metric(Kind::Gauge, "elastrun.gpu.last_xid", "{code}",
                "Number of the last Xid error; 0: none since we watch.");
  for (const auto& gpu : gpus) points.add(gpu.last_xid, labels_of(gpu));
  points.metric(Kind::Gauge, "elastrun.gpu.throttled", "{reason}",
                "1 for each reason that lowers the clocks at the moment.");
  for (const auto& gpu : gpus) {
    for (const auto& reason : gpu.throttled_by) {
      points.add(std::uint64_t{1}, with(labels_of(gpu), "reason", reason.c_str()));
    }
  }
}

void add_energy(Points& points, const MachineSample& sample) {
  points.metric(
      Kind::Counter, "hw.energy", "J",
      "Energy drawn: by a GPU since its driver was loaded, by processors since we watch.");
  for (const auto& gpu : sample.gpus) points.add(gpu.energy, labels_of(gpu));
  for (const auto& one : sample.energy) {
    const char* const type = one.name == "dram" ? "memory" : "cpu";
    points.add(one.joules, {{"hw.id", one.id}, {"hw.type", type}, {"hw.name", one.name}});
  }
}

}  // namespace

std::vector<telemetry::Point> points_of(const MachineSample& sample, TimePoint start) {
  std::vector<telemetry::Point> all;
  Points points(all, start);
  add_node(points, sample);
  add_devices(points, sample);
  add_cgroup(points, sample.cgroup);
  add_workers(points, sample);
  add_worker_memory(points, sample);
  add_gpu_load(points, sample.gpus);
  add_gpu_state(points, sample.gpus);
  add_energy(points, sample);
  return all;
}

std::vector<std::string> machine_point_names() {
  return {"system.", "process.", "hw.", "elastrun.cgroup.", "elastrun.gpu."};
}

}  // namespace elastrun::system
