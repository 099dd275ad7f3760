// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "local_runs.hpp"
#include "log_follower.hpp"
#include "subcommands.hpp"
#include "text_table.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <list>
#include <poll.h>
#include <vector>

namespace elastrun::ctl {
namespace {

/// Why nothing can be shown; empty if something can, now or later.
std::string obstacle(const std::vector<runs::ListedRun>& chosen, const LogsOptions& options) {
  const auto& name = chosen.front().entry.name;
  if (std::ranges::none_of(chosen, [](const auto& run) { return run.entry.keeps_output; })) {
    return fmt::format(
        "the job \"{}\" keeps no log files: its output goes to where elastrun was started. Start "
        "it with --tee 3 (to both) or --redirects 3 (to files)",
        shown(name));
  }
  if (!options.rank) return {};
  std::vector<std::string> ranks;
  for (const auto& run : chosen) {
    for (const auto& worker : run.entry.workers) {
      if (worker.rank == *options.rank) return {};
      ranks.push_back(fmt::format("{}", worker.rank));
    }
  }
  if (ranks.empty()) return {};  // no worker runs at the moment: that one may come
  return fmt::format("the job \"{}\" has no rank {} on this machine; ranks here: {}", shown(name),
                     *options.rank, join(ranks, ", "));
}

/// Until all have ended.
void follow(std::list<LogFollower>& followers) {
  while (!followers.empty()) {
    for (auto one = followers.begin(); one != followers.end();) {
      if (one->advance()) {
        one->finish();
        one = followers.erase(one);
      } else {
        ++one;
      }
    }
    std::vector<pollfd> waits;
    for (const auto& one : followers) {
      waits.push_back({one.events_fd(), POLLIN, 0});
      waits.push_back({one.agent_fd(), POLLIN, 0});
    }
    // Without a limit: inotify tells of the log folder, of the entry and of its removal, and the
    // pidfd of an agent that was killed and removed nothing.
    if (!waits.empty()) ::poll(waits.data(), waits.size(), -1);
  }
}

}  // namespace

int run_logs(const LogsOptions& options) {
  auto chosen = runs_of(runs_here(), options.job);
  if (!chosen) return report_error(chosen.error().text, kExitFailed);
  if (const auto why = obstacle(*chosen, options); !why.empty())
    return report_error(why, kExitFailed);
  std::size_t workers = 0;
  for (const auto& run : *chosen) workers += run.entry.workers.size();
  std::list<LogFollower> followers;
  for (auto& run : *chosen) {
    followers.emplace_back(std::move(run), options, !options.rank && workers != 1);
    if (const auto watched = followers.back().watch(); !watched) {
      return report_error(watched.error().text, kExitFailed);
    }
  }
  if (options.follow) {
    follow(followers);
  } else {
    for (auto& one : followers) one.finish();
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
