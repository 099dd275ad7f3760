// SPDX-License-Identifier: Apache-2.0

// For one source file alone: Boost 1.81 defines a function that is not inline in these headers.
// Paths of Boost.Filesystem, the default, would need its library at link time.
#define BOOST_PROCESS_USE_STD_FS 1

#include "process/spawn.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "process/signals.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/detail/throw_error.hpp>  // 1.81 uses both, and includes neither
#include <boost/optional.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace elastrun::process {

std::vector<std::string> shell_line(std::string line) {
  return {"/bin/sh", "-c", std::move(line)};
}

std::vector<std::string> shell_exec(const std::vector<std::string>& words) {
  // The words are parameters and no part of the line, so nothing in them is read as shell syntax.
  // By exec, so that signals reach the program, and its end is that of the child.
  auto argv = shell_line(R"(exec "$0" "$@")");
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

namespace {

std::string in_directory(const std::string& directory, const std::string& path) {
  return directory.empty() || path.starts_with('/') ? path : directory + "/" + path;
}

// 0, or the errno that execve(2) would give for a file that is missing or may not be executed.
int refusal(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return errno;
  if (!S_ISREG(facts.st_mode)) return EACCES;
  // By the effective user, as execve(2) judges; access(2) takes the real one.
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

// The interpreter of a script's first line, or nothing.
std::string interpreter_of(const std::string& path) {
  // As much as the kernel looks at (BINPRM_BUF_SIZE).
  const auto start = read_file(path, 256).value_or("");
  std::string_view line = start;
  if (!line.starts_with("#!")) return {};
  line = line.substr(2, line.find('\n') - 2);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return std::string(line.substr(0, line.find_first_of(" \t")));
}

std::string explain_size(const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment) {
  const auto total = [](const std::vector<std::string>& texts) {
    std::size_t bytes = 0;
    // The kernel counts the pointers, too (bprm_stack_limits() in fs/exec.c).
    for (const std::string& text : texts) bytes += text.size() + 1 + sizeof(char*);
    return bytes;
  };
  const auto longest = std::max_element(
      environment.begin(), environment.end(),
      [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  std::string advice = fmt::format(
      "Argument list too long (the arguments take {}, the environment {}; the limit is about {} "
      "in all and 128 KiB for one text",
      format_bytes(total(argv)), format_bytes(total(environment)),
      format_bytes(static_cast<std::uint64_t>(::sysconf(_SC_ARG_MAX))));
  if (longest != environment.end()) {
    advice += fmt::format("; the largest variable is {} with {}; unset or shorten it",
                          longest->substr(0, longest->find('=')), format_bytes(longest->size()));
  }
  return advice + ")";
}

using Steady = std::chrono::steady_clock;

timespec until_spec(Steady::time_point until) {
  using namespace std::chrono;
  const auto left = std::max(until - Steady::now(), Steady::duration::zero());
  const auto whole = duration_cast<seconds>(left);
  return {whole.count(), duration_cast<nanoseconds>(left - whole).count()};
}

/// False if it has not ended in time.
bool await(pid_t child, ChildBound bound) {
  const bool hurries = bound.after_signal < bound.limit;
  const auto awaited =
      hurries ? set_of({SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) : set_of({SIGCHLD});
  const auto began = Steady::now();
  auto until = began + bound.limit;
  while (::waitpid(child, nullptr, WNOHANG) == 0) {
    if (Steady::now() >= until) return false;
    const auto left = until_spec(until);
    // Our callers have these blocked: one that comes between waitpid(2) and here is pending, and
    // not lost.
    const int signal = ::sigtimedwait(&awaited, nullptr, &left);
    if (signal > 0 && signal != SIGCHLD) until = std::min(until, began + bound.after_signal);
  }
  return true;
}

/// A terminal or a pipe that has room; not what a file system keeps.
bool takes_at_once(int fd) {
  struct stat info {};
  pollfd room{fd, POLLOUT, 0};
  return ::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode) && ::poll(&room, 1, 0) == 1;
}

}  // namespace

Result<std::string> find_program(const std::string& name,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory) {
  if (name.empty()) return fail(Code::Spawn, "cannot start an empty program name");
  if (name.find('/') != std::string::npos) return name;  // execve itself gives the best errors
  bool forbidden = false;
  for (const std::string& path : program_candidates(name, find_variable(environment, "PATH"))) {
    const int number = refusal(in_directory(directory, path));
    if (number == 0) return path;
    forbidden = forbidden || number == EACCES;
  }
  if (forbidden) {
    return fail(Code::Spawn, fmt::format("cannot start {}: Permission denied (a file of this name "
                                         "in PATH is not executable; try chmod +x)",
                                         name));
  }
  return fail(Code::Spawn, fmt::format("cannot start {}: No such file or directory (it is in no "
                                       "directory of PATH)",
                                       name));
}

bool do_in_child(const std::function<void()>& work, ChildBound bound) {
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    // The parent may have died before that call; the signal then never comes (prctl(2)).
    if (::getppid() != self) ::_exit(EXIT_FAILURE);
    work();
    // Not exit(3): buffers and handlers are the parent's.
    ::_exit(EXIT_SUCCESS);
  }
  // Not waited for after that: what hangs in a file system does not end by SIGKILL either.
  if (child > 0 && !await(child, bound)) ::kill(child, SIGKILL);
  return child > 0;
}

void say_within_bound(const std::string& line) {
  const auto write_it = [&line] {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  };
  constexpr ChildBound kBound{std::chrono::seconds(1), std::chrono::seconds(1)};
  if (!do_in_child(write_it, kBound) && takes_at_once(STDERR_FILENO)) write_it();
}

Status enough_descriptors() {
  constexpr rlim_t kLeast = 24;  // loop, guardian, threads, store, and one worker with its pipes
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= kLeast) return {};
  return fail(Code::Io, fmt::format("the limit of open files is {}, and a job of one worker takes "
                                    "{}: raise it (ulimit -n)",
                                    limit.rlim_max, kLeast));
}

DescriptorLimit::DescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const auto given = limit.rlim_cur;
  // The soft limit may be raised up to the hard one without a privilege (getrlimit(2)).
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) given_ = given;
}

DescriptorLimit::~DescriptorLimit() {
  rlimit limit{};
  if (!given_ || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = *given_;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// struct clone_args of <linux/sched.h>, which cannot be included beside <sched.h>, for a child as
/// after vfork(2): it has our memory, and we stand still until it has left it.
struct alignas(8) CloneArguments {
  std::uint64_t flags, pidfd, child_tid = 0, parent_tid = 0, exit_signal;
  std::uint64_t stack = 0, stack_size = 0, tls = 0, set_tid = 0, set_tid_size = 0, cgroup = 0;
};

/// clone3(2), for which the C library has no function. Returns twice, as vfork(2) does: 0 in the
/// child, which must not return from the function that called this; in the parent the pid or
/// -errno, -ENOSYS on machines for which it is not written.
extern "C" [[gnu::returns_twice]] long elastrun_vfork_into(const CloneArguments* arguments,
                                                           std::size_t size);

// Why not syscall(2), and without CLONE_VM: to copy the page tables of an agent of 6 MB costs 0.6
// ms for each worker, a fifth of the launch of 64. And why not vfork(2) and a write to
// cgroup.procs: the first such write waits for a grace period of the kernel's RCU, 5 to 20 ms, each
// round.
//
// With CLONE_VM the child runs on our stack, as after vfork(2), and overwrites the address to which
// a function in C++ would return in the parent. So this one keeps it in a register.
#if defined(__x86_64__)
asm(R"(
  .pushsection .text.elastrun_vfork_into, "ax", @progbits
  .globl elastrun_vfork_into
  .hidden elastrun_vfork_into
  .type elastrun_vfork_into, @function
elastrun_vfork_into:
  popq %rdx
  movl $435, %eax
  syscall
  pushq %rdx
  ret
  .size elastrun_vfork_into, . - elastrun_vfork_into
  .popsection
)");
#elif defined(__aarch64__)
asm(R"(
  .pushsection .text.elastrun_vfork_into, "ax", @progbits
  .globl elastrun_vfork_into
  .hidden elastrun_vfork_into
  .type elastrun_vfork_into, %function
elastrun_vfork_into:
  mov x8, #435
  svc #0
  ret
  .size elastrun_vfork_into, . - elastrun_vfork_into
  .popsection
)");
#else
extern "C" long elastrun_vfork_into(const CloneArguments*, std::size_t) {
  return -ENOSYS;
}
#endif

namespace {

constexpr int kSignals = 64;

enum class Step { Start, Parent, Affinity, Directory, Streams, Exec };

bool lead_session(pid_t parent) {
  ::setsid();
  // It comes when the thread ends that called us, not the process (prctl(2)): so a thread that
  // starts workers ends them when it ends. A set-user-ID program does not get it; the guardian
  // finds what is left of such a worker.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // If our parent died before that call, no signal will ever come: see prctl(2).
  if (::getppid() == parent) return true;
  errno = ESRCH;  // getppid() sets none, and 0 would be no error: the program would run
  return false;
}

bool place_streams(std::array<int, 3> sources) {
  // First out of the way of the targets: stdout may have been asked for on our descriptor 0.
  for (int target = 0; target < 3; ++target) {
    int& source = sources[static_cast<std::size_t>(target)];
    if (source < 0 || source > 2 || source == target) continue;
    source = ::fcntl(source, F_DUPFD, 3);
    if (source < 0) return false;
  }
  for (int target = 0; target < 3; ++target) {
    const int source = sources[static_cast<std::size_t>(target)];
    // dup2(2) onto itself does nothing, and would leave it close-on-exec.
    const bool stays = source < 0 || source == target;
    const int done = stays ? ::fcntl(target, F_SETFD, 0) : ::dup2(source, target);
    if (done < 0 && source >= 0) return false;
  }
  return true;
}

/// In order, each once.
std::vector<int>& inherited() {
  static std::vector<int> descriptors;
  return descriptors;
}

/// Closes what is above the standard streams, but for what children inherit.
bool keep_only(const std::vector<int>& kept) {
  int next = 3;
  for (const int fd : kept) {
    if (::fcntl(fd, F_SETFD, 0) < 0) return false;  // what we were given may be close-on-exec
    // Linux before 5.9 lacks the call, and a child then has more than it should: the rest is ours,
    // and close-on-exec.
    if (fd > next) ::syscall(SYS_close_range, next, fd - 1, 0);
    next = fd + 1;
  }
  close_descriptors_from(next);
  return true;
}

/// Linux 5.9. Asked with a range that is empty: it says the same and changes nothing.
bool can_leave_table() {
  static const bool can = ::syscall(SYS_close_range, ~0U, ~0U, 0) == 0;
  return can;
}

void reset_signals() {
  // Handlers would go with execve, but an ignored signal (SIGPIPE, or SIGHUP by nohup) would stay.
  // They go before the mask opens, else a handler of ours would run here, in our memory.
  // By the kernel's own call: sigaction(3) refuses two signals and takes a lock for another.
  const std::array<long, 8> default_action{};  // struct sigaction of the kernel: SIG_DFL
  for (int signal = 1; signal <= kSignals; ++signal) {
    ::syscall(SYS_rt_sigaction, signal, default_action.data(), nullptr,
              static_cast<std::size_t>(kSignals / CHAR_BIT));
  }
  const unsigned long nothing = 0;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &nothing, nullptr,
            static_cast<std::size_t>(kSignals / CHAR_BIT));
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(text.c_str());
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
rlimit descriptor_limits(std::optional<std::uint64_t> soft) {
  rlimit own{};
  if (!soft || ::getrlimit(RLIMIT_NOFILE, &own) != 0) return {};
  return {std::min<rlim_t>(*soft, own.rlim_max), own.rlim_max};
}

/// A launcher of Boost.Process for one request, in the manner of its posix::vfork_launcher, which a
/// program with an Asio loop cannot use in Boost 1.81:
/// - its child, which shares our memory but not our descriptors, announces the fork to the
///   execution context, whose reactor then holds numbers of descriptors that only the child has;
/// - when exec fails, its child calls exit(3), which runs our exit handlers in our memory; it is
/// never reaped; and an initialiser's error is replaced by whatever errno is;
/// - it blocks no signal, so handlers of ours may run in the child;
/// - descriptors that lie between two of those that stay, it leaves open.
/// This one also has the child born in a cgroup, and runs no program without a pidfd.
///
/// In the child, which has our memory, it may not allocate, take a lock or throw before the program
/// runs: all that it uses is made beforehand, and what it writes tells us what went wrong.
class VforkLauncher : public boost::process::v2::posix::default_launcher {
 public:
  using error_code = boost::system::error_code;
  using Process = boost::process::v2::basic_process<boost::asio::io_context::executor_type>;

  explicit VforkLauncher(const LaunchRequest& request)
      : request_(request),
        argv_(pointers(request.argv)),
        environment_(pointers(request.environment)),
        cpus_(cpu_mask(request.cpus)),
        open_files_(descriptor_limits(request.open_files)),
        streams_{request.stdin_fd, request.stdout_fd, request.stderr_fd} {
    env = environment_.data();
  }

  /// What the child was asked to do and did not; Start: the start itself failed, or worked.
  Step failed = Step::Start;
  /// The child's, after success: the process of Boost 1.81 does not give its own away.
  UniqueFd pidfd;

  /// A process that has reached its program; or `error` and one that is not open, and no child.
  /// Throws boost::system::system_error, and leaves no child, if Asio has no descriptor for either.
  Process operator()(boost::asio::io_context& io, error_code& error, const std::string& program) {
    start(error, program);
    if (error) return Process(io.get_executor());
    try {
      return Process(io.get_executor(), pid);
    } catch (...) {
      end();
      throw;
    }
  }

 private:
  void start(error_code& error, const std::string& program) {
    int raw_pidfd = -1;
    const auto arguments = clone_arguments(raw_pidfd);
    sigset_t all;
    ::sigfillset(&all);
    // Else a handler of ours might run in the child, in our memory.
    const BlockedSignals blocked(all);
    const pid_t parent = ::getpid();
    long child = elastrun_vfork_into(&arguments, sizeof arguments);
    if (child < 0 && !is_answer(-child)) {
      outside_cgroup_ = request_.cgroup_fd >= 0;
      shares_descriptors_ = false;
      raw_pidfd = -1;  // the kernel may have given it a number before it refused the cgroup
      child = ::vfork();
      if (child < 0) child = -errno;
    }
    if (child == 0) become(error, program, parent);
    pid = static_cast<int>(child);
    if (child < 0) return error.assign(static_cast<int>(-child), boost::system::system_category());
    pidfd.reset(raw_pidfd >= 0 ? raw_pidfd : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!error && !pidfd) error.assign(errno, boost::system::system_category());
    if (error) end();
  }

  /// `raw_pidfd` gets the child's; it is born in the cgroup of the request. With CLONE_FILES what
  /// the child opens and closes is ours, until it leaves the table.
  CloneArguments clone_arguments(int& raw_pidfd) const {
    constexpr std::uint64_t kIntoCgroup = 0x200000000;  // CLONE_INTO_CGROUP, Linux 5.7
    const int cgroup = request_.cgroup_fd;
    CloneArguments arguments{.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD |
                                      (shares_descriptors_ ? CLONE_FILES : 0U) |
                                      (cgroup >= 0 ? kIntoCgroup : 0U),
                             .pidfd = reinterpret_cast<std::uint64_t>(&raw_pidfd),
                             .exit_signal = SIGCHLD};
    if (cgroup >= 0) arguments.cgroup = static_cast<std::uint64_t>(cgroup);
    return arguments;
  }

  // Anything else says that it cannot be done in this way: an old kernel, a seccomp filter that
  // hides clone3(2), a cgroup that takes none from us.
  static bool is_answer(long number) {
    return number == EAGAIN || number == ENOMEM || number == EMFILE || number == ENFILE;
  }

  // In the child.
  [[noreturn]] void become(error_code& error, const std::string& program, pid_t parent) {
    if (prepare(parent)) {
      ::execve(program.c_str(), const_cast<char* const*>(argv_.data()),
               const_cast<char* const*>(env));
      failed = Step::Exec;
    }
    error.assign(errno, boost::system::system_category());
    ::_exit(127);
  }

  /// Our own table before all that opens or closes. The cgroup before the affinity: who enters one
  /// with a cpuset gets that set as its mask. The streams before the rest is closed, of which they
  /// may be a part. The limit of descriptors once none is beyond it. The signals last: until then
  /// all are blocked, and none can end a child that has not said why it failed.
  bool prepare(pid_t parent) {
    const auto step = [this](Step one, bool done) {
      if (!done) failed = one;
      return done;
    };
    if (!step(Step::Streams, leave_table()) || !step(Step::Parent, lead_session(parent))) {
      return false;
    }
    join_cgroup();
    if (!step(Step::Affinity, bind()) || !step(Step::Directory, enter()) ||
        !step(Step::Streams, place_streams(streams_) && keep_only(inherited_))) {
      return false;
    }
    // Lowering a soft limit needs no privilege.
    if (open_files_.rlim_max > 0) ::setrlimit(RLIMIT_NOFILE, &open_files_);
    reset_signals();
    return true;
  }

  /// Keeps, of the agent's descriptors, those that the child is about to place or to inherit.
  bool leave_table() const {
    if (!shares_descriptors_) return true;
    int highest = std::max(2, *std::ranges::max_element(streams_));
    if (!inherited_.empty()) highest = std::max(highest, inherited_.back());
    return ::syscall(SYS_close_range, highest + 1, ~0U, CLOSE_RANGE_UNSHARE) == 0;
  }

  void join_cgroup() const {
    if (!outside_cgroup_) return;
    // Start the child even if this is refused: the sweep finds the child's descendants without a
    // cgroup.
    const int file = ::openat(request_.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const auto written = ::write(file, "0", 1);
  }

  bool bind() const {
    // By the kernel's own call: cpu_set_t of the C library ends at CPU 1023.
    return cpus_.empty() ||
           ::syscall(SYS_sched_setaffinity, 0, cpus_.size() * sizeof cpus_[0], cpus_.data()) >= 0;
  }

  bool enter() const {
    return request_.directory.empty() || ::chdir(request_.directory.c_str()) == 0;
  }

  void end() {
    pidfd.reset();
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  const LaunchRequest& request_;
  const std::vector<const char*> argv_, environment_;
  const std::vector<unsigned long> cpus_;
  const rlimit open_files_;
  const std::array<int, 3> streams_;
  const std::vector<int>& inherited_ = inherited();
  /// It could not be born in its cgroup and has to move by itself.
  bool outside_cgroup_ = false;
  /// It has to leave our table of descriptors, where it can do that by close_range(2), which copies
  /// what stays and no more: an agent of 64 workers has hundreds, and to copy and close them takes
  /// a third of a start.
  bool shares_descriptors_ = can_leave_table();
};

/// Why execve(2) refused, in words: names the interpreter that a script's first line asks for and
/// that does not exist, the size of an environment that is too large, the limit that was hit.
std::string explain_exec_failure(int number, const std::string& path,
                                 const LaunchRequest& request) {
  const std::string file = in_directory(request.directory, path);
  if (number == E2BIG) return explain_size(request.argv, request.environment);
  // The file is there: what is missing is the one that the kernel starts in its place.
  if (number == ENOENT && refusal(file) == 0) {
    const std::string interpreter = interpreter_of(file);
    if (interpreter.ends_with('\r')) {
      return fmt::format(
          "No such file or directory (its first line ends in CR LF, as Windows writes it, so the "
          "kernel looks for '{}\\r'; convert the file: sed -i 's/\\r$//' {})",
          interpreter.substr(0, interpreter.size() - 1), file);
    }
    if (!interpreter.empty()) {
      return fmt::format("No such file or directory (its first line asks for {}, which is missing)",
                         interpreter);
    }
    return "No such file or directory (the loader that the program was linked for is missing)";
  }
  if (number == EACCES && refusal(file) == EACCES) {
    return "Permission denied (not an executable file; try chmod +x)";
  }
  if (number == ENOEXEC) {
    return "Exec format error (neither a program for this machine nor a script that starts "
           "with #!)";
  }
  return std::strerror(number);
}

std::string explain(Step failed, int number, const std::string& path,
                    const LaunchRequest& request) {
  const std::string reason = std::strerror(number);
  switch (failed) {
    case Step::Start:
      if (number == EMFILE) return reason + " (raise the limit: ulimit -n)";
      if (number != EAGAIN) return reason;
      return reason + " (the limit of processes is reached: ulimit -u, or pids.max of the cgroup)";
    case Step::Parent:
      return "the launcher is ending";
    case Step::Affinity:
      return fmt::format("cannot bind it to CPUs {}: {}", fmt::join(request.cpus, ","), reason);
    case Step::Directory:
      return fmt::format("cannot enter the directory {}: {}", request.directory, reason);
    case Step::Streams:
      return fmt::format("cannot set up its standard streams: {}", reason);
    case Step::Exec:
      break;
  }
  return explain_exec_failure(number, path, request);
}

}  // namespace

void let_children_inherit(std::vector<int> descriptors) {
  std::ranges::sort(descriptors);
  const auto again = std::ranges::unique(descriptors);
  descriptors.erase(again.begin(), again.end());
  inherited() = std::move(descriptors);
}

Result<Spawned> spawn(boost::asio::io_context& io, const LaunchRequest& request) {
  if (request.argv.empty()) return fail(Code::Spawn, "cannot start a program without a name");
  // Here and not in the child, which may not allocate.
  const auto path = find_program(request.argv.front(), request.environment, request.directory);
  if (!path) return std::unexpected(path.error());
  VforkLauncher launcher(request);
  boost::system::error_code error;
  try {
    // Detached: it would kill the child when it goes, and its wait reaps; the one that started the
    // child does both.
    launcher(io, error, *path).detach();
  } catch (const boost::system::system_error& failure) {
    error = failure.code();
  }
  if (!error) return Spawned{launcher.pid, std::move(launcher.pidfd)};
  return fail(Code::Spawn, fmt::format("cannot start {}: {}", request.argv.front(),
                                       explain(launcher.failed, error.value(), *path, request)));
}

}  // namespace elastrun::process
