// SPDX-License-Identifier: Apache-2.0
#include "agent/round/worker_plans.hpp"

#include "logs/line_splitter.hpp"
#include "workers/command.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/resource.h>

namespace elastrun::agent {

namespace {

/// "Too many open files" is of use only together with the limit.
Error with_limit(Error error, int workers) {
  rlimit limit{};
  if (!error.text.contains(std::strerror(EMFILE))) return error;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return error;
  error.text += fmt::format(
      "; {} workers need more descriptors than the limit of {} allows: raise it (ulimit -n)",
      workers, limit.rlim_cur);
  return error;
}

}  // namespace

net::Endpoint meeting_place(const spec::JobSpec& spec, const rendezvous::Round& round) {
  // What node 0 was told is in the round, unless it means nothing to others.
  const bool told = spec.rdzv_backend == spec::backend::kStatic && round.group_rank != 0 &&
                    !spec.master_addr.empty();
  if (told) return {spec.master_addr, static_cast<std::uint16_t>(spec.master_port.value_or(0))};
  return {round.master_addr, round.master_port};
}

workers::Placement placement_of(const spec::JobSpec& spec, const rendezvous::Round& round,
                                bool use_agent_store) {
  const auto& self = round.members[static_cast<std::size_t>(round.group_rank)];
  workers::Placement place;
  place.attempt = round.attempt;
  place.group_rank = round.group_rank;
  place.group_world_size = round.group_world_size();
  place.local_world_size = self.local_world_size;
  place.rank_base = round.rank_base;
  place.world_size = round.world_size;
  place.role_rank_base = round.role_rank_base;
  place.role_world_size = round.role_world_size;
  place.role = self.role;
  const auto meeting = meeting_place(spec, round);
  place.master_addr = meeting.host;
  place.master_port = meeting.port;
  place.use_agent_store = use_agent_store;
  return place;
}

Result<Folders> make_folders(logs::Layout& layout, int attempt, int workers) {
  auto directory = layout.make_attempt(attempt);
  if (!directory) return std::unexpected(directory.error());
  Folders made{std::move(*directory), {}};
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    auto rank = layout.make_rank(made.attempt, local_rank);
    if (!rank) return std::unexpected(rank.error());
    made.ranks.push_back(std::move(*rank));
  }
  return made;
}

Result<std::vector<workers::WorkerPlan>> WorkerPlans::make(const rendezvous::Round& round) {
  const auto place = placement_of(spec_, round, parts_.use_agent_store());
  // Where a file system may be slow they are made already: the round is held back for them.
  const auto folders = parts_.folders(round);
  if (!folders) return std::unexpected(folders.error());
  parts_.streams.begin_attempt(
      {folders->attempt, place.local_world_size, spec_.stdout_filters, spec_.stderr_filters});
  // After the folders, in one of which its socket may lie.
  const std::string channel = parts_.channel ? parts_.channel() : std::string();
  std::vector<workers::WorkerPlan> plans;
  plans.reserve(static_cast<std::size_t>(place.local_world_size));
  for (int local_rank = 0; local_rank < place.local_world_size; ++local_rank) {
    const auto& directory = folders->ranks[static_cast<std::size_t>(local_rank)];
    auto plan = make_one(place, local_rank, directory, channel);
    if (!plan) return std::unexpected(with_limit(plan.error(), place.local_world_size));
    plans.push_back(std::move(*plan));
  }
  return plans;
}

Result<workers::WorkerPlan> WorkerPlans::make_one(const workers::Placement& place, int local_rank,
                                                  const std::string& directory,
                                                  const std::string& channel) {
  workers::WorkerPlan plan;
  plan.rank = place.rank_of(local_rank);
  plan.local_rank = local_rank;
  plan.error_file = logs::error_file(directory);
  const auto page = parts_.page ? parts_.page(local_rank) : std::string();
  auto environment =
      workers::worker_environment(parts_.environment, parts_.facts, place, local_rank,
                                  {plan.error_file, directory, channel, page});
  if (!environment) return std::unexpected(environment.error());
  plan.request.environment = std::move(*environment);
  plan.request.argv = workers::worker_command(spec_, local_rank);
  plan.request.open_files = parts_.open_files;
  if (parts_.cgroup_fd) plan.request.cgroup_fd = parts_.cgroup_fd();
  if (parts_.cpus) {
    auto cpus = parts_.cpus(local_rank);
    if (!cpus) return std::unexpected(cpus.error());
    plan.request.cpus = std::move(*cpus);
  }
  const auto settings = stream_settings(place, local_rank, directory);
  constexpr unsigned kErr = spec::StdMap::kErr;
  plan.stderr_shown =
      settings.shown && ((settings.tee & kErr) != 0 || (settings.redirect & kErr) == 0);
  auto streams = parts_.streams.make(settings);
  if (!streams) return std::unexpected(streams.error());
  plan.streams = std::move(*streams);
  return plan;
}

logs::StreamSettings WorkerPlans::stream_settings(const workers::Placement& place, int local_rank,
                                                  const std::string& directory) const {
  logs::StreamSettings settings;
  settings.directory = directory;
  settings.redirect = spec_.redirects.of(local_rank);
  settings.tee = spec_.tee.of(local_rank);
  const auto& filter = spec_.local_ranks_filter;
  settings.shown = filter.empty() || std::ranges::find(filter, local_rank) != filter.end();
  settings.prefix =
      logs::line_prefix(spec_.prefix_template, place.role, place.rank_of(local_rank), local_rank);
  return settings;
}

}  // namespace elastrun::agent
