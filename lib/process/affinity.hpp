// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// A logical CPU on which this process may run, and with whom it shares what. A core and a cache
/// are named by the smallest CPU that has a part in them.
struct Cpu {
  int number = 0;
  int node = 0;
  int package = 0;
  int core = 0;
  int cache = 0;
  bool operator==(const Cpu&) const = default;
};

struct Topology {
  std::vector<Cpu> cpus;  // by number
};

/// This machine, as hwloc sees it, without CPUs that our affinity or cpuset excludes. Loads hwloc's
/// tables, some milliseconds: only if binding is asked for.
Result<Topology> read_topology();
/// A made-up machine in hwloc's synthetic notation, such as "package:2 numa:2 l3:2 core:4 pu:2";
/// this one, whole, if that is empty.
Result<Topology> make_topology(const std::string& synthetic);

/// Binding of workers to CPUs near their devices, by torchrun's rules. Memory is not bound: Linux
/// gives a page from the node of the CPU that touches it first, which is then the right one, and a
/// strict memory policy would turn a full node into an out-of-memory kill.

enum class BindingMode {
  Node,         // the CPUs of the device's NUMA node
  Socket,       // those of all nodes in the same package
  Exclusive,    // an own share of the physical cores of the node, together with its neighbours
  CoreComplex,  // one group of CPUs with a common last-level cache
};

/// Who gets which CPUs.
struct BindingPlan {
  std::vector<std::vector<int>> cpus;  // by local rank, each sorted
  std::string note;                    // a sentence for people, if the rule needed help; or empty
};

/// Pure. Local rank N belongs to device N, whose NUMA node is `device_nodes[N]`. Without any device
/// the workers are spread evenly over the nodes, in blocks, and the note says so. Fails with Usage:
/// fewer devices than workers, a node without a CPU for us, less than one core each.
Result<BindingPlan> plan_binding(BindingMode mode, const Topology& topology,
                                 const std::vector<int>& device_nodes, int workers);

/// "0-3,8,10-11", as taskset(1) and the kernel write it.
std::string format_cpus(const std::vector<int>& cpus);
/// Returns the sorted CPUs on which a process (0: this one) may run. Fails with Io if it has gone.
Result<std::vector<int>> affinity_of(pid_t pid);
/// Checks that the process may run exactly on `cpus`: read back after the start, since a cpuset can
/// have narrowed what was asked for.
Status check_binding(pid_t pid, const std::vector<int>& cpus);

}  // namespace elastrun::process
