// SPDX-License-Identifier: Apache-2.0
#include "system/python_stacks.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <utility>

namespace elastrun::system {
namespace {

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
  // From the last parenthesis on: the name before it may hold blanks and parentheses
  // (proc_pid_stat(5)).
  const auto fields = split(trim(std::string_view(stat).substr(stat.rfind(')') + 1)), ' ');
  if (fields.size() <= kSystem || fields[0].size() != 1) return {};
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

std::vector<std::string> ask_python_stacks(pid_t pid, int pidfd, StackOffer offer,
                                           std::chrono::milliseconds limit) {
  return std::move(ask_python_stacks({{pid, pidfd, offer}}, limit).front());
}

}  // namespace elastrun::system
