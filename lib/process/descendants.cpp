// SPDX-License-Identifier: Apache-2.0
#include "process/descendants.hpp"

#include "core/unique_fd.hpp"
#include "process/process_status.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <poll.h>
#include <set>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

// After a kill: how long to wait for deaths before looking again for what was born meanwhile.
constexpr auto kShortest = milliseconds(5), kLongest = milliseconds(200);

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

void reap(pid_t pid) {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | __WALL);
}

// Signals the process that `seen` describes, if it still is that one. Holds it by the result.
UniqueFd signal_one(const ProcessEntry& seen, int signal) {
  UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, seen.pid, 0)));
  const auto now = read_process(seen.pid);
  // Read after the pidfd is open: a number that was given away since the table has another start.
  if (!now || now->start_time != seen.start_time) return UniqueFd();
  if (held) {
    ::syscall(SYS_pidfd_send_signal, held.get(), signal, nullptr, 0);
  } else {
    ::kill(seen.pid, signal);  // no descriptor left: still better than not at all
  }
  return held;
}

// A process that for ever forks and ends has no pid for long enough to be killed by it. Its group
// has: fork(2) and a signal to the group exclude each other in the kernel. Zombies count, since of
// such a process nothing else may be seen; and as long as they are not reaped, they keep the number
// of their group from being given to others.
void kill_groups(const ProcessTable& table, const std::set<pid_t>& spared_sessions) {
  std::set<pid_t> groups;
  const pid_t own_session = ::getsid(0);
  for (const ProcessEntry& entry : table) {
    // Sessions other than ours were made by descendants, so all in them are descendants. In that of
    // a spared process a group may hold both its descendants and an orphan; a process cannot join
    // the group of another session (setpgid(2)).
    const bool apart = entry.session != own_session && !spared_sessions.contains(entry.session);
    if (apart && entry.group > 1) groups.insert(entry.group);
  }
  for (const pid_t group : groups) {
    if (any_live_child_in_group(group)) ::kill(-group, SIGKILL);
  }
}

void await_deaths(std::vector<UniqueFd> victims, Duration time_limit) {
  const auto until = Steady::now() + time_limit;
  if (victims.empty()) ::poll(nullptr, 0, 1);  // something lives that was not found: no busy loop
  while (!victims.empty()) {
    std::vector<pollfd> waiting;
    for (const UniqueFd& victim : victims) waiting.push_back({victim.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<milliseconds>(until - Steady::now()).count();
    if (left <= 0) return;
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left));
    std::size_t index = 0;
    std::erase_if(victims, [&](const UniqueFd&) { return waiting[index++].revents != 0; });
  }
}

// The descendants that are to end, dead ones among them.
struct Victims {
  ProcessTable table;
  bool any_spared_alive = false;
  std::set<pid_t> spared_sessions;
};

Victims find_victims(const std::vector<pid_t>& spared) {
  const pid_t self = ::getpid();
  const ProcessTable all = read_descendants(self);
  Victims victims;
  victims.table = descendants(all, self, spared);
  std::set<pid_t> pids;
  for (const ProcessEntry& entry : victims.table) pids.insert(entry.pid);
  for (const ProcessEntry& entry : all) {
    if (!entry.zombie() && contains(spared, entry.pid)) victims.any_spared_alive = true;
    // What is below a spared process is spared as well.
    if (!pids.contains(entry.pid)) victims.spared_sessions.insert(entry.session);
  }
  return victims;
}

void reap_all(ProcessTable& victims) {
  std::erase_if(victims, [self = ::getpid()](const ProcessEntry& entry) {
    if (entry.zombie() && entry.parent == self) reap(entry.pid);
    return entry.zombie();
  });
}

std::vector<UniqueFd> kill_and_hold(const ProcessTable& victims) {
  std::vector<UniqueFd> held;
  for (const ProcessEntry& victim : victims) {
    if (UniqueFd one = signal_one(victim, SIGKILL)) held.push_back(std::move(one));
  }
  return held;
}

void reap_all() {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | __WALL) == 0 && info.si_pid != 0) {
    info = {};
  }
}

}  // namespace

bool is_out_of_reach(pid_t pid) {
  return ::kill(pid, 0) != 0 && errno == EPERM;
}

std::string owner_of(pid_t pid, const std::string& proc) {
  const auto user = read_status(pid, proc).user;
  return user ? fmt::format("user {}", *user) : "another user";
}

bool KillResult::out_of_reach() const {
  return !alive.empty() &&
         std::ranges::all_of(alive, [](const auto& one) { return is_out_of_reach(one.pid); });
}

std::string KillResult::survivors() const {
  std::string text;
  for (const ProcessEntry& entry : alive) {
    const auto owner = is_out_of_reach(entry.pid) ? ", of " + owner_of(entry.pid) : std::string();
    text += fmt::format("{}{} ({}, state {}{})", text.empty() ? "" : ", ", entry.pid, entry.name,
                        entry.state, owner);
  }
  return text;
}

KillResult kill_descendants(const std::vector<pid_t>& spared, Duration limit) {
  KillResult result;
  const auto until = Steady::now() + limit;
  std::set<std::pair<pid_t, std::uint64_t>> counted;
  Duration time_limit = kShortest;
  for (int quiet = 0, rounds = 0;; ++rounds) {
    if (!any_live_child()) {
      if (spared.empty()) reap_all();
      return result;
    }
    auto [victims, any_spared_alive, spared_sessions] = find_victims(spared);
    kill_groups(victims, spared_sessions);
    reap_all(victims);
    // A table is read entry by entry, so a birth can be overlooked: with a process to spare, when
    // the system call above cannot decide, only the second empty table is believed.
    quiet = victims.empty() ? quiet + 1 : 0;
    if (any_spared_alive && quiet == 2) return result;
    result.alive = victims;
    if (rounds > 0 && (Steady::now() >= until || result.out_of_reach())) return result;
    result.alive.clear();
    for (const ProcessEntry& victim : victims) counted.emplace(victim.pid, victim.start_time);
    result.killed = static_cast<int>(counted.size());
    // The second look at an empty table is taken at once: nothing is there to be waited for, and a
    // restart waits for us.
    if (quiet > 0 && any_spared_alive) continue;
    await_deaths(kill_and_hold(victims), std::min<Duration>(time_limit, until - Steady::now()));
    time_limit = std::min<Duration>(time_limit * 2, kLongest);
  }
}

void signal_each(const ProcessTable& table, int signal) {
  for (const ProcessEntry& entry : table) {
    signal_one(entry, signal);
    // A stopped process hears SIGTERM only when it goes on.
    if (signal != SIGKILL) signal_one(entry, SIGCONT);
  }
}

ProcessTable kill_listed(const ProcessTable& table, Duration limit) {
  if (!table.empty()) await_deaths(kill_and_hold(table), limit);
  ProcessTable alive = table;
  std::erase_if(alive, [](const ProcessEntry& entry) {
    const auto now = read_process(entry.pid);
    return !now || now->start_time != entry.start_time || now->zombie();
  });
  return alive;
}

bool reap_adopted(const std::vector<pid_t>& known) {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0) {
    if (info.si_pid == 0) break;
    // A worker's zombie is its launcher's: its number must stay taken while its group may be
    // signalled. What ended after it hides behind it, see reap_adopted_by_table().
    if (contains(known, info.si_pid)) return false;
    reap(info.si_pid);
    info = {};
  }
  return true;
}

void reap_adopted_by_table(const std::vector<pid_t>& known) {
  for (const ProcessEntry& entry : read_children(::getpid())) {
    if (entry.zombie() && !contains(known, entry.pid)) reap(entry.pid);
  }
}

}  // namespace elastrun::process
