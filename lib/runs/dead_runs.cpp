// SPDX-License-Identifier: Apache-2.0
#include "runs/dead_runs.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>

namespace elastrun::runs {
namespace {

using process::ProcessEntry;
using process::ProcessTable;

bool has_mark(pid_t pid, const std::string& agent_id, const std::string& proc) {
  // Each pair in environ ends with a NUL (proc(5)). With one before the first pair, too, a search
  // finds whole pairs alone, and not the value of another variable.
  std::string text(1, '\0');
  text += read_kernel_file(fmt::format("{}/{}/environ", proc, pid));
  using namespace std::string_literals;
  return text.contains("\0ELASTRUN_AGENT_ID="s + agent_id + "\0"s);
}

/// A table by session, so that thousands of runs are compared with it in no time. Borrows it.
class Sessions {
 public:
  explicit Sessions(const ProcessTable& table) {
    for (const ProcessEntry& one : table) {
      by_pid_.emplace(one.pid, &one);
      members_[one.session].push_back(&one);
    }
    // insert() says false at the second visit: a number that was given away while the table was
    // read may lead in a circle.
    for (pid_t pid = ::getpid(); own_.insert(pid).second;) {
      const auto found = by_pid_.find(pid);
      if (found == by_pid_.end()) break;
      pid = found->second->parent;
    }
  }

  /// The processes in that worker's session that are not older than it; none if another process
  /// leads
  /// the session of that number by now.
  std::vector<const ProcessEntry*> of(const RunWorker& worker) const {
    const auto leader = by_pid_.find(worker.pid);
    const auto session = members_.find(worker.pid);
    if (worker.pid <= 1 || worker.start_time == 0 || session == members_.end()) return {};
    if (leader != by_pid_.end() && leader->second->start_time != worker.start_time) return {};
    auto found = session->second;
    std::erase_if(found, [&](const auto* one) {
      return one->zombie() || one->start_time < worker.start_time;
    });
    return found;
  }

  /// This process, who has started it, or of its session: a shell of the run in which a user types
  /// now.
  bool is_own(const ProcessEntry& one) const {
    return one.session == own_session_ || own_.contains(one.pid);
  }

 private:
  std::unordered_map<pid_t, const ProcessEntry*> by_pid_;
  std::unordered_map<pid_t, std::vector<const ProcessEntry*>> members_;
  std::unordered_set<pid_t> own_;  // this process and its ancestors
  const pid_t own_session_ = ::getsid(0);
};

Leftovers leftovers_in(const Sessions& sessions, const RunEntry& entry, const std::string& proc) {
  Leftovers left;
  // Without it nothing proves whose processes they are.
  if (entry.agent_id.empty()) return left;
  for (const RunWorker& worker : entry.workers) {
    for (const auto* const one : sessions.of(worker)) {
      if (sessions.is_own(*one) || process::any_thread_hangs(one->pid, proc)) {
        left.unsure = true;
      } else if (has_mark(one->pid, entry.agent_id, proc)) {
        left.certain.push_back(*one);
      }
    }
  }
  return left;
}

}  // namespace

Leftovers leftovers_of(const RunEntry& entry, const ProcessTable& table, const std::string& proc) {
  return leftovers_in(Sessions(table), entry, proc);
}

std::vector<DeadRun> list_dead_runs(const std::vector<std::string>& places) {
  std::vector<DeadRun> found;
  auto dead = list_runs(places, Agents::Gone);
  // Nearly every start ends here, and reads no table of all processes.
  if (dead.empty()) return found;
  const auto table = process::read_all_processes();
  const Sessions sessions(table);
  for (auto& run : dead) {
    auto left = leftovers_in(sessions, run.entry, "/proc");
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
  // All, before the first one is waited for: they end side by side within the limit.
  for (const DeadRun& run : dead) process::signal_each(run.left, SIGKILL);
  for (DeadRun& run : dead) {
    const Duration left = until - std::chrono::steady_clock::now();
    auto alive = process::kill_listed(run.left, std::max(left, Duration::zero()));
    // The file names the sessions to look into, so it stays while something may live in them.
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
