// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::system {

/// One NVIDIA GPU at one moment. What the driver does not tell is empty.
struct GpuUse {
  int index = 0;
  std::string uuid, name, driver;
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

/// The names of the bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean a loss. Pure.
std::vector<std::string> throttle_reasons(std::uint64_t bits);

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

}  // namespace elastrun::system
