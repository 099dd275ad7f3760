// SPDX-License-Identifier: Apache-2.0
#include "runs/leftovers.hpp"

#include "core/text.hpp"
#include "process/descendants.hpp"
#include "process/kernel_file.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <signal.h>
#include <unistd.h>

namespace elastrun::runs {
namespace {

using process::ProcessEntry;
using process::ProcessTable;

bool has_mark(pid_t pid, const std::string& agent_id, const std::string& proc) {
  std::string text(1, '\0');
  text += process::read_kernel_file(fmt::format("{}/{}/environ", proc, pid));
  using namespace std::string_literals;
  return text.contains("\0ELASTRUN_AGENT_ID="s + agent_id + "\0"s);
}

/// Whether the session of that number is that of the worker: no other process leads it.
bool is_session_of(const RunWorker& worker, const ProcessTable& table) {
  return std::ranges::none_of(table, [&](const ProcessEntry& one) {
    return one.pid == worker.pid && one.start_time != worker.start_time;
  });
}

bool is_in_session_of(const RunWorker& worker, const ProcessEntry& one) {
  return worker.pid > 1 && worker.start_time > 0 && one.session == worker.pid &&
         one.start_time >= worker.start_time;
}

/// Those that are the run's if they have its mark.
ProcessTable candidates(const RunEntry& entry, const ProcessTable& table) {
  ProcessTable found;
  if (entry.agent_id.empty()) return found;
  for (const RunWorker& worker : entry.workers) {
    if (!is_session_of(worker, table)) continue;
    std::ranges::copy_if(table, std::back_inserter(found), [&](const ProcessEntry& one) {
      return is_in_session_of(worker, one) && !one.zombie();
    });
  }
  return found;
}

}  // namespace

Leftovers leftovers_of(const RunEntry& entry, const ProcessTable& table, const std::string& proc) {
  Leftovers left;
  for (const ProcessEntry& one : candidates(entry, table)) {
    if (process::any_thread_hangs(one.pid, proc)) {
      left.unsure = true;
    } else if (has_mark(one.pid, entry.agent_id, proc)) {
      left.certain.push_back(one);
    }
  }
  return left;
}

std::vector<DeadRun> list_dead_runs(const std::vector<std::string>& places) {
  std::vector<DeadRun> found;
  auto dead = list_runs(places, Agents::Gone);
  if (dead.empty()) return found;
  const auto table = process::read_all_processes();
  for (auto& run : dead) {
    auto left = leftovers_of(run.entry, table);
    if (!left.certain.empty()) {
      found.push_back({std::move(run), std::move(left.certain), left.unsure});
    } else if (!left.unsure) {
      ::unlink(run.path.c_str());
    }
  }
  return found;
}

std::vector<EndedRun> end_dead_runs(const std::vector<std::string>& places, Duration limit) {
  std::vector<EndedRun> ended;
  const auto until = std::chrono::steady_clock::now() + limit;
  auto dead = list_dead_runs(places);
  for (const DeadRun& run : dead) process::signal_each(run.left, SIGKILL);
  for (DeadRun& run : dead) {
    const Duration left = until - std::chrono::steady_clock::now();
    auto alive = process::kill_listed(run.left, std::max(left, Duration::zero()));
    if (alive.empty() && !run.unsure) ::unlink(run.run.path.c_str());
    ended.push_back({std::move(run.run.entry), std::move(run.left), std::move(alive)});
  }
  return ended;
}

std::string names_of(const ProcessTable& table) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> names;
  for (const ProcessEntry& one : table) {
    if (names.size() == kMost) break;
    names.push_back(fmt::format("{} ({})", one.pid, process::command_of(one)));
  }
  auto text = join(names, ", ");
  if (table.size() > kMost) text += fmt::format(" and {} more", table.size() - kMost);
  return text;
}

}  // namespace elastrun::runs
