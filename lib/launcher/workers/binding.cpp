// SPDX-License-Identifier: Apache-2.0
#include "launcher/workers/binding.hpp"

#include "core/log.hpp"
#include "process/affinity.hpp"
#include "system/devices.hpp"

#include <cstdlib>

namespace elastrun::agent {
namespace {

process::BindingMode mode_of(spec::NumaBinding numa) {
  switch (numa) {
    case spec::NumaBinding::Socket:
      return process::BindingMode::Socket;
    case spec::NumaBinding::Exclusive:
      return process::BindingMode::Exclusive;
    case spec::NumaBinding::CoreComplex:
      return process::BindingMode::CoreComplex;
    default:
      return process::BindingMode::Node;
  }
}

Result<process::BindingPlan> make_plan(const spec::JobSpec& spec) {
  const auto topology = process::read_topology();
  if (!topology) return std::unexpected(topology.error());
  return process::plan_binding(mode_of(spec.numa), *topology, system::gpu_numa_nodes(::getenv),
                               spec.nproc_per_node);
}

}  // namespace

Result<std::vector<int>> Binding::cpus(int local_rank) {
  if (spec_.numa == spec::NumaBinding::None) return std::vector<int>{};
  if (!plan_) {
    auto plan = make_plan(spec_);
    if (!plan) return std::unexpected(plan.error().context("cannot bind the workers"));
    if (!plan->note.empty()) log::warning("binding", "{}", plan->note);
    // Kept over all attempts: a worker that is started again stays near its device.
    plan_ = std::move(plan->cpus);
  }
  return (*plan_)[static_cast<std::size_t>(local_rank)];
}

void Binding::on(const moment::Started& seen) {
  if (!plan_) return;
  for (const auto& worker : seen.group) {
    const auto& wanted = (*plan_)[static_cast<std::size_t>(worker.local_rank)];
    if (worker.exit) continue;
    if (const auto bound = process::check_binding(worker.pid, wanted); !bound) {
      log::warning("binding", "{}", bound.error().text);
    } else {
      log::info("binding", "Local rank {} runs on CPUs {}", worker.local_rank,
                process::format_cpus(wanted));
    }
  }
}

}  // namespace elastrun::agent
