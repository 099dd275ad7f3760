// SPDX-License-Identifier: Apache-2.0

#include "process/guardian.hpp"

#include "core/file_io.hpp"
#include "core/unique_fd.hpp"
#include "process/cgroup.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"
#include "process/spawn.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utility>

namespace elastrun::process {
namespace {

/// The child: a byte for each path that is done.
void work(const std::vector<std::string>& paths, void (*remove)(const std::string&), int report) {
  constexpr int kReport = 0;
  // Readers of our output, and waiters for a lock, must not wait for this process.
  if (::dup2(report, kReport) < 0) return;
  close_descriptors_from(kReport + 1);
  for (const std::string& path : paths) {
    remove(path);
    [[maybe_unused]] const auto written = ::write(kReport, "", 1);
  }
}

/// Removes what a child that ended, or was given up, has left of the paths.
std::vector<std::string> remove_once(const std::vector<std::string>& paths,
                                     void (*remove)(const std::string&)) {
  int ends[2];
  // Not blocking: of a child that was given up, which hangs and holds its end, what it has told is
  // read.
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return paths;
  const UniqueFd reports(ends[0]), report(ends[1]);
  const auto all = [&] { work(paths, remove, report.get()); };
  if (!do_in_child(all, {kRemovalBound, kRemovalAfterSignal})) return paths;
  std::string done(paths.size(), '\0');
  const auto count = ::read(reports.get(), done.data(), done.size());
  return {paths.begin() + std::max<std::ptrdiff_t>(count, 0), paths.end()};
}

}  // namespace

void remove_path(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::vector<std::string> remove_within_bound(const std::vector<std::string>& paths,
                                             void (*remove)(const std::string&)) {
  constexpr int kMostTries = 3;
  auto left = paths;
  for (int tries = 0; tries < kMostTries && !left.empty(); ++tries) {
    const auto began = std::chrono::steady_clock::now();
    left = remove_once(left, remove);
    // The file system does not answer, or a signal has hurried us. A child that ended sooner was
    // killed: a script that kills the agent in a loop takes it for the next one.
    if (std::chrono::steady_clock::now() - began >= kRemovalAfterSignal) break;
  }
  return left;
}

}  // namespace elastrun::process

namespace elastrun::guardian {

enum class Kind : int { Nothing, Taken, Directory, Cgroup };

// One entry is written by a thread of the agent, which may be killed in the middle of it: `kind`
// comes last, and until then says that it is taken.
constexpr std::size_t kLongestPath = 1003;
struct Entry {
  std::atomic<Kind> kind = Kind::Nothing;
  std::array<char, kLongestPath + 1> path{};
};

struct Board {
  std::atomic<bool> gave_up = false;
  std::atomic<std::uint64_t> stops_relayed = 0;  // process::bit_of() each number
  std::atomic<std::uint64_t> told_apart = 0;     // the same
  std::array<Entry, 8> entries;
};

namespace {

using namespace std::chrono_literals;
using process::ExitStatus;

bool is_pipe(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

/// The controlling terminal if this process is in its foreground.
UniqueFd terminal_of_ours() {
  UniqueFd terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  // From the background tcsetattr(3) would stop us by SIGTTOU, and the modes would be the shell's
  // by now.
  if (terminal && ::tcgetpgrp(terminal.get()) != ::getpgrp()) terminal.reset();
  return terminal;
}

/// The modes of the terminal that a job was started on: a worker that is killed while it asks for a
/// password, or in a debugger's prompt, cannot give back the echo that it has taken.
class TerminalModes {
 public:
  /// Reads the modes of the controlling terminal, if this process is in its foreground and no other
  /// of its group may change them: not a pager that reads from us through a pipe, nor a script that
  /// started us with `&`, whose stdin is elsewhere.
  TerminalModes() {
    if (is_pipe(STDOUT_FILENO) || is_pipe(STDERR_FILENO)) return;
    if (::isatty(STDIN_FILENO) == 0) return;
    const auto terminal = terminal_of_ours();
    termios modes{};
    if (terminal && ::tcgetattr(terminal.get(), &modes) == 0) before_ = modes;
  }
  /// Switches on again what has been switched off since: echo, lines, signals, translation. Does
  /// nothing if this process is not in the foreground any more. SIGTTOU must be blocked or ignored.
  void restore() const {
    if (!before_) return;
    const auto terminal = terminal_of_ours();
    termios now{};
    if (!terminal || ::tcgetattr(terminal.get(), &now) != 0) return;
    auto wanted = now;
    // Modes are added and never taken away: what is on now, and was not, may be another program's
    // choice.
    wanted.c_iflag |= before_->c_iflag & (ICRNL | IXON | BRKINT);
    wanted.c_oflag |= before_->c_oflag & (OPOST | ONLCR);
    wanted.c_lflag |= before_->c_lflag & (ECHO | ECHOE | ECHOK | ICANON | ISIG | IEXTEN);
    std::ranges::copy(before_->c_cc, wanted.c_cc);
    // TCSANOW: others would wait for output that Ctrl+S holds up.
    if (std::memcmp(&wanted, &now, sizeof now) != 0) {
      ::tcsetattr(terminal.get(), TCSANOW, &wanted);
    }
  }

 private:
  std::optional<termios> before_;
};

// Those of a terminal. They stop the guardian alone, unless the agent wants them: the shell gets
// its prompt back, and the job, of which no process is in the terminal's group, goes on under
// supervision.
bool stops(int signal) {
  return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

/// The signals that the guardian takes for itself: all that can be passed on. An ignored one is not
/// among them: blocked, it would be queued all the same, and `nohup` would have no effect.
class Relayed {
 public:
  Relayed() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    ::sigemptyset(&waited_);
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      struct sigaction action {};
      const bool known = ::sigaction(signal, nullptr, &action) == 0;
      const bool ignored = known && action.sa_handler == SIG_IGN && signal != SIGCHLD &&
                           process::stays_ignored(signal);
      if (ignored) ::sigdelset(&blocked, signal);
      // Unknown are the two real-time signals that the C library keeps for its threads.
      if (known && !ignored) ::sigaddset(&waited_, signal);
    }
    // SIGKILL and SIGSTOP stay open, whatever a mask says (sigprocmask(2)).
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  }
  /// Waits for one; its number.
  int wait(siginfo_t& info) {
    if (held_) {
      info = *std::exchange(held_, std::nullopt);
      return info.si_signo;
    }
    int signal = 0;
    do {
      // EINTR where SIGSTOP and SIGCONT have come in between (signal(7)).
      signal = ::sigwaitinfo(&waited_, &info);
    } while (signal < 0);
    return prefer_sigterm(info);
  }

 private:
  /// Prefers SIGTERM among pending signals. The kernel gives the lowest number: of systemd's two
  /// SIGHUP, which ends a trainer that saves its checkpoint at SIGTERM.
  int prefer_sigterm(siginfo_t& info) {
    const auto only_term = process::set_of({SIGTERM});
    const timespec at_once{};
    siginfo_t term{};
    if (info.si_signo == SIGCHLD || ::sigtimedwait(&only_term, &term, &at_once) != SIGTERM) {
      return info.si_signo;
    }
    held_ = std::exchange(info, term);
    return SIGTERM;
  }

  sigset_t waited_{};
  std::optional<siginfo_t> held_;
};

void pass_on(const siginfo_t& info, pid_t agent, const Board* board) {
  siginfo_t copy = info;
  // A terminal, a timer; or the outer one of two guardians, which has passed such a signal on.
  const bool from_kernel = info.si_code > 0 || info.si_code == process::kFromKernel;
  if (from_kernel) {
    copy = {};
    copy.si_signo = info.si_signo;
  }
  // Only codes below 0 may be given by another process than the kernel; with them, its sender may.
  // A sender of pid 0 is not the kernel, but a process outside of this pid namespace.
  copy.si_code = from_kernel ? process::kFromKernel : SI_QUEUE;
  // The kernel merges two pending SIGUSR1 into one, and the agent must hear whether it was told
  // itself as well. Real-time signals queue.
  if (board != nullptr && (board->told_apart & process::bit_of(info.si_signo)) != 0) {
    copy.si_signo = process::passing_signal();
    copy.si_value.sival_int = info.si_signo;
  }
  // The queue may be full (RLIMIT_SIGPENDING), for which a plain signal needs no room.
  if (::syscall(SYS_rt_sigqueueinfo, agent, copy.si_signo, &copy) != 0) {
    ::kill(agent, info.si_signo);
  }
}

bool is_relayed(const Board* board, int signal) {
  return !stops(signal) ||
         (board != nullptr && (board->stops_relayed & process::bit_of(signal)) != 0);
}

/// Until SIGCONT, which is relayed then. The signal is blocked, so it is pending until it is let
/// in: it stops us there and nowhere else.
void stop_by(int signal) {
  const auto mask = process::set_of({signal});
  ::kill(::getpid(), signal);
  ::sigprocmask(SIG_UNBLOCK, &mask, nullptr);
  ::sigprocmask(SIG_BLOCK, &mask, nullptr);
}

/// Relays until `child` has ended, and reaps it. As pid 1 it also inherits orphans from outside the
/// job (`docker exec`), and reaps those that end.
ExitStatus relay(pid_t child, Relayed& signals, const Board* board) {
  while (true) {
    // One SIGCHLD may stand for several ends, of which the agent's is one, whatever it names; and
    // of an end before our time there may be none: it was discarded with SIG_DFL.
    process::reap_adopted({child});
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return ExitStatus::from_wait(status);
    siginfo_t info{};
    const int signal = signals.wait(info);
    if (signal == SIGCHLD) continue;
    is_relayed(board, signal) ? pass_on(info, child, board) : stop_by(signal);
  }
}

void say(std::string_view text) {
  ::signal(SIGPIPE, SIG_IGN);
  // stderr may be a file on a file system that hangs, or a pipe whose reader does: a last line must
  // not keep this process for ever.
  process::say_within_bound(fmt::format("elastrun: {}\n", text));
}

/// Last: all that needs no file system is done by then.
void remove_directories(const Board& board) {
  std::vector<std::string> paths;
  for (const Entry& entry : board.entries) {
    if (entry.kind == Kind::Directory) paths.emplace_back(entry.path.data());
  }
  const auto left = process::remove_within_bound(paths);
  if (left.empty()) return;
  say(fmt::format("not removed in time, and left behind: {}", fmt::join(left, ", ")));
}

void clean_up(Board& board, const ExitStatus& status) {
  // The agent's lock ended with it, and until all is done the next agent is not to take the cgroup
  // for an abandoned one. One that was quicker kills the same as we do. Cgroups first: the kernel
  // kills those in one step, also what forks faster than it can be listed.
  std::vector<UniqueFd> locks;
  for (Entry& entry : board.entries) {
    if (entry.kind != Kind::Cgroup) continue;
    locks.push_back(process::lock_cgroup(entry.path.data()));
    process::kill_cgroup(entry.path.data());
  }
  // What the agent has waited for in vain is not waited for once more.
  const auto ended =
      process::kill_descendants({}, board.gave_up ? process::kLastLook : process::kKillBound);
  if (status.how == ExitStatus::How::Signaled && ended.killed > 0) {
    const bool one = ended.killed == 1;
    say(fmt::format("the agent was ended by {}; {} process{} of the job that it left {} killed",
                    status.text(), ended.killed, one ? "" : "es", one ? "was" : "were"));
  }
  if (!ended.alive.empty()) {
    say(fmt::format("cannot end these processes of the job: {}", ended.survivors()));
  }
  for (Entry& entry : board.entries) {
    if (entry.kind != Kind::Cgroup) continue;
    process::destroy_cgroup(entry.path.data(), ended.alive.empty() ? 1s : 0s);
  }
  remove_directories(board);
}

/// Ends this process as the other one ended.
[[noreturn]] void end_as(const ExitStatus& status, const TerminalModes& modes) {
  if (!status.success()) modes.restore();  // who succeeds has given back what it took
  if (status.how == ExitStatus::How::Exited) ::_exit(status.number);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // the core that tells something is the agent's
  ::signal(status.number, SIG_DFL);
  const auto mask = process::set_of({status.number});
  ::kill(::getpid(), status.number);
  ::sigprocmask(SIG_UNBLOCK, &mask, nullptr);
  ::_exit(status.as_shell());  // a signal that ended the agent but cannot end us
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL) == 0;
}

// Children from before our time could not be told from the job's orphans. So the guardian proper
// becomes a child of this process, which has then nothing to do but to relay.
void leave_old_children_behind(Relayed& signals, const Board* board, const TerminalModes& modes) {
  const pid_t outer = ::getpid();
  const pid_t inner = ::fork();
  if (inner > 0) end_as(relay(inner, signals, board), modes);
  if (inner < 0) return;
  ::setpgid(0, 0);  // a Ctrl+C comes through the outer process, once
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != outer) ::_exit(EXIT_FAILURE);
}

void become_agent() {
  ::setpgid(0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);  // fork(2) does not hand it down
  ::prctl(PR_SET_NAME, "elastrun-agent", 0, 0, 0);
  ::signal(SIGPIPE, SIG_IGN);  // a closed stdout must not end the training
  ::signal(SIGTTOU, SIG_IGN);  // our group is never the terminal's, and we write to it
  // `ulimit -f` is meant for the files of the job; a write of ours then fails with EFBIG.
  ::signal(SIGXFSZ, SIG_IGN);
  // The guardian's mask has come along with fork(2); left as it is, SIGTERM would stay pending
  // until the agent reads signals, which a start that hangs never does.
  const auto none = process::set_of({});
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Two processes that were forked for this, before they executed this program: see kPair.
struct ForkedPair {
  UniqueFd board;
  pid_t guardian = 0, agent = 0;
};

/// Nothing, unless this process is one of the two: the variable may be left over, or a joke.
std::optional<ForkedPair> take_pair() {
  const char* const given = std::getenv(kPair);
  if (given == nullptr) return std::nullopt;
  const std::string text = given;
  ::unsetenv(kPair);  // not for the workers
  std::array<int, 3> numbers{};
  const char* at = text.data();
  for (int& number : numbers) {
    while (*at == ' ') ++at;
    at = std::from_chars(at, text.data() + text.size(), number).ptr;
  }
  const auto [board, guardian, agent] = numbers;
  siginfo_t info{};
  const bool guards =
      guardian == ::getpid() && agent > 1 &&
      ::waitid(P_PID, static_cast<id_t>(agent), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  const bool serves = agent == ::getpid() && guardian > 0 && guardian != agent;
  if (!guards && !serves) return std::nullopt;
  // A file without seals is something else than a memory file, and not ours to change.
  const bool usable = board > STDERR_FILENO && ::fcntl(board, F_GET_SEALS) >= 0;
  return ForkedPair{UniqueFd(usable ? board : -1), guardian, agent};
}

/// `file`: -1, or the memory file that both of a pair have.
Board* make_board(int file) {
  if (file >= 0 && ::ftruncate(file, sizeof(Board)) != 0) return nullptr;
  // Shared memory, not a pipe: what the agent has noted is there however it ended.
  const int flags = file >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Of a file the other one may have begun to use it: its zeros are an empty board already.
  static_assert(static_cast<int>(Kind::Nothing) == 0);
  return file >= 0 ? static_cast<Board*>(memory) : new (memory) Board;
}

/// Runs the guardian until its end.
[[noreturn]] void guard(pid_t agent, Relayed& signals, Board* board, const TerminalModes& modes) {
  ::setpgid(agent, agent);  // here too: either process may run first
  const ExitStatus status = relay(agent, signals, board);
  // Without shared memory nothing was noted, and the processes of the job are ended all the same.
  Board nothing;
  clean_up(board != nullptr ? *board : nothing, status);
  end_as(status, modes);
}

bool remember(Board* board, std::string_view path, Kind kind) {
  if (board == nullptr || path.size() > kLongestPath) return false;
  for (Entry& entry : board->entries) {
    auto free = Kind::Nothing;
    // Two threads of the agent may note a directory at the same moment.
    if (!entry.kind.compare_exchange_strong(free, Kind::Taken)) continue;
    std::memcpy(entry.path.data(), path.data(), path.size());
    entry.path[path.size()] = 0;
    entry.kind = kind;
    return true;
  }
  return false;
}

}  // namespace

bool Directories::remember(std::string_view path) const {
  return guardian::remember(board_, path, Kind::Directory);
}

bool Agent::remember_cgroup(std::string_view path) {
  return guardian::remember(board_, path, Kind::Cgroup);
}

void Agent::relay(const std::vector<int>& signals) {
  if (board_ == nullptr) return;
  for (const int signal : signals) {
    if (stops(signal)) board_->stops_relayed |= process::bit_of(signal);
  }
}

void Agent::tell_apart(const std::vector<int>& signals) {
  if (board_ == nullptr) return;
  for (const int signal : signals) board_->told_apart |= process::bit_of(signal);
}

void Agent::give_up() {
  if (board_ != nullptr) board_->gave_up = true;
}

void Directories::forget(std::string_view path) const {
  if (board_ == nullptr) return;
  for (Entry& entry : board_->entries) {
    const auto kind = entry.kind.load();
    // Of one that is taken the path may be half written.
    if (kind == Kind::Nothing || kind == Kind::Taken) continue;
    if (path == entry.path.data()) entry.kind = Kind::Nothing;
  }
}

Agent split() {
  // A daemon may start us without them: the first files opened would become stdout and stderr.
  open_standard_streams();
  ::signal(SIGCHLD, SIG_DFL);  // ignored, as a parent may leave it, it would reap the agent for us
  const auto pair = take_pair();
  Agent agent;
  agent.board_ = make_board(pair ? pair->board.get() : -1);
  agent.guardian_pid_ = pair ? pair->guardian : 0;
  if (!pair || pair->guardian == ::getpid()) {
    Relayed signals;  // blocks them: what comes between here and the wait is not lost
    const TerminalModes modes;
    // Who was forked for this has no children but the agent.
    if (!pair && has_children()) leave_old_children_behind(signals, agent.board_, modes);
    // Before there is anybody whose orphans could go elsewhere.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    const pid_t guardian = ::getpid();
    const pid_t child = pair ? pair->agent : ::fork();
    if (child > 0) guard(child, signals, agent.board_, modes);
    // Where fork(2) has failed: better a job without a guardian than none.
    if (child == 0) agent.guardian_pid_ = guardian;
  }
  if (const pid_t guardian = agent.guardian_pid_; guardian > 0) {
    agent.guardian_.reset(static_cast<int>(::syscall(SYS_pidfd_open, guardian, 0)));
    if (::getppid() != guardian) ::_exit(EXIT_FAILURE);  // it was killed before we held it
  }
  become_agent();
  return agent;
}

}  // namespace elastrun::guardian
