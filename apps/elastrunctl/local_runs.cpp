// SPDX-License-Identifier: Apache-2.0
#include "local_runs.hpp"

#include "core/text.hpp"
#include "process/held.hpp"
#include "table.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <set>

namespace elastrun::ctl {
namespace {

using runs::ListedRun;
using runs::RunEntry;

std::string names_of(const std::set<std::string>& ids) {
  std::vector<std::string> names;
  for (const auto& id : ids) names.push_back(fmt::format("\"{}\"", shown(id)));
  return join(names, ", ");
}

std::string age(WallTime since, WallTime now) {
  return format_duration(std::max<Duration>(now - since, Duration::zero()));
}

std::string nodes_text(const RunEntry& run) {
  if (run.max_nodes == 1) return "1";
  return run.min_nodes == run.max_nodes ? fmt::format("{}", run.max_nodes)
                                        : fmt::format("{} to {}", run.min_nodes, run.max_nodes);
}

std::string overview(const std::vector<ListedRun>& runs, WallTime now) {
  std::vector<std::vector<std::string>> rows{
      {"JOB", "PHASE", "RESTARTS", "NODES", "WORKERS", "UP", "AGENT", "SCRIPT"}};
  for (const auto& [run, path] : runs) {
    rows.push_back({shown(run.run_id), shown(run.phase),
                    fmt::format("{} of {}", run.attempt, run.max_restarts), nodes_text(run),
                    fmt::format("{}", run.workers.size()), age(run.started, now),
                    fmt::format("{}", run.pid), shown(run.entry_point)});
  }
  return table(rows);
}

std::string files_text(const RunEntry& run) {
  if (!run.keeps_output) return "  output goes to the terminal of elastrun, not to log files\n";
  if (run.run_directory.empty()) return "  log folder: not made yet\n";
  return fmt::format("  log folder: {}\n", shown(run.run_directory));
}

/// Of workers that are stopped or in a debugger: their job waits for them.
std::string held_text(const RunEntry& run) {
  std::string text;
  for (const auto& worker : run.workers) {
    const auto process = process::read_process(worker.pid);
    if (!process || process->start_time != worker.start_time) continue;
    const auto by = process::held_by(worker.pid);
    if (!by.empty()) text += fmt::format("  rank {} is {}\n", worker.rank, by);
  }
  return text;
}

std::string details(const RunEntry& run, WallTime now) {
  std::string text =
      fmt::format("job \"{}\": {} for {}, {} of {} restarts spent, up {}\n  {}, agent {}{}\n",
                  shown(run.run_id), shown(run.phase), age(run.phase_since, now), run.attempt,
                  run.max_restarts, age(run.started, now), shown(run.entry_point), run.pid,
                  run.max_nodes > 1 ? fmt::format(", one of {} nodes", nodes_text(run)) : "");
  text += files_text(run);
  if (!run.endpoint.empty()) {
    text += fmt::format("  all nodes: elastrunctl status {}\n", shown(run.endpoint));
  }
  if (run.workers.empty()) return text;
  std::vector<std::vector<std::string>> rows{{"RANK", "LOCAL RANK", "PID", "UP"}};
  for (const auto& worker : run.workers) {
    rows.push_back({fmt::format("{}", worker.rank), fmt::format("{}", worker.local_rank),
                    fmt::format("{}", worker.pid), age(run.group_started, now)});
  }
  return text + table(rows) + held_text(run);
}

}  // namespace

Result<std::vector<ListedRun>> runs_of(std::vector<ListedRun> all, const std::string& job) {
  std::set<std::string> there, meant;
  for (const auto& run : all) there.insert(run.entry.run_id);
  for (const auto& id : there) {
    if (id.starts_with(job)) meant.insert(id);
  }
  if (!job.empty() && there.contains(job)) meant = {job};
  if (there.empty()) {
    return fail(Code::Rendezvous, "no job of this user runs on this machine");
  }
  if (meant.empty()) {
    return fail(Code::Rendezvous,
                fmt::format("no job \"{}\" of this user runs on this machine; jobs: {}", shown(job),
                            names_of(there)));
  }
  if (meant.size() > 1) {
    return fail(Code::Rendezvous,
                job.empty() ? fmt::format("several jobs run here, name one: {}", names_of(meant))
                            : fmt::format("\"{}\" begins the names of several jobs: {}", shown(job),
                                          names_of(meant)));
  }
  std::erase_if(all, [&](const auto& run) { return run.entry.run_id != *meant.begin(); });
  return all;
}

std::string local_status_text(const std::vector<ListedRun>& runs, WallTime now) {
  if (runs.empty()) return "no job of this user runs on this machine\n";
  const auto& first = runs.front().entry.run_id;
  const bool one_job =
      std::ranges::all_of(runs, [&](const auto& run) { return run.entry.run_id == first; });
  if (!one_job) return overview(runs, now);
  std::string text;
  for (const auto& run : runs) text += details(run.entry, now);
  return text;
}

std::string dead_runs_text(const std::vector<runs::DeadRun>& dead) {
  std::string text;
  for (const auto& one : dead) {
    text += fmt::format("job \"{}\": agent and guardian were killed, and these live on: {}\n",
                        shown(one.run.entry.run_id), runs::names_of(one.left));
  }
  if (dead.empty()) return text;
  return text + "  elastrunctl clean kills them, and so does the next start of elastrun\n";
}

std::string local_status_json(const std::vector<ListedRun>& runs) {
  std::string list;
  for (const auto& run : runs) {
    list += (list.empty() ? "" : ",") + std::string(trim(runs::encode(run.entry)));
  }
  return "{\"runs\":[" + list + "]}\n";
}

}  // namespace elastrun::ctl
