// SPDX-License-Identifier: Apache-2.0

#include "process/process_table.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <dirent.h>
#include <fmt/format.h>
#include <memory>
#include <poll.h>
#include <set>
#include <signal.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>

namespace elastrun::process {
namespace {

// time(1) ignores what a terminal sends and dies of the rest: so does a shell that has no trap.
constexpr std::array<std::string_view, 13> kShells = {"sh",   "ash",   "bash", "dash", "zsh",
                                                      "ksh",  "ksh93", "mksh", "fish", "csh",
                                                      "tcsh", "rbash", "time"};
constexpr std::array<std::string_view, 3> kManyInOne = {"busybox", "toybox", "coreutils"};

bool contains(const auto& all, const auto& one) {
  return std::ranges::find(all, one) != all.end();
}

/// The last part of the path; nothing if it cannot be read, as that of another user's.
std::string program_of(pid_t pid, const std::string& proc) {
  std::array<char, PATH_MAX> text{};
  const auto file = proc + "/" + std::to_string(pid) + "/exe";
  const auto length = ::readlink(file.c_str(), text.data(), text.size());
  if (length <= 0) return {};
  std::string_view path(text.data(), static_cast<std::size_t>(length));
  constexpr std::string_view kReplaced = " (deleted)";  // by an update, while it runs
  if (path.ends_with(kReplaced)) path.remove_suffix(kReplaced.size());
  return std::string(path.substr(path.rfind('/') + 1));
}

/// True if it blocks or ignores SIGTERM.
bool is_deaf(pid_t pid, const std::string& proc) {
  const auto status = read_status(pid, proc);
  return ((status.blocked | status.ignored) & bit_of(SIGTERM)) != 0;
}

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

// After a kill: how long to wait for deaths before looking again for what was born meanwhile.
constexpr auto kShortest = milliseconds(5), kLongest = milliseconds(200);

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

Wrapper wrapper_of(const ProcessEntry& process, const std::string& proc) {
  const auto program = program_of(process.pid, proc);
  const bool by_name = program.empty() || contains(kManyInOne, program);
  const std::string_view name = by_name ? process.name : program;
  if (name == "timeout") return Wrapper::Relay;
  if (contains(kShells, name)) return Wrapper::Shell;
  return waits_for_child(process, proc) && is_deaf(process.pid, proc) ? Wrapper::Shell
                                                                      : Wrapper::None;
}

bool leaves_to(const ProcessEntry& parent, const ProcessEntry& child, const std::string& proc) {
  return waits_for_child(parent, proc, true) &&
         (read_status(child.pid, proc).caught & bit_of(SIGTERM)) != 0;
}

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

namespace {

/// The first number of a line. Names come before it, in which line ends are escaped (proc(5)).
template <class Number>
std::optional<Number> number_of(std::string_view status, std::string_view field, int base) {
  const auto at = status.find(field);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const first = status.data() + at + field.size();
  Number number{};
  const auto [end, error] = std::from_chars(first, status.data() + status.size(), number, base);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

std::string traced_by(pid_t tracer) {
  const auto process = read_process(tracer);
  return fmt::format("traced by {} (pid {})", process ? printable(process->name) : "a process",
                     tracer);
}

/// `seen`: a pid that was used again while we look may be its own ancestor.
std::string held_by(const ProcessEntry& process, std::set<pid_t>& seen) {
  if (!seen.insert(process.pid).second) return {};
  if (const pid_t tracer = read_status(process.pid).tracer; tracer != 0) return traced_by(tracer);
  if (process.state == 'T' || process.state == 't') return "stopped by a signal";
  const bool waits = waits_for_child(process);
  for (const auto& child : read_children(process.pid)) {
    if (child.session != process.session) continue;
    if (!waits && read_status(child.pid).tracer != process.pid) continue;
    const auto held = held_by(child, seen);
    if (held.empty()) continue;
    return fmt::format("waiting for {} (pid {}), {}", printable(child.name), child.pid, held);
  }
  return {};
}

constexpr std::string_view kProc = "/proc";

// Asked once: a process does not change its pid namespace, nor do forks of it.
bool is_ours(std::string_view proc) {
  static const bool ours = [] {
    std::array<char, 32> self{};
    const auto size = ::readlink("/proc/self", self.data(), self.size());
    const bool is = size > 0 && std::string_view(self.data(), static_cast<std::size_t>(size)) ==
                                    std::to_string(::getpid());
    if (!is) {
      log::warning("process",
                   "/proc is not that of this pid namespace (mount one: unshare --mount-proc); "
                   "processes that leave the group of their worker cannot be found");
    }
    return is;
  }();
  return proc != kProc || ours;
}

template <class T>
bool read_number(std::string_view word, T& number) {
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && stop == word.data() + word.size() && !word.empty();
}

// The numbers among the names in a directory, which are pids or thread ids.
std::vector<pid_t> numbered_entries(const std::string& directory) {
  std::vector<pid_t> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  while (listing) {
    const dirent* const entry = ::readdir(listing.get());
    if (entry == nullptr) break;
    pid_t number = 0;
    if (read_number(entry->d_name, number)) numbers.push_back(number);
  }
  return numbers;
}

// A kernel can be built without (CONFIG_PROC_CHILDREN).
bool lists_children(pid_t pid, const std::string& proc) {
  const std::string task = proc + "/" + std::to_string(pid) + "/task/" + std::to_string(pid);
  return ::access((task + "/children").c_str(), R_OK) == 0;
}

std::vector<pid_t> children_of(pid_t pid, const std::string& proc) {
  std::vector<pid_t> children;
  const std::string tasks = proc + "/" + std::to_string(pid) + "/task";
  // A child is listed with the thread that forked it.
  for (const pid_t thread : threads_of(pid, proc)) {
    const std::string text = read_kernel_file(tasks + "/" + std::to_string(thread) + "/children");
    std::string_view rest = text;
    pid_t child = 0;
    while (read_number(next_word(rest), child)) children.push_back(child);
  }
  return children;
}

bool live_child(idtype_t kind, id_t which) {
  siginfo_t info{};
  // Without WEXITED a zombie is nothing to wait for, and when nothing else is there the answer is
  // ECHILD: do_wait() in the kernel, also described under "ERRORS" of waitid(2).
  return ::waitid(kind, which, &info, WSTOPPED | WNOHANG | WNOWAIT | __WALL) == 0;
}

}  // namespace

ProcessStatus read_status(pid_t pid, const std::string& proc) {
  const auto text = read_kernel_file(proc + "/" + std::to_string(pid) + "/status");
  const auto signals = [&text](std::string_view field) {
    return number_of<std::uint64_t>(text, field, 16).value_or(0);
  };
  return {.tracer = number_of<pid_t>(text, "\nTracerPid:\t", 10).value_or(0),
          .user = number_of<uid_t>(text, "\nUid:\t", 10),
          .blocked = signals("\nSigBlk:\t"),
          .ignored = signals("\nSigIgn:\t"),
          .caught = signals("\nSigCgt:\t")};
}

std::string held_by(pid_t pid) {
  const auto process = read_process(pid);
  if (!process || process->zombie()) return {};
  std::set<pid_t> seen;
  return held_by(*process, seen);
}

bool any_stopped_child() {
  siginfo_t info{};
  const int flags = WSTOPPED | WNOHANG | WNOWAIT;
  return ::waitid(P_ALL, 0, &info, flags) == 0 && info.si_pid != 0;
}

std::string_view next_word(std::string_view& text) {
  const auto start = text.find_first_not_of(" \t\n");
  if (start == std::string_view::npos) return text = {};
  text.remove_prefix(start);
  const auto word = text.substr(0, text.find_first_of(" \t\n"));
  text.remove_prefix(word.size());
  return word;
}

StatFields stat_fields(std::string_view stat) {
  StatFields fields;
  // From the end: a process chooses its name, and may put blanks and parentheses into it
  // (prctl(2)).
  const auto close = stat.rfind(')');
  if (close == std::string_view::npos) return fields;
  stat.remove_prefix(close + 1);
  for (auto& field : fields) field = next_word(stat);
  return fields;
}

std::optional<ProcessEntry> parse_process(std::string_view stat) {
  constexpr std::size_t kStart = 22 - 3;  // the number of the field, of which the first is 3
  ProcessEntry entry;
  const auto fields = stat_fields(stat);
  const auto open = stat.find('('), close = stat.rfind(')');
  if (fields[0].size() != 1 || open > close) return {};
  if (!read_number(trim(stat.substr(0, open)), entry.pid)) return {};
  entry.name = stat.substr(open + 1, close - open - 1);
  entry.state = fields[0].front();
  const bool read = read_number(fields[1], entry.parent) && read_number(fields[2], entry.group) &&
                    read_number(fields[3], entry.session) &&
                    read_number(fields[kStart], entry.start_time);
  return read ? std::optional(entry) : std::nullopt;
}

std::vector<pid_t> threads_of(pid_t pid, const std::string& proc) {
  return numbered_entries(proc + "/" + std::to_string(pid) + "/task");
}

bool any_thread_hangs(pid_t pid, const std::string& proc) {
  const std::string tasks = proc + "/" + std::to_string(pid) + "/task";
  return std::ranges::any_of(threads_of(pid, proc), [&](pid_t thread) {
    const auto entry =
        parse_process(read_kernel_file(tasks + "/" + std::to_string(thread) + "/stat"));
    return entry && entry->state == 'D';
  });
}

std::string command_of(const ProcessEntry& process, const std::string& proc) {
  constexpr std::size_t kLongest = 80;
  // cmdline is read under a lock on the memory of that process. A thread that sleeps in the kernel
  // may hold it, and then we would sleep as long.
  if (any_thread_hangs(process.pid, proc)) return process.name;
  std::string line = read_kernel_file(proc + "/" + std::to_string(process.pid) + "/cmdline");
  while (!line.empty() && line.back() == '\0') line.pop_back();
  if (line.empty()) return process.name;
  std::replace(line.begin(), line.end(), '\0', ' ');
  if (line.size() > kLongest) line = line.substr(0, kLongest - 3) + "...";
  return printable(std::move(line));
}

std::string names_of(const ProcessTable& all) {
  constexpr std::size_t kMostNames = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kMostNames); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", all[i].pid, command_of(all[i]));
  }
  if (all.size() > kMostNames) text += fmt::format(" and {} more", all.size() - kMostNames);
  return text;
}

std::uint64_t own_pid_namespace() {
  struct stat info {};
  return is_ours(kProc) && ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::optional<ProcessEntry> read_process(pid_t pid, const std::string& proc) {
  if (!is_ours(proc)) return {};
  return parse_process(read_kernel_file(proc + "/" + std::to_string(pid) + "/stat"));
}

std::uint64_t start_time_now() {
  static const auto ticks_per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  constexpr std::uint64_t kSecond = 1'000'000'000;
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);  // as field 22 in proc_pid_stat(5), also in a container
  return static_cast<std::uint64_t>(now.tv_sec) * ticks_per_second +
         static_cast<std::uint64_t>(now.tv_nsec) / (kSecond / ticks_per_second);
}

ProcessTable read_all_processes(const std::string& proc) {
  ProcessTable table;
  if (!is_ours(proc)) return table;
  for (const pid_t pid : numbered_entries(proc)) {
    if (auto entry = read_process(pid, proc)) table.push_back(std::move(*entry));
  }
  return table;
}

ProcessTable read_descendants(pid_t ancestor, const std::string& proc) {
  if (!is_ours(proc) || !lists_children(ancestor, proc))
    return descendants(read_all_processes(proc), ancestor);
  ProcessTable found;
  // Files are read one after the other: with a pid that was used again they could make a loop.
  std::unordered_set<pid_t> seen{ancestor};
  std::vector<pid_t> open{ancestor};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (const pid_t child : children_of(parent, proc)) {
      if (!seen.insert(child).second) continue;
      open.push_back(child);
      if (auto entry = read_process(child, proc)) found.push_back(std::move(*entry));
    }
  }
  return found;
}

ProcessTable read_children(pid_t parent, const std::string& proc) {
  ProcessTable found;
  if (!is_ours(proc)) return found;
  if (lists_children(parent, proc)) {
    for (const pid_t child : children_of(parent, proc)) {
      if (auto entry = read_process(child, proc)) found.push_back(std::move(*entry));
    }
  } else {
    found = read_all_processes(proc);
  }
  // A pid that was listed may be another process by the time its stat is read.
  std::erase_if(found, [parent](const auto& entry) { return entry.parent != parent; });
  return found;
}

ProcessTable descendants(const ProcessTable& table, pid_t ancestor,
                         const std::vector<pid_t>& spared) {
  std::unordered_multimap<pid_t, const ProcessEntry*> by_parent;
  by_parent.reserve(table.size());
  for (const ProcessEntry& entry : table) by_parent.emplace(entry.parent, &entry);
  ProcessTable found;
  // A table is not a snapshot: pids can be reused while it is read, so a loop in it is possible.
  std::unordered_set<pid_t> seen{ancestor};
  seen.insert(spared.begin(), spared.end());
  std::vector<pid_t> open{ancestor};
  while (!open.empty()) {
    const auto [first, last] = by_parent.equal_range(open.back());
    open.pop_back();
    for (auto child = first; child != last; ++child) {
      if (!seen.insert(child->second->pid).second) continue;
      open.push_back(child->second->pid);
      found.push_back(*child->second);
    }
  }
  return found;
}

bool any_live_child() {
  return live_child(P_ALL, 0);
}

bool any_live_child_in_group(pid_t group) {
  return live_child(P_PGID, static_cast<id_t>(group));
}

bool waits_for_child(const ProcessEntry& process, const std::string& proc, bool unless_hidden) {
  // wait4(2) sleeps interruptibly, which is S.
  if (process.state != 'S') return false;
  const std::string file = proc + "/" + std::to_string(process.pid) + "/wchan";
  const std::string text = read_kernel_file(file);
  const auto where = trim(text);
  // "0": we may not know (proc(5)).
  if (where.empty() || where == "0") return !unless_hidden;
  return where.find("do_wait") != std::string_view::npos;
}

bool is_subreaper() {
  int yes = 0;
  return ::prctl(PR_GET_CHILD_SUBREAPER, &yes, 0, 0, 0) == 0 && yes != 0;
}

}  // namespace elastrun::process
