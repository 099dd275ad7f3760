// SPDX-License-Identifier: Apache-2.0
// The functions of NVML that are used, as its reference manual declares them; the header itself
// comes with CUDA, which the build must not need.
#include "system/nvml.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <future>
#include <map>
#include <utility>

namespace elastrun::system {
namespace {

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
struct FabricInfo {
  std::array<unsigned char, 16> cluster;
  int status;
  unsigned clique;
  unsigned char state;
};
constexpr unsigned char kFabricCompleted = 3;  // the GPU has been registered with its fabric
constexpr int kTemperatureGpu = 0, kClockSm = 1, kUncorrected = 1, kVolatile = 0;
constexpr unsigned long long kEventXid = 8;

template <class... Arguments>
using NvmlCall = int (*)(Arguments...);

}  // namespace

struct Nvml::Library {
  std::unique_ptr<void, int (*)(void*)> handle{nullptr, ::dlclose};
  bool initialised = false;
  std::vector<GpuUse> gpus;  // what does not change, and what adds up
  std::vector<Device> devices;
  EventSet events = nullptr;

  ~Library() {
    if (!initialised) return;
    if (events != nullptr) call<EventSet>("nvmlEventSetFree", events);
    call("nvmlShutdown");
  }

  /// True if the function is there and succeeded.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto found = reinterpret_cast<NvmlCall<Arguments...>>(::dlsym(handle.get(), name));
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
    call("nvmlEventSetCreate", &events);
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
    std::array<char, 97> text{};
    constexpr unsigned kSize = 96;
    if (device != nullptr && call("nvmlDeviceGetUUID", device, text.data(), kSize)) {
      gpu.uuid = text.data();
    }
    text = {};
    if (device != nullptr && call("nvmlDeviceGetName", device, text.data(), kSize)) {
      gpu.name = text.data();
    }
    if (device != nullptr && events != nullptr) {
      call("nvmlDeviceRegisterEvents", device, kEventXid, events);
    }
    gpus.push_back(std::move(gpu));
    devices.push_back(device);
  }

  /// Takes what has come, without waiting.
  void take_events() {
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

}  // namespace elastrun::system
