// SPDX-License-Identifier: Apache-2.0

#include "system/machine.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace elastrun::system {
namespace {

std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

using process::next_word;

/// Takes up to `kCount` numbers off a line; fewer if it ends, or something else comes.
template <std::size_t kCount>
std::size_t take_numbers(std::string_view& line, std::array<std::uint64_t, kCount>& values) {
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto value = number(next_word(line));
    if (!value) return i;
    values[i] = *value;
  }
  return kCount;
}

template <class Each>
void each_line(std::string_view text, Each each) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    each(line);
  }
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

/// One line "key value" of a text such as /proc/vmstat, "key: value" or "key=value".
std::optional<std::uint64_t> value_in(std::string_view text, std::string_view key) {
  std::optional<std::uint64_t> found;
  each_line(text, [&](std::string_view line) {
    if (found || !line.starts_with(key)) return;
    line.remove_prefix(key.size());
    // Or "pgfault" would be found in a line of "pgfault_x".
    if (line.empty() || !std::string_view(" :=\t").contains(line.front())) return;
    line.remove_prefix(std::min(line.find_first_not_of(" :=\t"), line.size()));
    found = number(line.substr(0, line.find_first_of(" \t")));
  });
  return found;
}

// The functions of NVML that are used, as its reference manual declares them; the header itself
// comes with CUDA, which the build must not need.
using Device = void*;
using EventSet = void*;
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Event {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct PciInfo {
  std::array<char, 16> legacy_address;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> address;
};
struct FabricInfo {
  std::array<unsigned char, 16> cluster;
  int status;
  unsigned clique;
  unsigned char state;
};
constexpr unsigned char kFabricCompleted = 3;  // the GPU has been registered with its fabric
constexpr int kTemperatureGpu = 0, kClockSm = 1, kUncorrected = 1, kVolatile = 0;
constexpr unsigned long long kEventXid = 8;

/// The names of the bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean a loss.
std::vector<std::string> throttle_reasons(std::uint64_t bits) {
  // Bits 0 (idle), 1 (clocks set by a user) and 8 (display clocks) are not losses.
  static const std::map<std::uint64_t, const char*> kNames = {
      {0x04, "sw_power_cap"}, {0x08, "hw_slowdown"}, {0x10, "sync_boost"},
      {0x20, "sw_thermal"},   {0x40, "hw_thermal"},  {0x80, "hw_power_brake"}};
  std::vector<std::string> all;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) all.emplace_back(name);
  }
  return all;
}

}  // namespace

struct Nvml::Library {
  std::unique_ptr<void, int (*)(void*)> handle{nullptr, ::dlclose};
  bool initialised = false;
  std::vector<GpuUse> gpus;  // what does not change, and what adds up
  std::vector<Device> devices;
  bool watches = false;  // for events
  EventSet events = nullptr;

  ~Library() {
    if (!initialised) return;
    if (events != nullptr) call<EventSet>("nvmlEventSetFree", events);
    call("nvmlShutdown");
  }

  /// True if the function is there and succeeded.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto found = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle.get(), name));
    // Looked up by name at each call: drivers of different years have different functions, and one
    // that lacks some still gives the others.
    return found != nullptr && found(arguments...) == 0;
  }
  template <class T>
  std::optional<double> number(const char* name, Device device, double scale) const {
    T value{};
    if (!call(name, device, &value)) return std::nullopt;
    return static_cast<double>(value) * scale;
  }

  bool open(const std::string& name) {
    // RTLD_LOCAL: its symbols must not stand in for those of anything that is loaded later.
    handle.reset(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (!handle || !call("nvmlInit_v2")) return false;
    initialised = true;
    unsigned count = 0;
    if (!call("nvmlDeviceGetCount_v2", &count)) return false;
    std::array<char, 96> driver{};
    call("nvmlSystemGetDriverVersion", driver.data(), static_cast<unsigned>(driver.size() - 1));
    for (unsigned index = 0; index < count; ++index) describe(index, driver.data());
    return true;
  }

  void describe(unsigned index, const char* driver) {
    Device device = nullptr;
    // One that cannot be asked (fallen off the bus) keeps its number, and has no values.
    if (!call("nvmlDeviceGetHandleByIndex_v2", index, &device)) device = nullptr;
    GpuUse gpu;
    gpu.index = static_cast<int>(index);
    gpu.driver = driver;
    if (device != nullptr) {
      gpu.uuid = words("nvmlDeviceGetUUID", device);
      gpu.name = words("nvmlDeviceGetName", device);
      PciInfo pci{};
      if (call("nvmlDeviceGetPciInfo_v3", device, &pci)) {
        // As sysfs writes it; NVML's text has eight digits for the domain.
        gpu.pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
      }
    }
    gpus.push_back(std::move(gpu));
    devices.push_back(device);
  }

  std::string words(const char* name, Device device) const {
    std::array<char, 97> text{};
    return call(name, device, text.data(), 96U) ? text.data() : "";
  }

  /// Takes what has come since the first call, without waiting.
  void take_events() {
    if (!std::exchange(watches, true) && call("nvmlEventSetCreate", &events)) {
      for (Device device : devices) {
        if (device != nullptr) call("nvmlDeviceRegisterEvents", device, kEventXid, events);
      }
    }
    Event event{};
    for (int i = 0; i < 1000 && events != nullptr; ++i) {
      // With no time it returns NVML_ERROR_TIMEOUT when there is none; the bound of the loop is for
      // a GPU that reports faster than we read.
      if (!call("nvmlEventSetWait_v2", events, &event, 0u)) return;
      for (std::size_t index = 0; index < devices.size(); ++index) {
        if (devices[index] != event.device || event.type != kEventXid) continue;
        ++gpus[index].xid_errors;
        gpus[index].last_xid = event.data;
      }
    }
  }

  GpuUse sample(std::size_t index) const {
    GpuUse use = gpus[index];
    const Device device = devices[index];
    if (device == nullptr) return use;
    Utilization busy{};
    if (call("nvmlDeviceGetUtilizationRates", device, &busy)) {
      use.utilization = busy.gpu / 100.0;
      use.memory_busy = busy.memory / 100.0;
    }
    Memory memory{};
    if (call("nvmlDeviceGetMemoryInfo", device, &memory)) {
      use.memory_used = memory.used;
      use.memory_total = memory.total;
    }
    // In milliwatts, as the energy is in millijoules.
    use.power = number<unsigned>("nvmlDeviceGetPowerUsage", device, 1e-3);
    use.power_limit = number<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device, 1e-3);
    use.energy = number<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption", device, 1e-3);
    unsigned value = 0;
    if (call("nvmlDeviceGetTemperature", device, kTemperatureGpu, &value)) use.temperature = value;
    if (call("nvmlDeviceGetClockInfo", device, kClockSm, &value)) use.sm_clock = 1e6 * value;
    unsigned long long wide = 0;
    if (call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kVolatile, &wide)) {
      use.ecc_errors = wide;
    }
    // The first name is that of newer drivers, the second the same function's before them.
    if (call("nvmlDeviceGetCurrentClocksEventReasons", device, &wide) ||
        call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &wide)) {
      use.throttled_by = throttle_reasons(wide);
    }
    return use;
  }
};

Nvml::Nvml(std::string library) : name_(std::move(library)) {}
Nvml::~Nvml() = default;

bool Nvml::is_open() {
  if (library_) return true;
  auto library = std::make_unique<Library>();
  // Tried again with each question: the driver may be loaded after the agent has started.
  if (!library->open(name_)) return false;
  library_ = std::move(library);
  return true;
}

std::vector<GpuUse> Nvml::sample() {
  if (!is_open()) return {};
  library_->take_events();
  std::vector<GpuUse> all;
  for (std::size_t index = 0; index < library_->devices.size(); ++index) {
    all.push_back(library_->sample(index));
  }
  return all;
}

std::optional<std::vector<GpuUse>> Nvml::known() {
  return is_open() ? std::optional(library_->gpus) : std::nullopt;
}

std::string Nvml::nvlink_domain() {
  if (!is_open()) return {};
  // All GPUs of a node are in one domain; the first that knows its own speaks for them.
  for (Device device : library_->devices) {
    FabricInfo info{};
    if (device == nullptr || !library_->call("nvmlDeviceGetGpuFabricInfo", device, &info)) continue;
    // A cluster of zeros: the switches of this machine alone, as of HGX.
    const bool known = std::ranges::any_of(info.cluster, [](auto byte) { return byte != 0; });
    if (info.state != kFabricCompleted || info.status != 0 || !known) continue;
    return fmt::format("nvlink-{:02x}-{}", fmt::join(info.cluster, ""), info.clique);
  }
  return {};
}

std::string nvlink_domain(Duration limit, const std::string& library) {
  const auto told = std::make_shared<std::promise<std::string>>();
  auto answer = told->get_future();
  // A driver without persistence mode takes seconds for each GPU, and one whose GPU has fallen off
  // the bus may never answer: then the thread is left to itself.
  if (!detach_thread([told, library] { told->set_value(Nvml(library).nvlink_domain()); }))
    return {};
  if (answer.wait_for(limit) == std::future_status::ready) return answer.get();
  log::warning("system", "the driver of the GPUs has not told their NVLink domain within {}",
               format_duration(limit));
  return {};
}

namespace {

using telemetry::Attribute;
using telemetry::Kind;
using enum telemetry::Kind;
using Labels = std::vector<Attribute>;

std::string text(int number) {
  return std::to_string(number);
}

Labels labels_of(const WorkerUse& use) {
  return {{"rank", text(use.worker.rank)}, {"local_rank", text(use.worker.local_rank)}};
}

Labels labels_of(const GpuUse& gpu) {
  return {{"hw.id", gpu.uuid.empty() ? text(gpu.index) : gpu.uuid},
          {"hw.type", "gpu"},
          {"index", text(gpu.index)},
          {"hw.model", gpu.name}};
}

/// A value, which may be missing, or the getter of one, and its label.
template <class Value>
struct With {
  const char* label;
  Value value;
};

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
  /// A metric of one value.
  void metric(Kind kind, const char* name, const char* unit, const char* help, auto value) {
    metric(kind, name, unit, help);
    add(value);
  }
  /// A metric of several, told apart by the label `key`.
  template <class... Value>
  void metric(Kind kind, const char* name, const char* unit, const char* help, const char* key,
              With<Value>... values) {
    metric(kind, name, unit, help);
    (add(values.value, {{key, values.label}}), ...);
  }
  /// A metric with a value of each worker or GPU.
  void each(const auto& all, Kind kind, const char* name, const char* unit, const char* help,
            auto get) {
    each(all, kind, name, unit, help, nullptr, With{nullptr, get});
  }
  template <class... Get>
  void each(const auto& all, Kind kind, const char* name, const char* unit, const char* help,
            const char* key, With<Get>... gets) {
    metric(kind, name, unit, help);
    for (const auto& one : all) {
      const auto add_one = [&](const auto& value, const char* label) {
        auto labels = labels_of(one);
        if (key != nullptr) labels.emplace_back(key, label);
        add(value, std::move(labels));
      };
      (add_one(std::invoke(gets.value, one), gets.label), ...);
    }
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
    points.metric(Counter, "system.cpu.time", "s", "Seconds of all CPUs by what they did.",
                  "cpu.mode", With{"user", cpu->user}, With{"nice", cpu->nice},
                  With{"system", cpu->system}, With{"idle", cpu->idle}, With{"iowait", cpu->iowait},
                  With{"interrupt", cpu->interrupt}, With{"steal", cpu->steal});
    points.metric(Gauge, "system.cpu.logical.count", "{cpu}", "CPUs that are on.",
                  static_cast<std::uint64_t>(cpu->cpus));
  }
  points.metric(Gauge, "system.cpu.utilization", "1",
                "Share of CPU time that was used since the collection before.",
                sample.cpu_utilization);
  points.metric(Gauge, "system.cpu.load_average.1m", "{thread}",
                "Threads that ran or wanted to, over a minute.", sample.load);
  if (const auto& memory = sample.memory) {
    const auto cache = memory->cached + memory->buffers;
    // Bounded, because it is taken from an unsigned number.
    const auto given = std::min(memory->total, memory->free + cache);
    points.metric(Gauge, "system.memory.usage", "By", "Memory by what it is used for.",
                  "system.memory.state", With{"used", memory->total - given},
                  With{"free", memory->free}, With{"cached", cache});
    points.metric(Gauge, "system.memory.limit", "By", "Memory of the machine.", memory->total);
    points.metric(Gauge, "system.memory.linux.available", "By",
                  "Memory that programs could still get.", memory->available);
  }
  points.metric(Counter, "system.paging.faults", "{fault}", "Page faults.",
                "system.paging.fault.type", With{"major", sample.major_faults},
                With{"minor", sample.minor_faults});
  points.metric(Counter, "system.linux.oom_kills", "{process}",
                "Processes that the kernel killed because memory ran out.", sample.oom_kills);
}

void add_devices(Points& points, const MachineSample& sample) {
  points.metric(Counter, "system.disk.io", "By", "Bytes read from and written to disks.");
  for (const auto& disk : sample.disks) {
    points.add(disk.in, {{"system.device", disk.name}, {"disk.io.direction", "read"}});
    points.add(disk.out, {{"system.device", disk.name}, {"disk.io.direction", "write"}});
  }
  points.metric(Counter, "system.network.io", "By", "Bytes received and sent.");
  const auto both = [&](const DeviceIo& network, std::uint64_t in, std::uint64_t out) {
    const Attribute name("network.interface.name", network.name);
    points.add(in, {name, {"network.io.direction", "receive"}});
    points.add(out, {name, {"network.io.direction", "transmit"}});
  };
  for (const auto& one : sample.networks) both(one, one.in, one.out);
  points.metric(Counter, "system.network.errors", "{error}", "Errors of interfaces.");
  for (const auto& one : sample.networks) both(one, one.errors_in, one.errors_out);
}

void add_cgroup(Points& points, const CgroupUse& use) {
  points.metric(Counter, "elastrun.cgroup.cpu.time", "s", "CPU time of the job's cgroup.",
                "cpu.mode", With{"user", use.cpu_user}, With{"system", use.cpu_system});
  points.metric(Counter, "elastrun.cgroup.cpu.throttled.time", "s",
                "Time that the CPU limit of the cgroup has cost.", use.throttled);
  points.metric(Counter, "elastrun.cgroup.cpu.periods", "{period}",
                "Periods of the CPU limit, and those in which it was reached.", "state",
                With{"all", use.periods}, With{"throttled", use.throttled_periods});
  points.metric(Gauge, "elastrun.cgroup.memory.usage", "By", "Memory of the cgroup.", use.memory);
  points.metric(Gauge, "elastrun.cgroup.memory.limit", "By", "What it may have.", use.memory_limit);
  points.metric(Counter, "elastrun.cgroup.oom_kills", "{process}",
                "Processes of the cgroup killed because its memory ran out.", use.oom_kills);
  points.metric(Counter, "elastrun.cgroup.disk.io", "By", "Bytes of the cgroup.",
                "disk.io.direction", With{"read", use.read}, With{"write", use.written});
}

void add_workers(Points& points, const std::vector<WorkerUse>& all) {
  // Of the process and its children.
  const auto of = [](auto member) {
    return [member](const WorkerUse& one) { return one.use.*member; };
  };
  const auto io = [](std::uint64_t DeviceIo::*member) {
    return [member](const WorkerUse& one) {
      return one.io ? std::optional(*one.io.*member) : std::nullopt;
    };
  };
  points.each(all, Counter, "process.cpu.time", "s", "CPU time of a worker and its children.",
              "cpu.mode", With{"user", of(&ProcessUse::user)},
              With{"system", of(&ProcessUse::system)});
  points.each(all, Counter, "process.disk.io", "By", "Bytes from and to storage, of the same.",
              "disk.io.direction", With{"read", io(&DeviceIo::in)},
              With{"write", io(&DeviceIo::out)});
  points.each(all, Gauge, "process.thread.count", "{thread}", "Threads of the same.",
              of(&ProcessUse::threads));
  points.each(all, Counter, "process.context_switches", "{context_switch}",
              "Context switches of the threads of a worker.", "process.context_switch.type",
              With{"voluntary", &WorkerUse::voluntary_switches},
              With{"involuntary", &WorkerUse::involuntary_switches});
  points.each(all, Gauge, "process.unix.file_descriptor.count", "{file_descriptor}",
              "Descriptors that a worker has open.", &WorkerUse::descriptors);
  points.each(all, Gauge, "process.uptime", "s", "Since the start of a worker.",
              &WorkerUse::uptime);
  points.each(all, Gauge, "process.memory.usage", "By",
              "Resident memory of a worker and its children; shared pages count in each.",
              of(&ProcessUse::resident_bytes));
  points.each(all, Gauge, "process.memory.virtual", "By", "Address space of the same.",
              of(&ProcessUse::virtual_bytes));
  points.each(all, Counter, "process.paging.faults", "{fault}", "Page faults of the same.",
              "system.paging.fault.type", With{"major", of(&ProcessUse::major_faults)},
              With{"minor", of(&ProcessUse::minor_faults)});
}

void add_gpus(Points& points, const std::vector<GpuUse>& all) {
  points.each(all, Gauge, "hw.gpu.utilization", "1", "Share of time in which the GPU worked.",
              "hw.gpu.task", With{"general", &GpuUse::utilization});
  points.each(all, Gauge, "hw.gpu.memory.usage", "By", "Memory in use.", &GpuUse::memory_used);
  points.each(all, Gauge, "hw.gpu.memory.limit", "By", "Memory of the GPU.", &GpuUse::memory_total);
  points.each(all, Gauge, "elastrun.gpu.memory.busy", "1",
              "Share of time in which its memory was read or written.", &GpuUse::memory_busy);
  points.each(all, Gauge, "elastrun.gpu.clock", "Hz", "Clock of its multiprocessors.",
              &GpuUse::sm_clock);
  points.each(all, Gauge, "hw.power", "W", "Power drawn.", &GpuUse::power);
  points.each(all, Gauge, "elastrun.gpu.power.limit", "W", "Power that it may draw.",
              &GpuUse::power_limit);
  points.each(all, Gauge, "hw.temperature", "Cel", "Temperature.", &GpuUse::temperature);
  points.each(all, Counter, "hw.errors", "{error}",
              "Errors: ECC, uncorrected since the driver was loaded; Xid, since we watch.",
              "error.type", With{"ecc_uncorrected", &GpuUse::ecc_errors},
              With{"xid", &GpuUse::xid_errors});
  points.each(all, Gauge, "elastrun.gpu.last_xid", "{code}",
              "Number of the last Xid error; 0: none since we watch.", &GpuUse::last_xid);
  points.metric(Gauge, "elastrun.gpu.throttled", "{reason}",
                "1 for each reason that lowers the clocks at the moment.");
  for (const auto& gpu : all) {
    for (const auto& reason : gpu.throttled_by) {
      auto labels = labels_of(gpu);
      labels.emplace_back("reason", reason);
      points.add(std::uint64_t{1}, std::move(labels));
    }
  }
}

void add_energy(Points& points, const MachineSample& sample) {
  points.each(sample.gpus, Counter, "hw.energy", "J",
              "Energy drawn: by a GPU since its driver was loaded, by processors since we watch.",
              &GpuUse::energy);
  for (const auto& one : sample.energy) {
    const char* const type = one.name == "dram" ? "memory" : "cpu";
    points.add(one.joules, {{"hw.id", one.id}, {"hw.type", type}, {"hw.name", one.name}});
  }
}

// The newest lines are kept: what the kernel has logged since its start may be far more.
constexpr std::size_t kMaxKernelLog = 1u << 20;

std::string address_space_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return fmt::format(" (its address space is limited to {} by ulimit -v)",
                     format_bytes(limit.rlim_cur));
}

/// Returns what the program itself said about memory.
std::string said_out_of_memory(std::string_view text) {
  if (text.contains("CUDA out of memory") || text.contains("HIP out of memory") ||
      text.starts_with("torch.OutOfMemoryError") || text.contains("cuda.OutOfMemoryError")) {
    return "the GPU ran out of memory";
  }
  if (text.starts_with("MemoryError") || text.contains("can't allocate memory") ||
      text.contains("Cannot allocate memory") || text.contains("std::bad_alloc")) {
    return "it could not get memory" + address_space_limit();
  }
  return {};
}

/// The last part of the kernel's log; empty if we may not read it.
std::string read_kernel_log(const std::string& path) {
  std::string log;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 8192> record;  // each read(2) gives one
  while (fd) {
    // 8192 bytes hold the longest record; a smaller buffer would get EINVAL (Linux,
    // Documentation/ABI/testing/dev-kmsg).
    const auto got = ::read(fd.get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // overwritten while we read: go on with the next
    if (got <= 0) break;
    log.append(record.data(), static_cast<std::size_t>(got));
    // At twice the size, so that the copy costs little for each byte.
    if (log.size() > 2 * kMaxKernelLog) log.erase(0, log.size() - kMaxKernelLog);
  }
  return log;
}

bool rose(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& now) {
  return before && now && *now > *before;
}

/// True if the kernel's log says that it killed this process because memory ran out, and no more
/// than `last` such kills are in the log from there on.
bool log_names_victim(std::string_view kernel_log, pid_t process, std::uint64_t last) {
  // "Out of memory: Killed process 1234 (python3)", "Memory cgroup out of memory: Killed process"
  constexpr std::string_view kKilled = "Killed process ";
  // With the blank behind, or process 12 would be found in 123.
  const auto wanted = fmt::format("{}{} ", kKilled, process);
  while (last > 0) {
    const auto at = kernel_log.rfind(kKilled);
    if (at == std::string_view::npos) return false;
    const auto before = kernel_log.substr(0, at);
    const auto line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
    const bool is_oom = line.contains("ut of memory") || line.contains("oom");
    if (is_oom && kernel_log.substr(at).starts_with(wanted)) return true;
    if (is_oom) --last;
    kernel_log = before;
  }
  return false;
}

}  // namespace

std::vector<telemetry::Point> points_of(const MachineSample& sample, TimePoint start) {
  std::vector<telemetry::Point> all;
  Points points(all, start);
  add_node(points, sample);
  add_devices(points, sample);
  add_cgroup(points, sample.cgroup);
  add_workers(points, sample.workers);
  add_gpus(points, sample.gpus);
  add_energy(points, sample);
  return all;
}

std::vector<std::string> machine_point_names() {
  return {"system.", "process.", "hw.", "elastrun.cgroup.", "elastrun.gpu."};
}

OomKills::Counts OomKills::count() const {
  Counts counts;
  counts.machine = value_in(read_kernel_file(sources_.proc + "/vmstat"), "oom_kill");
  if (const auto& own = sources_.cgroup) {
    const auto text = own->read(own->unified ? "memory.events" : "memory.oom_control");
    counts.cgroup = value_in(text, "oom_kill");
  }
  return counts;
}

std::string OomKills::diagnostics(const process::ExitStatus& status, pid_t process,
                                  std::string_view error_text) const {
  // The program's words come first: it knows which memory it asked for.
  if (auto said = said_out_of_memory(error_text); !said.empty()) return said;
  if (!status.by_signal(SIGKILL)) return {};
  const auto now = count();
  // Older records may be about another process that had the same number. By their count and not by
  // time: the clock of the records runs at another rate.
  const auto kills = rose(before_.machine, now.machine) ? *now.machine - *before_.machine : 0;
  if (kills > 0 && log_names_victim(read_kernel_log(sources_.kernel_log), process, kills)) {
    return "the kernel killed it because memory ran out (its log names the process)";
  }
  // Before the machine's: its counter rises for kills of a cgroup as well.
  if (rose(before_.cgroup, now.cgroup)) {
    return "the kernel killed it because the memory limit of its cgroup was reached";
  }
  if (rose(before_.machine, now.machine)) {
    return "the kernel killed processes of this machine because memory ran out, probably it too";
  }
  return {};
}

// Readers of proc(5) and cgroup v2 files. Text that is not as the kernel writes it gives nothing,
// or leaves out the line that is not.
namespace {

/// The kernel's clock ticks of a second.
double ticks() {
  static const auto number = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return number;
}

std::optional<CpuTimes> cpu_times_in(std::string_view stat) {
  std::optional<CpuTimes> times;
  int cpus = 0;
  each_line(stat, [&](std::string_view line) {
    if (!line.starts_with("cpu")) return;
    const auto name = next_word(line);
    if (name.size() > 3) cpus += all_digits(name.substr(3)) ? 1 : 0;
    std::array<std::uint64_t, 8> all{};
    // Old kernels have fewer columns. guest and guest_nice, behind these, are in user and nice
    // already.
    if (name.size() > 3 || take_numbers(line, all) < 4) return;
    const auto of = [&](std::size_t i) { return static_cast<double>(all[i]) / ticks(); };
    times = CpuTimes{of(0), of(1), of(2), of(3), of(4), of(5) + of(6), of(7)};
  });
  if (times) times->cpus = cpus;
  return times;
}

std::optional<MemoryUse> memory_in(std::string_view meminfo) {
  const auto bytes = [&](std::string_view key) {
    // The "kB" of this file are KiB. The bound keeps a number that no machine has from overflowing.
    return std::min(value_in(meminfo, key).value_or(0), UINT64_MAX >> 10) << 10;
  };
  MemoryUse use{bytes("MemTotal"), bytes("MemFree"), bytes("MemAvailable"), bytes("Buffers"),
                bytes("Cached")};
  if (use.total == 0) return std::nullopt;
  use.available = std::min(use.available, use.total);
  return use;
}

/// "sda1" of "sda", "nvme0n1p2" of "nvme0n1".
bool is_partition(std::string_view name, const std::vector<DeviceIo>& disks) {
  return std::ranges::any_of(disks, [&](const DeviceIo& disk) {
    if (!name.starts_with(disk.name)) return false;
    auto rest = name.substr(disk.name.size());
    const bool needs_p = disk.name.back() >= '0' && disk.name.back() <= '9';
    if (needs_p && !rest.starts_with('p')) return false;
    if (needs_p) rest.remove_prefix(1);
    return all_digits(rest);
  });
}

/// Disks that are not made of others' parts: no partitions, no loop and RAM devices, no device
/// mapper.
std::vector<DeviceIo> disks_in(std::string_view diskstats) {
  constexpr std::uint64_t kSector = 512;  // of this file, whatever the disk has
  std::vector<DeviceIo> disks;
  each_line(diskstats, [&](std::string_view line) {
    next_word(line);
    next_word(line);
    const auto name = next_word(line);
    std::array<std::uint64_t, 7> all{};
    if (name.empty() || take_numbers(line, all) < all.size()) return;
    // What they carry is counted again by the disks below them, or reaches no disk.
    for (const std::string_view virtual_one : {"loop", "ram", "dm-", "md", "zram", "sr", "fd"}) {
      if (name.starts_with(virtual_one)) return;
    }
    // A partition's bytes are in its disk's line, which comes before it.
    if (is_partition(name, disks)) return;
    disks.push_back({std::string(name), all[2] * kSector, all[6] * kSector});
  });
  return disks;
}

/// Without loopback.
std::vector<DeviceIo> networks_in(std::string_view dev) {
  std::vector<DeviceIo> networks;
  each_line(dev, [&](std::string_view line) {
    const auto colon = line.find(':');
    if (colon == line.npos) return;  // the headings
    const auto name = trim(line.substr(0, colon));
    line.remove_prefix(colon + 1);
    std::array<std::uint64_t, 11> all{};
    // Traffic of the machine with itself is none of the network.
    if (name.empty() || name == "lo" || take_numbers(line, all) < all.size()) return;
    networks.push_back({std::string(name), all[0], all[8], all[2], all[10]});
  });
  return networks;
}

/// Of /proc/PID/stat.
std::optional<ProcessUse> process_use_in(std::string_view stat) {
  const auto fields = process::stat_fields(stat);
  std::array<std::uint64_t, 25> all{};  // by their numbers in proc_pid_stat(5)
  for (const std::size_t field : {10, 11, 12, 13, 14, 15, 16, 17, 20, 22, 23, 24}) {
    const auto value = number(fields[field - 3]);
    if (!value) return std::nullopt;
    all[field] = *value;
  }
  ProcessUse use;
  // With those of children that were waited for (cminflt): a total must not lose what they did.
  use.minor_faults = all[10] + all[11];
  use.major_faults = all[12] + all[13];
  use.user = static_cast<double>(all[14] + all[16]) / ticks();
  use.system = static_cast<double>(all[15] + all[17]) / ticks();
  use.threads = all[20];
  use.start_ticks = all[22];
  use.virtual_bytes = all[23];
  use.resident_bytes = all[24] * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return use;
}

/// `in` and `out` of /proc/PID/io: what came from and went to storage. Nothing without the right.
std::optional<DeviceIo> process_io_in(std::string_view io) {
  const auto read = value_in(io, "read_bytes"), written = value_in(io, "write_bytes");
  if (!read || !written) return std::nullopt;
  return DeviceIo{"", *read, *written};
}

CgroupUse read_cgroup(const std::optional<process::CgroupPlace>& own) {
  // These files are those of cgroup v2; the first version has other names and units.
  if (!own || !own->unified) return {};
  const auto cpu = own->read("cpu.stat");
  const auto seconds = [&cpu](std::string_view key) -> std::optional<double> {
    const auto microseconds = value_in(cpu, key);
    if (!microseconds) return std::nullopt;
    return static_cast<double>(*microseconds) / 1e6;
  };
  CgroupUse use;
  use.cpu_user = seconds("user_usec");
  use.cpu_system = seconds("system_usec");
  use.throttled = seconds("throttled_usec");
  use.periods = value_in(cpu, "nr_periods");
  use.throttled_periods = value_in(cpu, "nr_throttled");
  const auto first_word = [](std::string_view text) { return number(next_word(text)); };
  use.memory = first_word(own->read("memory.current"));
  use.memory_limit = first_word(own->read("memory.max"));  // "max": none
  use.oom_kills = value_in(own->read("memory.events"), "oom_kill");
  each_line(own->read("io.stat"), [&](std::string_view line) {  // "8:0 rbytes=1 wbytes=2 ..."
    for (auto word = next_word(line); !word.empty(); word = next_word(line)) {
      if (const auto in = value_in(word, "rbytes")) use.read = use.read.value_or(0) + *in;
      if (const auto out = value_in(word, "wbytes")) use.written = use.written.value_or(0) + *out;
    }
  });
  return use;
}

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

/// Packages and memory, which is beside them, by RAPL (those of AMD have the same files), as
/// powercap shows them; parts of packages (cores, uncore) and what holds all ("psys") would count
/// twice. Counters wrap: to be asked every few minutes at least.
std::vector<EnergyUse> read_energy(const std::string& folder, EnergyCounters& counters) {
  std::vector<EnergyUse> all;
  std::error_code error;
  std::filesystem::directory_iterator zone(folder, error);
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
    const auto [counter, is_new] = counters.try_emplace(id, *now, 0.0);
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

constexpr std::size_t kMostThreads = 512;  // of a worker whose switches are counted
constexpr std::size_t kMostDescriptors = 65536;

using Directory = std::unique_ptr<DIR, decltype([](DIR* directory) { ::closedir(directory); })>;

/// How many names are in a directory, at most so many and one. Nothing: it cannot be read.
std::optional<std::uint64_t> count_entries(const std::string& path, std::size_t most) {
  const Directory directory(::opendir(path.c_str()));
  if (!directory) return std::nullopt;
  std::uint64_t count = 0;
  // A process can have any number of them, and this runs on each sample.
  while (const dirent* entry = count > most ? nullptr : ::readdir(directory.get())) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  return count;
}

void add_process(WorkerUse& use, pid_t pid, const std::string& proc) {
  const std::string folder = proc + "/" + std::to_string(pid);
  const auto one = process_use_in(read_kernel_file(folder + "/stat"));
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

void add_threads(WorkerUse& use, const std::string& proc) {
  const std::string folder = proc + "/" + std::to_string(use.worker.pid);
  for (const pid_t thread :
       process::threads_of(use.worker.pid, proc) | std::views::take(kMostThreads)) {
    const auto status = read_kernel_file(folder + "/task/" + std::to_string(thread) + "/status");
    use.voluntary_switches += value_in(status, "voluntary_ctxt_switches").value_or(0);
    use.involuntary_switches += value_in(status, "nonvoluntary_ctxt_switches").value_or(0);
  }
  use.descriptors = count_entries(folder + "/fd", kMostDescriptors);
}

WorkerUse worker_use(const WatchedWorker& worker, const process::ProcessTable& all,
                     const std::string& proc) {
  WorkerUse use;
  use.worker = worker;
  for (const auto& process : all) {
    // By session, which a worker leads: children of children are in it, too, also when those
    // between have ended and they belong to init.
    if (process.session == worker.pid && !process.zombie()) add_process(use, process.pid, proc);
  }
  add_threads(use, proc);
  const auto uptime = read_kernel_file(proc + "/uptime");
  const auto now = parse_float(uptime.substr(0, uptime.find(' '))).value_or(0);
  use.uptime = std::max(0.0, now - static_cast<double>(use.use.start_ticks) / ticks());
  return use;
}

void read_node(MachineSample& sample, const MachineSources& sources) {
  const auto read = [&](const char* file) { return read_kernel_file(sources.proc + file); };
  sample.cpu = cpu_times_in(read("/stat"));
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
  sample.cgroup = read_cgroup(sources.cgroup);
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

void compare(MachineSample& sample, const MachineSample& before) {
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

}  // namespace

MachineSample Machine::sample(TimePoint now, const std::vector<WatchedWorker>& workers) {
  MachineSample sample;
  sample.at = now;
  read_node(sample, sources_);
  const auto all =
      // Once for all workers: it reads a file of every process of the machine.
      workers.empty() ? process::ProcessTable() : process::read_all_processes(sources_.proc);
  for (const auto& worker : workers) {
    auto use = worker_use(worker, all, sources_.proc);
    if (use.use.start_ticks != 0) sample.workers.push_back(std::move(use));  // else it has gone
  }
  sample.gpus = nvml_.sample();
  sample.energy = read_energy(sources_.powercap, energy_);
  if (before_) compare(sample, *before_);
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
