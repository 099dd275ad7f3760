// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
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
/// A made-up machine in hwloc's synthetic notation, such as "package:2 numa:2 l3:2 core:4 pu:2".
Result<Topology> make_topology(const std::string& synthetic);

}  // namespace elastrun::process
