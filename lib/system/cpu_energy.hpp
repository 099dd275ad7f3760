// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace elastrun::system {

/// What a processor package, or its memory, has drawn since it was first looked at.
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

}  // namespace elastrun::system
