// SPDX-License-Identifier: Apache-2.0

#include "process/posix_launcher.hpp"

#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <map>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace elastrun::process {

ExitStatus ExitStatus::from_wait(int raw) {
  if (WIFSIGNALED(raw)) return {How::Signaled, WTERMSIG(raw), WCOREDUMP(raw) != 0};
  return exited(WEXITSTATUS(raw));
}

std::string ExitStatus::text() const {
  if (how == How::Exited) return fmt::format("exit code {}", number);
  const std::string name = signal_name(number);
  return fmt::format("{}{}", name.empty() ? fmt::format("signal {}", number) : name,
                     core_dumped ? " (core dumped)" : "");
}

std::string torchrun_signal_name(int signal) {
  const std::string name = signal_name(signal);
  return name.empty() || name.starts_with("SIGRTMIN+") ? "<N/A>" : name;
}

namespace {

/// Workers, their pipes and their store's connections need descriptors more urgently.
bool leaves_enough(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 2;
}

bool arm(const UniqueFd& end, pid_t group) {
  // A negative owner is a process group (fcntl(2)). O_ASYNC last: an event before the rest is set
  // would come as SIGIO, or to no process.
  return ::fcntl(end.get(), F_SETSIG, SIGKILL) == 0 && ::fcntl(end.get(), F_SETOWN, -group) == 0 &&
         ::fcntl(end.get(), F_SETFL, O_ASYNC | O_NONBLOCK) == 0;
}

}  // namespace

void GroupDeathSignal::arm(pid_t group) {
  std::array<int, 2> ends{};
  if (armed() || ::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  // Both, because which of them is closed first is the kernel's affair.
  const bool done = leaves_enough(std::max(ends[0], ends[1])) && process::arm(read_end_, group) &&
                    process::arm(write_end_, group);
  if (!done) disarm();
}

void GroupDeathSignal::disarm() {
  if (!armed()) return;
  // Else the close of the one would be the event for the other.
  ::fcntl(write_end_.get(), F_SETFL, O_NONBLOCK);
  read_end_.reset();
  write_end_.reset();
}

// What the launcher and its children share; a child may outlive the launcher.
struct Family {
  std::map<pid_t, bool> ended;         // of each child that still has its object
  std::vector<PosixChild*> unguarded;  // started in this turn of the loop
  // Asked of many groups at once, one table answers for all.
  ProcessTable table;
  TimePoint table_read{};

  const ProcessTable& recent_table(TimePoint now) {
    // Long enough for all groups of one look, too short for a process to matter that came since.
    constexpr Duration kRecent = std::chrono::milliseconds(2);
    if (table_read == TimePoint{} || now - table_read > kRecent) {
      // All members were started by the leader or what is below it, and of a subreaper these stay
      // descendants: a few files instead of one for each process of the machine.
      table = is_subreaper() ? read_descendants(::getpid()) : read_all_processes();
      table_read = now;
    }
    return table;
  }
};

namespace {

constexpr idtype_t kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD, Linux 5.4

int wait_for(int pidfd, int options, siginfo_t& info, rusage* usage) {
  long result = 0;
  do {  // the system call has a fifth argument that the C library's function leaves out
    result = ::syscall(SYS_waitid, kByPidfd, pidfd, &info, options, usage);
  } while (result < 0 && errno == EINTR);
  return static_cast<int>(result);
}

ExitStatus status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return ExitStatus::exited(info.si_status);
  return {ExitStatus::How::Signaled, info.si_status, info.si_code == CLD_DUMPED};
}

}  // namespace

class PosixChild final : public Child {
 public:
  PosixChild(boost::asio::io_context& io, Clock& clock, Spawned spawned,
             std::shared_ptr<Family> family)
      : clock_(clock),
        pid_(spawned.pid),
        pidfd_(std::move(spawned.pidfd)),
        family_(std::move(family)),
        watch_(io) {
    family_->ended.emplace(pid_, false);
  }

  ~PosixChild() override {
    lifetime_.end();
    // Before the reaping: once the leader is reaped its number, which is that of the group as well,
    // may be given to another process.
    signal_group(SIGKILL);
    stop_watching();
    reap();
    family_->ended.erase(pid_);
    std::erase(family_->unguarded, this);
  }

  void arm_death_signal() { death_signal_.arm(pid_); }

  Status watch(Launcher::OnExit on_exit) {
    boost::system::error_code error;
    watch_.assign(pidfd_.get(), error);
    if (error) return fail(Code::Spawn, "cannot watch the child: " + error.message());
    on_exit_ = std::move(on_exit);
    watch_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this, alive = lifetime_.token()](boost::system::error_code failure) {
                        if (!failure && alive) see_exit();
                      });
    return {};
  }

  pid_t pid() const override { return pid_; }
  bool ended() const override { return ended_; }

  bool signal_group(int signal) noexcept override {
    if (signal == SIGKILL && killed_at_ == TimePoint{}) killed_at_ = clock_.now();
    // Ours for sure: the leader lives, or is a zombie that only we reap.
    out_of_reach_ = ::kill(-pid_, signal) != 0 && errno == EPERM;
    return !out_of_reach_;
  }

  bool group_alive() const override {
    if (!ended_ && !leader_is_zombie()) return true;
    if (any_live_child_in_group(pid_)) return true;
    if (!any_live_child() && is_subreaper()) return false;
    // A member whose parent has left the group but lives, or whose parent we did not inherit from.
    const ProcessTable& table = family_->recent_table(clock_.now());
    return std::any_of(table.begin(), table.end(), [this](const ProcessEntry& entry) {
      return entry.group == pid_ && !entry.zombie();
    });
  }

 private:
  bool leader_is_zombie() const {
    siginfo_t info{};
    wait_for(pidfd_.get(), WEXITED | WNOHANG | WNOWAIT, info, nullptr);
    return info.si_pid != 0;
  }

  void see_exit() {
    siginfo_t info{};
    rusage usage{};
    // WNOWAIT: the zombie stays, and with it the number of the group.
    if (wait_for(pidfd_.get(), WEXITED | WNOHANG | WNOWAIT, info, &usage) < 0) {
      log::error("process", "cannot ask how process {} ended; taking it for killed", pid_);
      info.si_code = CLD_KILLED;
      info.si_status = SIGKILL;
    } else if (info.si_pid == 0) {
      return wait_for_tracer();
    }
    ended_ = true;
    family_->ended.at(pid_) = true;
    stop_watching();
    // ru_maxrss is in kilobytes (getrusage(2)).
    const Exit exit{status_of(info), clock_.now(), clock_.wall(), usage.ru_maxrss * 1024};
    // Moved out first, because the call may destroy this object and the function in it.
    const auto on_exit = std::move(on_exit_);
    on_exit(exit);  // may destroy this object
  }

  /// A dead process that strace(1) or a debugger holds is theirs before it is ours: its pidfd says
  /// that it has ended, but how, we are told only when they let go of it. Nothing tells us that.
  void wait_for_tracer() {
    constexpr Duration kFirst = std::chrono::milliseconds(1), kLongest = std::chrono::seconds(1);
    if (!tracer_alarm_) {
      tracer_alarm_ = clock_.make_alarm();
      tracer_pause_ = kFirst;
    }
    tracer_alarm_->arm(clock_.now() + tracer_pause_, [this] { see_exit(); });
    tracer_pause_ = std::min(tracer_pause_ * 2, kLongest);
  }

  void stop_watching() {
    // Out of epoll first, which release() does and close() does not: as long as a sibling between
    // clone and execve holds a copy, a closed pidfd would go on reporting.
    if (watch_.is_open()) watch_.release();
  }

  /// Waits as long as SIGKILL may take, since it was sent for the first time; not if it was
  /// refused.
  void reap() {
    using std::chrono::milliseconds;
    const auto left = out_of_reach_ ? Duration::zero() : killed_at_ + kKillBound - clock_.now();
    const auto time_limit = std::max(std::chrono::ceil<milliseconds>(left), milliseconds(0));
    pollfd waiting{pidfd_.get(), POLLIN, 0};
    int ready = 0;
    do {
      ready = ::poll(&waiting, 1, static_cast<int>(time_limit.count()));
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) {
      log::debug("process", "process {} has not ended after SIGKILL; leaving it behind", pid_);
      return;
    }
    siginfo_t info{};
    // Not waiting: a tracer may hold it for as long as it likes.
    wait_for(pidfd_.get(), WEXITED | WNOHANG, info, nullptr);
  }

  // Set at construction.
  Clock& clock_;
  const pid_t pid_;
  UniqueFd pidfd_;
  std::shared_ptr<Family> family_;
  // Changes while running. The flag is shared with a completion that may already be queued.
  GroupDeathSignal death_signal_;
  boost::asio::posix::stream_descriptor watch_;
  Launcher::OnExit on_exit_;
  bool ended_ = false, out_of_reach_ = false;
  TimePoint killed_at_{};
  std::unique_ptr<Alarm> tracer_alarm_;
  Duration tracer_pause_{};
  Lifetime lifetime_;
};

PosixLauncher::PosixLauncher(boost::asio::io_context& io, Clock& clock)
    : io_(io), clock_(clock), family_(std::make_shared<Family>()) {
  // Inherited as ignored, the kernel would reap our children, and their exit codes with them.
  ::signal(SIGCHLD, SIG_DFL);
}

Result<std::unique_ptr<Child>> PosixLauncher::start(const LaunchRequest& request, OnExit on_exit) {
  std::optional<Result<Spawned>> served;
  // Otherwise by exec: the server only saves time.
  if (serve_ && request.fork_slot >= 0) served = serve_(request);
  auto spawned = served ? std::move(*served) : spawn(io_, request);
  if (!spawned) return std::unexpected(spawned.error());
  auto child = std::make_unique<PosixChild>(io_, clock_, std::move(*spawned), family_);
  if (const auto watched = child->watch(std::move(on_exit)); !watched) {
    return std::unexpected(watched.error().context("cannot start " + request.argv.front()));
  }
  guard_soon(*child);
  return child;
}

std::vector<pid_t> PosixLauncher::children() const {
  std::vector<pid_t> result;
  for (const auto& [pid, ended] : family_->ended) result.push_back(pid);
  return result;
}

bool PosixLauncher::any_running() const {
  return std::ranges::any_of(family_->ended, [](const auto& one) { return !one.second; });
}

/// Once all of a group are started: each of them begins with a copy of our descriptors, which it
/// closes one by one, and meanwhile we wait for it.
void PosixLauncher::guard_soon(PosixChild& child) {
  family_->unguarded.push_back(&child);
  if (family_->unguarded.size() > 1) return;
  boost::asio::post(io_, [family = family_] {
    for (auto* const one : std::exchange(family->unguarded, {})) one->arm_death_signal();
  });
}

}  // namespace elastrun::process
