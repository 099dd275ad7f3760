// SPDX-License-Identifier: Apache-2.0
#include "process/topology.hpp"

#include "process/affinity.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <hwloc.h>
#include <memory>
#include <type_traits>

// hwloc's archive asks libudev for the model names of disks. Debian has libudev only as a shared
// library, which a binary that is copied from node to node must not need. These stand-ins say "not
// there"; hwloc then does without those names, and we never ask for disks at all.
// They are in this file because an archive gives only members that are asked for, and in order.

extern "C" {

struct udev;
struct udev_device;

udev* udev_new() {
  return nullptr;
}
udev* udev_unref(udev*) {
  return nullptr;
}
udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) {
  return nullptr;
}
const char* udev_device_get_property_value(udev_device*, const char*) {
  return nullptr;
}
udev_device* udev_device_unref(udev_device*) {
  return nullptr;
}
}

namespace elastrun::process {
namespace {

using Handle =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;
Cpu describe_cpu(hwloc_obj_t unit) {
  Cpu cpu;
  cpu.number = static_cast<int>(unit->os_index);
  cpu.core = cpu.cache = cpu.number;
  cpu.node = std::max(hwloc_bitmap_first(unit->nodeset), 0);
  for (hwloc_obj_t above = unit->parent; above != nullptr; above = above->parent) {
    const int first = hwloc_bitmap_first(above->complete_cpuset);
    if (above->type == HWLOC_OBJ_CORE) cpu.core = first;
    if (hwloc_obj_type_is_dcache(above->type)) cpu.cache = first;  // the last one is the largest
    if (above->type == HWLOC_OBJ_PACKAGE) cpu.package = static_cast<int>(above->os_index);
  }
  return cpu;
}

Result<Topology> load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return fail(Code::Io, "cannot start to read the topology");
  const Handle handle(raw, hwloc_topology_destroy);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    return fail(Code::Usage, fmt::format("\"{}\" describes no topology", synthetic));
  }
  if (hwloc_topology_load(raw) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot read the topology of the CPUs", errno));
  }
  Topology topology;
  hwloc_obj_t unit = nullptr;
  while ((unit = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_PU, unit)) != nullptr) {
    topology.cpus.push_back(describe_cpu(unit));
  }
  std::sort(topology.cpus.begin(), topology.cpus.end(),
            [](const Cpu& a, const Cpu& b) { return a.number < b.number; });
  return topology;
}

}  // namespace

Result<Topology> read_topology() {
  auto topology = load("");
  const auto allowed = affinity_of(0);
  if (!topology || !allowed) return topology;
  std::erase_if(topology->cpus, [&](const Cpu& cpu) {
    return !std::binary_search(allowed->begin(), allowed->end(), cpu.number);
  });
  return topology;
}

Result<Topology> make_topology(const std::string& synthetic) {
  return load(synthetic);
}

}  // namespace elastrun::process
