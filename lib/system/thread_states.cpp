// SPDX-License-Identifier: Apache-2.0
#include "system/thread_states.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <utility>

namespace elastrun::system {
namespace {

constexpr std::size_t kNamed = 8;  // threads of a group whose ids are written out

struct Call {
  long number;
  std::string_view name;
};
// In which programs hang. Of those with two names in the kernel, the one of all machines.
constexpr std::array kCalls{
    Call{SYS_read, "read"},
    Call{SYS_write, "write"},
    Call{SYS_readv, "readv"},
    Call{SYS_writev, "writev"},
    Call{SYS_pread64, "pread64"},
    Call{SYS_pwrite64, "pwrite64"},
    Call{SYS_openat, "openat"},
    Call{SYS_close, "close"},
    Call{SYS_fsync, "fsync"},
    Call{SYS_fdatasync, "fdatasync"},
    Call{SYS_ioctl, "ioctl"},
    Call{SYS_flock, "flock"},
    Call{SYS_fcntl, "fcntl"},
    Call{SYS_futex, "futex"},
    Call{SYS_ppoll, "ppoll"},
    Call{SYS_pselect6, "pselect6"},
    Call{SYS_epoll_pwait, "epoll_pwait"},
    Call{SYS_nanosleep, "nanosleep"},
    Call{SYS_clock_nanosleep, "clock_nanosleep"},
    Call{SYS_wait4, "wait4"},
    Call{SYS_waitid, "waitid"},
    Call{SYS_accept, "accept"},
    Call{SYS_accept4, "accept4"},
    Call{SYS_connect, "connect"},
    Call{SYS_recvfrom, "recvfrom"},
    Call{SYS_recvmsg, "recvmsg"},
    Call{SYS_sendto, "sendto"},
    Call{SYS_sendmsg, "sendmsg"},
    Call{SYS_munmap, "munmap"},
    Call{SYS_madvise, "madvise"},
    Call{SYS_exit_group, "exit_group"},
// arm64 has none of these, only the newer calls.
#ifdef SYS_poll
    Call{SYS_poll, "poll"},
    Call{SYS_select, "select"},
    Call{SYS_epoll_wait, "epoll_wait"},
    Call{SYS_open, "open"},
    Call{SYS_pause, "pause"},
#endif
};

std::string_view state_text(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in uninterruptible sleep";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "ended";
    default:
      return "in an unknown state";
  }
}

struct Group {
  const ThreadState* first;
  std::vector<pid_t> ids;
  bool has_main = false;
};

bool does_the_same(const ThreadState& one, const ThreadState& other) {
  return std::tie(one.state, one.wait_channel, one.system_call, one.kernel_stack) ==
         std::tie(other.state, other.wait_channel, other.system_call, other.kernel_stack);
}

std::string head_of(const Group& group) {
  const auto& thread = *group.first;
  std::string text = group.ids.size() == 1 ? "thread " : "threads ";
  for (std::size_t i = 0; i < std::min(group.ids.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(group.ids[i]);
  }
  if (group.ids.size() > kNamed) text += fmt::format(" and {} more", group.ids.size() - kNamed);
  text += fmt::format(" ({}{}): {}", printable(thread.name), group.has_main ? ", main" : "",
                      state_text(thread.state));
  if (!thread.system_call.empty()) text += ", system call " + thread.system_call;
  if (!thread.wait_channel.empty()) text += ", waits in " + thread.wait_channel;
  return text;
}

}  // namespace

std::string system_call_in(std::string_view text) {
  long number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return {};  // "running", "-1 SP PC"
  const auto known = std::ranges::find(kCalls, number, &Call::number);
  return known == kCalls.end() ? fmt::format("call {}", number) : std::string(known->name);
}

/// "[<0>] futex_wait_queue+0x60/0x90 [module]" each.
std::vector<std::string> kernel_stack_in(std::string_view text) {
  std::vector<std::string> functions;
  for (const auto& line : split(text, '\n')) {
    const auto close = line.find("] ");
    if (close == std::string::npos) continue;
    const auto name = line.substr(close + 2);
    functions.push_back(name.substr(0, name.find('+')));
  }
  return functions;
}

std::vector<ThreadState> read_threads(pid_t pid, std::size_t most, const std::string& proc) {
  std::vector<ThreadState> threads;
  const auto tasks = fmt::format("{}/{}/task", proc, pid);
  std::error_code error;
  std::filesystem::directory_iterator entries(tasks, error);
  // By increment(), since ++ throws where the process has ended meanwhile.
  for (; !error && entries != std::filesystem::directory_iterator() && threads.size() < most;
       entries.increment(error)) {
    const auto folder = entries->path().string();
    const auto stat = process::parse_process(read_kernel_file(folder + "/stat"));
    // It has ended since the folder was listed.
    if (!stat) continue;
    ThreadState thread{stat->pid, stat->name, stat->state, {}, {}, {}};
    const auto channel = read_kernel_file(folder + "/wchan");
    // "0" is a thread that waits for nothing in the kernel, or a reader without the right to know
    // (proc_pid_wchan(5)).
    if (channel != "0") thread.wait_channel = printable(std::string(trim(channel)));
    thread.system_call = system_call_in(read_kernel_file(folder + "/syscall"));
    // For root only (proc_pid_stack(5)); for others the file reads as empty, and so does the stack.
    thread.kernel_stack = kernel_stack_in(read_kernel_file(folder + "/stack"));
    threads.push_back(std::move(thread));
  }
  // The main thread, whose id is the process's, comes first: thread_lines() goes by that.
  std::ranges::stable_partition(threads, [pid](const auto& thread) { return thread.id == pid; });
  return threads;
}

std::vector<std::string> thread_lines(const std::vector<ThreadState>& threads) {
  std::vector<Group> groups;
  for (const auto& thread : threads) {
    auto group = std::ranges::find_if(
        groups, [&](const Group& one) { return does_the_same(*one.first, thread); });
    if (group == groups.end()) group = groups.insert(group, {&thread, {}});
    group->ids.push_back(thread.id);
    group->has_main = group->has_main || &thread == &threads.front();
  }
  std::ranges::stable_sort(groups, [](const Group& one, const Group& other) {
    return std::pair(one.has_main, one.ids.size()) > std::pair(other.has_main, other.ids.size());
  });
  std::vector<std::string> lines;
  for (const auto& group : groups) {
    lines.push_back(head_of(group));
    for (const auto& function : group.first->kernel_stack) lines.push_back("    " + function);
  }
  return lines;
}

}  // namespace elastrun::system
