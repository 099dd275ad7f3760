// SPDX-License-Identifier: Apache-2.0

#include "system/process_stacks.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <ranges>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <utility>

namespace elastrun::system {
namespace {

std::string value_of(const std::vector<std::string>& environment, std::string_view name) {
  return std::string(find_variable(environment, name).value_or(""));
}

/// Below torch's cache, as c10d/FlightRecorder has it.
std::string default_dump(const std::vector<std::string>& environment) {
  auto cache = value_of(environment, "XDG_CACHE_HOME");
  const auto home = value_of(environment, "HOME");
  if (cache.empty()) cache = (home.empty() ? "/tmp" : home) + "/.cache";
  return cache + "/torch/comm_lib_trace_rank_";
}

/// Only a pipe with a reader: a plain file of that name is not torch's.
bool write_to_pipe(const std::string& path) {
  // O_NONBLOCK: with no reader open(2) of a FIFO then fails with ENXIO, and does not wait for one.
  const UniqueFd pipe(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat info {};
  if (!pipe || ::fstat(pipe.get(), &info) != 0 || !S_ISFIFO(info.st_mode)) return false;
  return ::write(pipe.get(), "1\n", 2) == 2;
}

/// Times of files are of the last tick, and those of another machine may be behind.
bool is_written_since(const std::string& path, WallTime since) {
  constexpr auto kTolerance = std::chrono::seconds(1);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  const auto written =
      std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
  return WallTime(written) + kTolerance >= since;
}

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
  constexpr std::array<std::array<std::string_view, 2>, 5> kTexts = {
      {{"R", "running"},
       {"S", "sleeping"},
       {"D", "in uninterruptible sleep"},
       {"Tt", "stopped"},
       {"ZX", "ended"}}};
  for (const auto& [letters, text] : kTexts) {
    if (letters.contains(state)) return text;
  }
  return "in an unknown state";
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

constexpr auto kLook = std::chrono::milliseconds(10);
constexpr int kQuietLooks = 3;               // without another byte: it has come to its end
constexpr std::size_t kMostBytes = 1 << 18;  // faulthandler writes 100 frames of each thread
using Steady = std::chrono::steady_clock;

/// Only a file in memory: reading anything else might wait, or take bytes away from another reader.
UniqueFd open_offered(pid_t pid, int descriptor) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat info {};
  struct statfs system {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  if (::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) return {};
  return file;
}

/// True if the handler is still the one that was offered. After execve(2) another program has its
/// pid, its offer is forgotten there, and the signal would end it. The kernel does not tell whose a
/// handler is; but a script that catches every signal there is, to clean up at any of them, has one
/// for all real-time signals, and hardly anybody else has one for any.
bool keeps_offer(pid_t pid, int signal) {
  const auto handled = process::read_status(pid).caught;
  const auto realtime = ~(process::bit_of(SIGRTMIN) - 1);  // not those of the C library, below it
  const auto own = process::bit_of(signal);
  return (handled & own) != 0 && (handled & realtime & ~own) == 0;
}

off_t size_of(const UniqueFd& file) {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 ? info.st_size : 0;
}

/// The main thread of a process: what it does, and how long it has been on a processor.
struct MainThread {
  char state = 'R';
  std::chrono::milliseconds used{};
};

MainThread read_main_thread(pid_t pid) {
  constexpr std::size_t kUser = 14 - 3, kSystem = 15 - 3;  // proc_pid_stat(5); state is field 3
  const auto stat = read_kernel_file(fmt::format("/proc/{0}/task/{0}/stat", pid));
  const auto fields = process::stat_fields(stat);
  if (fields[kSystem].empty() || fields[0].size() != 1) return {};
  const auto ticks = parse_int(fields[kUser]).value_or(0) + parse_int(fields[kSystem]).value_or(0);
  return {fields[0][0], std::chrono::milliseconds(ticks * 1000 / ::sysconf(_SC_CLK_TCK))};
}

/// One process that has been signalled.
struct Asked {
  UniqueFd file;
  StackSource source;
  MainThread main{};  // as it was then
  off_t before = 0, size = 0;
  int quiet = 0;
  bool done = true, main_is_asked = true;

  /// True if, as far as is known, its main thread has not run Python: it would have left the lock
  /// to the thread that wants it. On a machine that is short of processors it may just not have
  /// run.
  bool is_in_c() const {
    constexpr auto kTurns = std::chrono::milliseconds(100);  // of 5 ms each
    const auto now = read_main_thread(source.pid);
    return now.state != 'R' || now.used - main.used >= kTurns;
  }

  /// It may have taken the handler away since it was asked: at its end, or by execve(2).
  bool ask_main() {
    main_is_asked = true;
    const int signal = source.offer.signal;
    if (!keeps_offer(source.pid, signal)) return false;
    // By pidfd: the number may be another process's by now, which the signal would end
    // (pidfd_send_signal(2)).
    return ::syscall(SYS_pidfd_send_signal, source.pidfd, signal, nullptr, 0) == 0;
  }

  bool ask_thread() {
    const auto [signal, descriptor, thread] = source.offer;
    pollfd end{source.pidfd, POLLIN, 0};
    // A pidfd is readable once its process has ended (pidfd_open(2)). Before Linux 6.9 a thread has
    // none, so tgkill(2) goes by numbers, right after this look.
    if (thread <= 0 || ::poll(&end, 1, 0) != 0) return false;
    main = read_main_thread(source.pid);
    main_is_asked = ::syscall(SYS_tgkill, source.pid, thread, signal) != 0;
    return !main_is_asked;
  }

  void look(bool is_late) {
    pollfd end{source.pidfd, POLLIN, 0};
    const auto now = size_of(file);
    // faulthandler writes in many small pieces and tells of no end, so silence is the end.
    quiet = now > before && now == size ? quiet + 1 : 0;
    size = now;
    if (is_late && !main_is_asked && now == before && is_in_c()) ask_main();
    done = quiet >= kQuietLooks || ::poll(&end, 1, 0) != 0;
  }
};

Asked signal_to(const StackSource& source) {
  Asked asked{open_offered(source.pid, source.offer.descriptor), source};
  if (!asked.file || !keeps_offer(source.pid, source.offer.signal)) return {};
  asked.before = asked.size = size_of(asked.file);
  asked.done = !asked.ask_thread() && !asked.ask_main();
  // No signal was sent, so what is in the file is of an earlier time.
  if (asked.done) asked.file.reset();
  return asked;
}

/// Until all files have grown and grow no more, or the processes or the time have come to their
/// end.
void await_growth(std::vector<Asked>& asked, std::chrono::milliseconds limit) {
  const auto late = Steady::now() + limit / 2, until = Steady::now() + limit;
  while (Steady::now() < until && !std::ranges::all_of(asked, &Asked::done)) {
    // One pause for all of them: the processes write at the same time.
    ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    for (auto& one : asked) {
      if (!one.done) one.look(Steady::now() >= late);
    }
  }
}

/// A memfd without a name: the worker's data may be in another file of the same kind.
bool is_memfd(const std::string& path) {
  constexpr std::string_view kName = "/memfd:";
  std::array<char, kName.size()> name{};
  const auto size = ::readlink(path.c_str(), name.data(), name.size());
  return size == static_cast<ssize_t>(name.size()) &&
         std::string_view(name.data(), name.size()) == kName;
}

/// The memory of what has been read is the worker's, and would add up with every look.
void free_memory(const UniqueFd& file, off_t end) {
  const auto path = fmt::format("/proc/self/fd/{}", file.get());
  if (end == 0 || !is_memfd(path)) return;
  const UniqueFd writable(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  // Its size stays, at which the worker goes on.
  if (writable) ::fallocate(writable.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end);
}

std::string read_from(const UniqueFd& file, off_t before) {
  const auto added = std::max<off_t>(0, size_of(file) - before);
  std::string text(std::min<std::size_t>(kMostBytes, static_cast<std::size_t>(added)), '\0');
  // From where it ended before: the file still has the size of all earlier stacks.
  const auto got = ::pread(file.get(), text.data(), text.size(), before);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  free_memory(file, before + added);
  return text;
}

}  // namespace

FlightRecorder flight_recorder_of(const std::vector<std::string>& environment, int rank) {
  FlightRecorder recorder;
  const auto number = std::to_string(rank);
  for (const std::string_view name :
       {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE",
        "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    const auto stem = value_of(environment, name);
    if (stem.empty()) continue;
    recorder.pipes.push_back(stem + number + ".pipe");
    const bool is_dump = name.ends_with("_TEMP_FILE");
    if (is_dump && recorder.dump.empty()) recorder.dump = stem + number;
  }
  if (recorder.dump.empty()) recorder.dump = default_dump(environment) + number;
  return recorder;
}

std::vector<std::string> environment_of(pid_t process) {
  const auto text = read_kernel_file(fmt::format("/proc/{}/environ", process));
  if (text.empty()) return {};
  return split(text, '\0');
}

std::vector<std::string> find_dumps(const std::vector<FlightRecorder>& recorders, WallTime since) {
  std::vector<std::string> dumps;
  for (const auto& recorder : recorders) {
    const bool asked = std::ranges::any_of(recorder.pipes, write_to_pipe);
    if (asked || is_written_since(recorder.dump, since)) dumps.push_back(recorder.dump);
  }
  return dumps;
}

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
  for (const pid_t id : process::threads_of(pid, proc) | std::views::take(most)) {
    const auto folder = fmt::format("{}/{}/task/{}", proc, pid, id);
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

std::vector<std::vector<std::string>> ask_python_stacks(const std::vector<StackSource>& sources,
                                                        std::chrono::milliseconds limit) {
  std::vector<Asked> asked;
  for (const auto& source : sources) asked.push_back(signal_to(source));
  await_growth(asked, limit);
  std::vector<std::vector<std::string>> stacks(sources.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!asked[i].file) continue;
    for (auto& line : split(trim(read_from(asked[i].file, asked[i].before)), '\n')) {
      if (!line.empty()) stacks[i].push_back(printable(std::move(line)));
    }
  }
  return stacks;
}

}  // namespace elastrun::system
