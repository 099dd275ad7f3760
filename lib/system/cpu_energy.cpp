// SPDX-License-Identifier: Apache-2.0
#include "system/cpu_energy.hpp"

#include "core/read_file.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

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

}  // namespace elastrun::system
