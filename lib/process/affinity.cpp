// SPDX-License-Identifier: Apache-2.0

#include "process/affinity.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <hwloc.h>
#include <map>
#include <memory>
#include <sched.h>
#include <set>
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

using Groups = std::map<int, std::vector<int>>;  // CPUs by what they share

std::vector<int> cpus_where(const Topology& topology, auto matches) {
  std::vector<int> cpus;
  for (const Cpu& cpu : topology.cpus) {
    if (matches(cpu)) cpus.push_back(cpu.number);
  }
  return cpus;
}

Groups group(const Topology& topology, int node, int Cpu::*shared) {
  Groups groups;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) groups[cpu.*shared].push_back(cpu.number);
  }
  return groups;
}

std::vector<int> cpus_of_socket(const Topology& topology, int node) {
  // A node may in theory lie in several packages; as torchrun does, its first CPU decides.
  const auto package_of = [&](int one) {
    return std::ranges::find(topology.cpus, one, &Cpu::node)->package;
  };
  return cpus_where(topology, [&, package = package_of(node)](const Cpu& cpu) {
    return package_of(cpu.node) == package;
  });
}

/// The place of a device among those of its node.
struct Place {
  int index = 0, count = 0;
};

Place place_of(const std::vector<int>& device_nodes, int device) {
  Place place;
  const int node = device_nodes[static_cast<std::size_t>(device)];
  for (int other = 0; other < static_cast<int>(device_nodes.size()); ++other) {
    if (device_nodes[static_cast<std::size_t>(other)] != node) continue;
    if (other < device) ++place.index;
    ++place.count;
  }
  return place;
}

Result<std::vector<int>> own_cores(const Topology& topology, int node, Place place) {
  const Groups cores = group(topology, node, &Cpu::core);
  const int count = static_cast<int>(cores.size());
  if (count < place.count) {
    return fail(Code::Usage,
                fmt::format("exclusive binding needs a physical core for each device, but NUMA "
                            "node {} has {} for {}; use --numa-binding node or fewer workers",
                            node, count, place.count));
  }
  // As torchrun deals them out: the first devices get one core more.
  const int share = count / place.count, left_over = count % place.count;
  const int first = place.index * share + std::min(place.index, left_over);
  const int last = first + share + (place.index < left_over ? 1 : 0);
  std::vector<int> cpus;
  int index = 0;
  // A core with all of its threads, so that two workers never share one.
  for (const auto& [core, members] : cores) {
    if (index >= first && index < last) cpus.insert(cpus.end(), members.begin(), members.end());
    ++index;
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

std::vector<int> own_complex(const Topology& topology, int node, Place place) {
  std::vector<std::vector<int>> groups;
  for (auto& [cache, members] : group(topology, node, &Cpu::cache)) groups.push_back(members);
  // Stable: of equal size, the one with the lower CPU first.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  // Devices that are more than the complexes share them in turn: a worker without CPUs of a complex
  // would not be bound at all.
  return groups[static_cast<std::size_t>(place.index) % groups.size()];
}

std::vector<int> spread(const Topology& topology, int workers) {
  std::set<int> found;
  for (const Cpu& cpu : topology.cpus) found.insert(cpu.node);
  const std::vector<int> nodes(found.begin(), found.end());
  std::vector<int> result;
  for (int rank = 0; rank < workers && !nodes.empty(); ++rank) {
    const auto index =
        static_cast<std::size_t>(rank) * nodes.size() / static_cast<std::size_t>(workers);
    result.push_back(nodes[index]);
  }
  return result;
}

Result<std::vector<int>> cpus_for(BindingMode mode, const Topology& topology,
                                  const std::vector<int>& device_nodes, int device) {
  const int node = device_nodes[static_cast<std::size_t>(device)];
  const auto cpus = cpus_where(topology, [node](const Cpu& cpu) { return cpu.node == node; });
  if (cpus.empty()) {
    return fail(Code::Usage,
                fmt::format("cannot bind local rank {}: its device is near NUMA node {}, on whose "
                            "CPUs this job may not run (affinity or cpuset of the launcher)",
                            device, node));
  }
  switch (mode) {
    case BindingMode::Socket:
      return cpus_of_socket(topology, node);
    case BindingMode::Exclusive:
      return own_cores(topology, node, place_of(device_nodes, device));
    case BindingMode::CoreComplex:
      return own_complex(topology, node, place_of(device_nodes, device));
    default:
      return cpus;
  }
}

}  // namespace

Result<Topology> make_topology(const std::string& synthetic) {
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

Result<Topology> read_topology() {
  auto topology = make_topology("");
  const auto allowed = affinity_of(0);
  if (!topology || !allowed) return topology;
  std::erase_if(topology->cpus, [&](const Cpu& cpu) {
    return !std::binary_search(allowed->begin(), allowed->end(), cpu.number);
  });
  return topology;
}

Result<BindingPlan> plan_binding(BindingMode mode, const Topology& topology,
                                 const std::vector<int>& device_nodes, int workers) {
  BindingPlan plan;
  std::vector<int> nodes = device_nodes;
  if (nodes.empty()) {
    nodes = spread(topology, workers);
    const std::set<int> used(nodes.begin(), nodes.end());
    plan.note =
        fmt::format("no GPU is visible, so {} worker{} spread over {} NUMA node{}", workers,
                    workers == 1 ? " is" : "s are", used.size(), used.size() == 1 ? "" : "s");
  }
  if (static_cast<int>(nodes.size()) < workers) {
    return fail(Code::Usage,
                fmt::format("cannot bind local rank {}: only {} device{} visible, and each worker "
                            "is bound near its own",
                            nodes.size(), nodes.size(), nodes.size() == 1 ? " is" : "s are"));
  }
  for (int rank = 0; rank < workers; ++rank) {
    auto cpus = cpus_for(mode, topology, nodes, rank);
    if (!cpus) return std::unexpected(cpus.error());
    plan.cpus.push_back(std::move(*cpus));
  }
  return plan;
}

std::string format_cpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t index = 0; index < cpus.size();) {
    std::size_t last = index;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[index]);
    if (last > index) text += fmt::format("-{}", cpus[last]);
    index = last + 1;
  }
  return text;
}

Result<std::vector<int>> affinity_of(pid_t pid) {
  // With the C library's set of 1024 the call fails with EINVAL where the kernel was built for more
  // (sched_setaffinity(2)).
  constexpr int kMost = 8192;  // the kernel's own limit of CPUs
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMost),
                                                             [](cpu_set_t* one) { CPU_FREE(one); });
  const std::size_t size = CPU_ALLOC_SIZE(kMost);
  if (::sched_getaffinity(pid, size, set.get()) != 0) {
    return std::unexpected(
        errno_error(Code::Io, fmt::format("cannot ask for the CPUs of process {}", pid), errno));
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMost; ++cpu) {
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

Status check_binding(pid_t pid, const std::vector<int>& cpus) {
  const auto actual = affinity_of(pid);
  if (!actual) return std::unexpected(actual.error());
  // The kernel narrows a mask to the cpuset of the process without an error (sched_setaffinity(2)),
  // so the success of the call proves nothing.
  if (*actual == cpus) return {};
  return fail(Code::Spawn, fmt::format("process {} may run on CPUs {}, not on {} as asked", pid,
                                       format_cpus(*actual), format_cpus(cpus)));
}

}  // namespace elastrun::process
