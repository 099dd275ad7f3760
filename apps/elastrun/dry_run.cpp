// SPDX-License-Identifier: Apache-2.0
#include "dry_run.hpp"

#include "agent/round/worker_plans.hpp"
#include "launcher/workers/binding.hpp"
#include "logs/layout.hpp"
#include "process/affinity.hpp"
#include "workers/command.hpp"

#include <fmt/format.h>

namespace elastrun {
namespace {

/// The word as a shell would need it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_line(const std::vector<std::string>& argv) {
  std::string line;
  for (const auto& word : argv) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

std::string streams_text(const spec::JobSpec& spec, int local_rank) {
  constexpr std::string_view kNames[] = {"none", "stdout", "stderr", "stdout and stderr"};
  return fmt::format("redirected: {}; tee: {}", kNames[spec.redirects.of(local_rank) & 3],
                     kNames[spec.tee.of(local_rank) & 3]);
}

/// The world as it would be if this node were alone, or the first of equal ones.
workers::Placement assumed_placement(const spec::JobSpec& spec) {
  workers::Placement place;
  place.local_world_size = spec.nproc_per_node;
  place.group_world_size = spec.max_nodes;
  place.group_rank = spec.node_rank_given ? spec.node_rank : 0;
  place.world_size = place.role_world_size = spec.nproc_per_node * spec.max_nodes;
  place.rank_base = place.role_rank_base = place.group_rank * spec.nproc_per_node;
  place.role = spec.role;
  place.master_addr = spec.master_addr;
  place.master_port = static_cast<std::uint16_t>(spec.master_port.value_or(0));
  return place;
}

std::string counted(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string nodes_text(const spec::JobSpec& spec) {
  const auto most = counted(spec.max_nodes, "node");
  return spec.min_nodes == spec.max_nodes ? most : fmt::format("{} to {}", spec.min_nodes, most);
}

}  // namespace

Result<std::string> dry_run_text(const spec::JobSpec& spec) {
  const auto layout = logs::Layout::plan(spec.log_dir, spec.directory_name());
  if (!layout) return std::unexpected(layout.error());
  const auto place = assumed_placement(spec);
  const workers::JobFacts facts{spec, "<agent>"};
  const auto environment = workers::own_environment();
  const std::string base =
      layout->is_null() ? "" : (spec.log_dir.empty() ? "<temporary>" : spec.log_dir);
  std::string text = fmt::format(
      "job {}: {}, {}{}, {}\n"
      "rendezvous: {} at {}\n",
      spec.name, nodes_text(spec), counted(spec.nproc_per_node, "worker"),
      spec.max_nodes == 1 ? "" : " on each", counted(spec.max_restarts, "restart"),
      spec.rdzv_backend, spec.rdzv_endpoint);
  agent::Binding binding(spec);
  for (int local_rank = 0; local_rank < spec.nproc_per_node; ++local_rank) {
    const std::string directory = base.empty() ? ""
                                               : fmt::format("{}/{}_<random>/attempt_0/{}", base,
                                                             spec.directory_name(), local_rank);
    const auto variables = workers::contract_variables(
        environment, facts, place, local_rank,
        {logs::error_file(directory), directory, base.empty() ? "" : "<channel>"});
    if (!variables) return std::unexpected(variables.error());
    text +=
        fmt::format("\nworker {} (local rank {})\n  command      {}\n", place.rank_of(local_rank),
                    local_rank, shell_line(workers::worker_command(spec, local_rank)));
    text += fmt::format("  directory    {}\n  streams      {}\n",
                        directory.empty() ? "none" : directory, streams_text(spec, local_rank));
    const auto cpus = binding.cpus(local_rank);
    if (!cpus) return std::unexpected(cpus.error());
    text += fmt::format("  binding      {}\n",
                        cpus->empty() ? "none" : "CPUs " + process::format_cpus(*cpus));
    for (const auto& variable : *variables) text += fmt::format("  environment  {}\n", variable);
    for (const auto& [name, value] : spec.worker_env) {
      if (!workers::is_secret(name, value))
        text += fmt::format("  environment  {}={}\n", name, value);
    }
  }
  return text;
}

}  // namespace elastrun
