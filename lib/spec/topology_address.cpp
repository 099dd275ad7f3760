// SPDX-License-Identifier: Apache-2.0
#include "spec/topology_address.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::spec {
namespace {

struct Found {
  std::string address, source;

  void add(const std::string& level, std::string_view from) {
    if (level.empty()) return;
    address += (address.empty() ? "" : ".") + level;
    source += (source.empty() ? "" : ", ") + std::string(from);
  }
};

/// Slurm ends the address with the node ("s0.s2.node7", and "node7" alone where it knows no
/// network). Without it: two nodes of one switch are to have the same address, and may have each
/// other's rank. The pattern ("switch.switch.node", "block.node") tells how many levels there are:
/// names of nodes may have points, too.
std::string slurm_switches(const HostEnvironment& around) {
  const auto levels = split(around.variable("SLURM_TOPOLOGY_ADDR").value_or(""), '.');
  const auto kinds = split(around.variable("SLURM_TOPOLOGY_ADDR_PATTERN").value_or(""), '.');
  if (kinds.back() != "node" || levels.size() < kinds.size()) return {};
  return join({levels.begin(), levels.begin() + static_cast<std::ptrdiff_t>(kinds.size()) - 1},
              ".");
}

Found find_address(const HostEnvironment& around, std::vector<std::string>& warnings) {
  Found found;
  const auto switches = slurm_switches(around);
  if (const auto problem = topology_problem(switches); switches.empty() || problem.empty()) {
    found.add(switches, "SLURM_TOPOLOGY_ADDR");
  } else {
    warnings.push_back(
        fmt::format("SLURM_TOPOLOGY_ADDR {}: {}; it is ignored", in_quotes(switches), problem));
  }
  // Behind the switches: racks that share NVLink lie within a block or below a switch.
  found.add(around.nvlink_domain(), "NVLink");
  return found;
}

/// Whether the coordinator gives out the ranks.
bool orders_nodes(const JobSpec& job, std::vector<std::string>& warnings) {
  const auto& name = job.rdzv_backend;
  const bool fixed = name == backend::kStatic;
  if (!fixed && std::ranges::count(backend::kBuiltIn, name) > 0) return true;
  warnings.push_back(
      fmt::format("--rank-order topology has no effect with the backend {}: {} gives the ranks",
                  name, fixed ? "--node-rank" : "its handler"));
  return false;
}

}  // namespace

std::optional<Refusal> take_topology(JobSpec& job, Values& values, const HostEnvironment& around,
                                     std::vector<std::string>& warnings,
                                     std::vector<std::string>& notes) {
  const auto given = values[Opt::Topology];
  if (const auto problem = topology_problem(given.text); !given.text.empty() && !problem.empty()) {
    return Refusal{fmt::format("{}: {}: {}", given.source, in_quotes(given.text), problem), 2,
                   false, "expected levels with points between them, as zone1.rack7"};
  }
  job.topology = given.text;
  if (!job.rank_order_topology) {
    // In the environment of all nodes of a cluster it is right all the same.
    if (given.origin == Origin::CommandLine)
      warnings.emplace_back("--topology has no effect without --rank-order topology");
    return std::nullopt;
  }
  if (job.standalone || !orders_nodes(job, warnings)) return std::nullopt;
  Found found{given.text, given.source};
  if (found.address.empty()) {
    found = find_address(around, warnings);
    job.topology = found.address;
    values.imply(
        Opt::Topology, found.address,
        found.address.empty() ? "by host name: neither Slurm nor the driver tells" : found.source);
  }
  notes.push_back(job.topology.empty()
                      ? "Ranks by topology: this node has no address, its host name orders it"
                      : fmt::format("Ranks by topology: the address of this node is {} ({})",
                                    job.topology, found.source));
  return std::nullopt;
}

}  // namespace elastrun::spec
