// SPDX-License-Identifier: Apache-2.0
#include "process/spawn.hpp"

#include "process/clone_into.hpp"
#include "process/program_path.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>

namespace elastrun::process {
namespace {

constexpr std::size_t kStackSize = 64 * 1024;  // the child calls nothing deeper than syscall(2)
constexpr std::size_t kGuardSize = 64 * 1024;  // a page everywhere, also where pages have 64 KiB
constexpr int kSignals = 64;

enum class Step { Nothing, Parent, Affinity, Directory, Streams, Exec };

// All that the child needs, made before it exists: it may neither allocate nor take a lock, because
// it runs in our memory while we stand still. It answers through the last two members.
struct Plan {
  const char* path = nullptr;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  const char* directory = nullptr;
  std::array<int, 3> streams{-1, -1, -1};
  const unsigned long* cpus = nullptr;
  std::size_t cpus_size = 0;
  std::array<std::uint64_t, 2> open_files{};  // struct rlimit64: soft, hard; 0, 0: untouched
  int cgroup_fd = -1;  // only where the kernel could not put the child there itself
  pid_t parent = 0;
  Step failed = Step::Nothing;
  int error = 0;
};

#define ELASTRUN_CHILD __attribute__((no_sanitize("address", "undefined")))

// The kernel takes whole registers, and a variadic call promises nothing about their upper halves.
template <class T>
ELASTRUN_CHILD long word(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

template <class... Args>
ELASTRUN_CHILD long raw(long number, Args... args) {
  return ::syscall(number, word(args)...);
}

[[noreturn]] ELASTRUN_CHILD void give_up(Plan* plan, Step step) {
  plan->error = errno;
  plan->failed = step;
  while (true) raw(SYS_exit_group, 127);
}

ELASTRUN_CHILD void join_cgroup(int cgroup_fd) {
  // A refusal is no reason not to start: the sweep finds the child's descendants without a cgroup.
  const long file = raw(SYS_openat, cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC, 0);
  if (file >= 0) raw(SYS_write, file, "0", 1);
}

ELASTRUN_CHILD void place_streams(Plan* plan) {
  // First out of the way of the targets: stdout may have been asked for on our descriptor 0.
  for (int target = 0; target < 3; ++target) {
    int& source = plan->streams[static_cast<std::size_t>(target)];
    if (source < 0 || source > 2 || source == target) continue;
    const long copy = raw(SYS_fcntl, source, F_DUPFD, 3);
    if (copy < 0) give_up(plan, Step::Streams);
    source = static_cast<int>(copy);
  }
  for (int target = 0; target < 3; ++target) {
    const int source = plan->streams[static_cast<std::size_t>(target)];
    const long done = source < 0 || source == target ? raw(SYS_fcntl, target, F_SETFD, 0)
                                                     : raw(SYS_dup3, source, target, 0);
    if (done < 0 && source >= 0) give_up(plan, Step::Streams);
  }
}

ELASTRUN_CHILD void close_the_rest() {
  if (raw(SYS_close_range, 3, ~0U, 0) == 0) return;
  // Linux before 5.9. What we open is close-on-exec anyway; this is for what we inherited.
  for (int fd = 3; fd < 4096; ++fd) raw(SYS_close, fd);
}

ELASTRUN_CHILD void reset_signals() {
  // Handlers would go with execve, but an ignored signal (SIGPIPE, or SIGHUP by nohup) would stay.
  // They go before the mask opens, else a handler of ours would run here, in our memory.
  const std::array<long, 8> default_action{};  // struct sigaction of the kernel: SIG_DFL
  for (int signal = 1; signal <= kSignals; ++signal) {
    raw(SYS_rt_sigaction, signal, default_action.data(), 0, kSignals / CHAR_BIT);
  }
  const unsigned long nothing = 0;
  raw(SYS_rt_sigprocmask, SIG_SETMASK, &nothing, 0, kSignals / CHAR_BIT);
}

ELASTRUN_CHILD int run_child(void* argument) {
  auto* const plan = static_cast<Plan*>(argument);
  raw(SYS_setsid);
  raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // If our parent died before that call, no signal will ever come: see prctl(2).
  if (raw(SYS_getppid) != plan->parent) give_up(plan, Step::Parent);
  if (plan->cgroup_fd >= 0) join_cgroup(plan->cgroup_fd);
  if (plan->cpus_size > 0 && raw(SYS_sched_setaffinity, 0, plan->cpus_size, plan->cpus) < 0) {
    give_up(plan, Step::Affinity);
  }
  if (plan->directory != nullptr && raw(SYS_chdir, plan->directory) < 0) {
    give_up(plan, Step::Directory);
  }
  place_streams(plan);
  close_the_rest();
  // Now that no descriptor is beyond it. Lowering a soft limit needs no privilege.
  if (plan->open_files[1] > 0) {
    raw(SYS_prlimit64, 0, RLIMIT_NOFILE, plan->open_files.data(), 0);
  }
  reset_signals();
  raw(SYS_execve, plan->path, plan->argv, plan->environment);
  give_up(plan, Step::Exec);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  // execve(2) takes the pointers as non-const for history's sake and writes to none of them.
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  if (cpus.empty()) return {};
  const int highest = *std::max_element(cpus.begin(), cpus.end());
  std::vector<unsigned long> mask(static_cast<std::size_t>(highest / kBits + 1));
  for (const int cpu : cpus) mask[static_cast<std::size_t>(cpu / kBits)] |= 1UL << (cpu % kBits);
  return mask;
}

/// The limits of a child: the soft one as asked for, the hard one as ours.
std::array<std::uint64_t, 2> descriptor_limits(std::optional<std::uint64_t> soft) {
  rlimit own{};
  if (!soft || ::getrlimit(RLIMIT_NOFILE, &own) != 0) return {};
  return {std::min<std::uint64_t>(*soft, own.rlim_max), own.rlim_max};
}

std::string explain_clone_failure(int number) {
  const std::string reason = std::strerror(number);
  if (number == EMFILE) return reason + " (raise the limit: ulimit -n)";
  if (number == EAGAIN) {
    return reason + " (the limit of processes is reached: ulimit -u, or pids.max of the cgroup)";
  }
  return reason;
}

std::string explain(const Plan& plan, const LaunchRequest& request) {
  const std::string& program = request.argv.front();
  const std::string reason = std::strerror(plan.error);
  switch (plan.failed) {
    case Step::Parent:
      return fmt::format("cannot start {}: the launcher is ending", program);
    case Step::Affinity:
      return fmt::format("cannot start {}: cannot bind it to CPUs {}: {}", program,
                         fmt::join(request.cpus, ","), reason);
    case Step::Directory:
      return fmt::format("cannot start {}: cannot enter the directory {}: {}", program,
                         request.directory, reason);
    case Step::Streams:
      return fmt::format("cannot start {}: cannot set up its standard streams: {}", program,
                         reason);
    default:
      return fmt::format("cannot start {}: {}", program,
                         explain_exec_failure(plan.error, plan.path, request.argv,
                                              request.environment, request.directory));
  }
}

// Blocks every signal while a child shares our memory, and whatever the way out unblocks them.
class AllBlocked {
 public:
  AllBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~AllBlocked() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  AllBlocked(const AllBlocked&) = delete;
  AllBlocked& operator=(const AllBlocked&) = delete;

 private:
  sigset_t before_{};
};

// The pid, or -errno.
long clone_child(Plan& plan, int cgroup_fd, void* stack, int& pidfd) {
  constexpr unsigned kFlags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD;
  const AllBlocked blocked;
  if (cgroup_fd >= 0) {
    const long pid = clone_into(cgroup_fd, kFlags, stack, kStackSize, run_child, &plan, pidfd);
    // EAGAIN and the like are answers; anything else says that it cannot be done in this way (an
    // old kernel, a seccomp filter that hides clone3(2), a cgroup that takes none from us).
    if (pid > 0 || pid == -EAGAIN || pid == -ENOMEM || pid == -EMFILE) return pid;
    plan.cgroup_fd = cgroup_fd;
  }
  const int pid = ::clone(run_child, static_cast<char*>(stack) + kStackSize,
                          static_cast<int>(kFlags) | SIGCHLD, &plan, &pidfd);
  return pid < 0 ? -errno : pid;
}

}  // namespace

Spawner::Spawner() {
  void* const whole = ::mmap(nullptr, kGuardSize + kStackSize, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return;
  stack_ = static_cast<char*>(whole) + kGuardSize;
  ::mprotect(stack_, kStackSize, PROT_READ | PROT_WRITE);
}

Spawner::~Spawner() {
  if (stack_ != nullptr) ::munmap(static_cast<char*>(stack_) - kGuardSize, kGuardSize + kStackSize);
}

Result<Spawned> Spawner::spawn(const LaunchRequest& request) {
  if (request.argv.empty()) return fail(Code::Spawn, "cannot start a program without a name");
  if (stack_ == nullptr) return fail(Code::Spawn, "cannot start anything: no memory for a stack");
  const auto path = find_program(request.argv.front(), request.environment, request.directory);
  if (!path) return std::unexpected(path.error());
  const auto argv = pointers(request.argv);
  const auto environment = pointers(request.environment);
  const auto cpus = cpu_mask(request.cpus);
  Plan plan{.path = path->c_str(),
            .argv = argv.data(),
            .environment = environment.data(),
            .directory = request.directory.empty() ? nullptr : request.directory.c_str(),
            .streams = {request.stdin_fd, request.stdout_fd, request.stderr_fd},
            .cpus = cpus.data(),
            .cpus_size = cpus.size() * sizeof(unsigned long),
            .open_files = descriptor_limits(request.open_files),
            .parent = ::getpid()};
  int raw_pidfd = -1;
  const long pid = clone_child(plan, request.cgroup_fd, stack_, raw_pidfd);
  if (pid < 0) {
    return fail(Code::Spawn, fmt::format("cannot start {}: {}", request.argv.front(),
                                         explain_clone_failure(static_cast<int>(-pid))));
  }
  UniqueFd pidfd(raw_pidfd);
  if (plan.failed != Step::Nothing) {
    while (::waitpid(static_cast<pid_t>(pid), nullptr, 0) < 0 && errno == EINTR) {
    }
    return fail(Code::Spawn, explain(plan, request));
  }
  return Spawned{static_cast<pid_t>(pid), std::move(pidfd)};
}

}  // namespace elastrun::process
