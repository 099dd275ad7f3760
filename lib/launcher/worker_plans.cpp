// SPDX-License-Identifier: Apache-2.0
#include "launcher/worker_plans.hpp"

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

Result<std::vector<workers::WorkerPlan>> WorkerPlans::make(const rendezvous::Round& round) {
  const auto place = placement_of(run_.spec, round, store_.serves_workers());
  // Where a file system may be slow they are made already: the round is held back for them.
  const auto folders = files_.take(round);
  if (!folders) return std::unexpected(folders.error());
  streams_.begin_attempt({folders->attempt, place.local_world_size, run_.spec.stdout_filters,
                          run_.spec.stderr_filters});
  // After the folders, in one of which its socket may lie.
  const std::string channel = files_.channel_path();
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
  const auto page = pages_.make(local_rank);
  auto environment = workers::worker_environment(run_.environment, facts_, place, local_rank,
                                                 {plan.error_file, directory, channel, page});
  if (!environment) return std::unexpected(environment.error());
  plan.request.environment = std::move(*environment);
  plan.request.argv = workers::worker_command(run_.spec, local_rank);
  plan.request.open_files = open_files_;
  plan.request.cgroup_fd = containment_.cgroup_fd();
  auto cpus = binding_.cpus(local_rank);
  if (!cpus) return std::unexpected(cpus.error());
  plan.request.cpus = std::move(*cpus);
  const auto settings = stream_settings(place, local_rank, directory);
  constexpr unsigned kErr = spec::StdMap::kErr;
  plan.stderr_shown =
      settings.shown && ((settings.tee & kErr) != 0 || (settings.redirect & kErr) == 0);
  auto streams = streams_.make(settings);
  if (!streams) return std::unexpected(streams.error());
  plan.streams = std::move(*streams);
  return plan;
}

logs::StreamSettings WorkerPlans::stream_settings(const workers::Placement& place, int local_rank,
                                                  const std::string& directory) const {
  logs::StreamSettings settings;
  settings.directory = directory;
  settings.redirect = run_.spec.redirects.of(local_rank);
  settings.tee = run_.spec.tee.of(local_rank);
  const auto& filter = run_.spec.local_ranks_filter;
  settings.shown = filter.empty() || std::ranges::find(filter, local_rank) != filter.end();
  settings.prefix = logs::line_prefix(run_.spec.prefix_template, place.role,
                                      place.rank_of(local_rank), local_rank);
  return settings;
}

}  // namespace elastrun::agent
