// SPDX-License-Identifier: Apache-2.0
#include "process/process_table.hpp"

#include "core/log.hpp"
#include "core/read_file.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <dirent.h>
#include <memory>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>

namespace elastrun::process {
namespace {

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

// Takes the next word of `text`, and what is before it, away.
std::string_view next_word(std::string_view& text) {
  const auto start = text.find_first_not_of(" \n");
  if (start == std::string_view::npos) return text = {};
  text.remove_prefix(start);
  const auto word = text.substr(0, text.find_first_of(" \n"));
  text.remove_prefix(word.size());
  return word;
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
  for (const pid_t thread : numbered_entries(tasks)) {
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

std::optional<ProcessEntry> parse_process(std::string_view stat) {
  ProcessEntry entry;
  // From the end: a process chooses its name, and may put blanks and parentheses into it
  // (prctl(2)).
  const auto open = stat.find('('), close = stat.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  if (!read_number(trim(stat.substr(0, open)), entry.pid)) return {};
  entry.name = stat.substr(open + 1, close - open - 1);
  stat.remove_prefix(close + 1);
  const auto state = next_word(stat);
  if (state.size() != 1) return {};
  entry.state = state.front();
  for (pid_t* const number : {&entry.parent, &entry.group, &entry.session}) {
    if (!read_number(next_word(stat), *number)) return {};
  }
  constexpr int kFieldsBefore = 15;  // session is field 6, the start time is field 22: proc(5)
  for (int skipped = 0; skipped < kFieldsBefore; ++skipped) next_word(stat);
  if (!read_number(next_word(stat), entry.start_time)) return {};
  return entry;
}

bool any_thread_hangs(pid_t pid, const std::string& proc) {
  const std::string tasks = proc + "/" + std::to_string(pid) + "/task";
  return std::ranges::any_of(numbered_entries(tasks), [&](pid_t thread) {
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
