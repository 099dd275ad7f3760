// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"
#include "process/vfork_into.hpp"

// For one source file alone: Boost 1.81 defines a function that is not inline in these headers.
// Paths of Boost.Filesystem, the default, would need its library at link time.
#define BOOST_PROCESS_USE_STD_FS 1
#include <boost/asio/detail/throw_error.hpp>  // 1.81 uses both, and includes neither
#include <boost/optional.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::process {

namespace protocol = boost::process::v2::posix::detail;  // by which launchers call initialisers

/// A launcher of Boost.Process in the manner of its posix::vfork_launcher, with the same call and
/// for the same initialisers. A program with an Asio loop cannot use that of Boost 1.81:
/// - its child, which shares our memory but not our descriptors, announces the fork to the
///   execution context, whose reactor then holds numbers of descriptors that only the child has;
/// - when exec fails, its child calls exit(3), which runs our exit handlers in our memory; it is
/// never reaped; and an initialiser's error is replaced by whatever errno is;
/// - it blocks no signal, so handlers of ours may run in the child;
/// - descriptors that lie between two of those that stay, it leaves open.
/// This one also has the child born in a cgroup, and runs no program without a pidfd.
///
/// on_exec_setup() and on_exec_error() of an initialiser run in the child and in our memory: they
/// may not allocate, take a lock or throw, and we see what they write.
class VforkLauncher : public boost::process::v2::posix::default_launcher {
 public:
  using error_code = boost::system::error_code;
  template <class Executor>
  using Process = boost::process::v2::basic_process<Executor>;

  /// Set beforehand: a directory of cgroup v2 for the child; -1: ours.
  int cgroup_fd = -1;
  /// Seen in the child: it could not be born there and has to move by itself.
  bool outside_cgroup = false;
  /// Seen in the child: its first initialiser has to leave our table of descriptors. Set beforehand
  /// where it can do that by close_range(2), which copies what stays and no more: an agent of 64
  /// workers has hundreds, and to copy and close them takes a third of a start.
  bool shares_descriptors = false;
  /// The child's, after success: the process of Boost 1.81 does not give its own away.
  UniqueFd pidfd;

  /// A process that has reached its program; or `error` and one that is not open, and no child.
  /// Throws boost::system::system_error, and leaves no child, if Asio has no descriptor for either.
  template <class Executor, class Args, class... Inits>
  Process<Executor> operator()(Executor executor, error_code& error,
                               const std::filesystem::path& program, Args&& args,
                               Inits&&... inits) {
    Process<Executor> none(executor);
    const char* const* argv = build_argv_(program, std::forward<Args>(args));
    error = protocol::on_setup(*this, program, argv, inits...);
    if (!error) start(error, program, argv, inits...);
    if (error) {
      protocol::on_error(*this, program, argv, error, inits...);
      return none;
    }
    try {
      Process<Executor> process(executor, pid);
      protocol::on_success(*this, program, argv, inits...);
      return process;
    } catch (...) {
      end();
      throw;
    }
  }

 private:
  // Else a handler of ours might run in the child, in our memory.
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

  template <class... Inits>
  void start(error_code& error, const std::filesystem::path& program, const char* const*& argv,
             Inits&... inits) {
    int raw_pidfd = -1;
    const CloneArguments arguments(cgroup_fd, shares_descriptors, raw_pidfd);
    const AllBlocked blocked;
    long child = elastrun_vfork_into(&arguments, sizeof arguments);
    if (child < 0 && !is_answer(-child)) {
      outside_cgroup = cgroup_fd >= 0;
      shares_descriptors = false;
      raw_pidfd = -1;  // the kernel may have given it a number before it refused the cgroup
      child = ::vfork();
      if (child < 0) child = -errno;
    }
    if (child == 0) become(error, program, argv, inits...);
    pid = static_cast<int>(child);
    if (child < 0) {
      error.assign(static_cast<int>(-child), boost::system::system_category());
      return protocol::on_fork_error(*this, program, argv, error, inits...);
    }
    pidfd.reset(raw_pidfd >= 0 ? raw_pidfd : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!error && !pidfd) error.assign(errno, boost::system::system_category());
    if (error) end();
  }

  // Anything else says that it cannot be done in this way: an old kernel, a seccomp filter that
  // hides clone3(2), a cgroup that takes none from us.
  static bool is_answer(long number) {
    return number == EAGAIN || number == ENOMEM || number == EMFILE || number == ENFILE;
  }

  // In the child.
  template <class... Inits>
  [[noreturn]] void become(error_code& error, const std::filesystem::path& program,
                           const char* const*& argv, Inits&... inits) {
    error = protocol::on_exec_setup(*this, program, argv, inits...);
    if (!error) {
      ::execve(program.c_str(), const_cast<char* const*>(argv), const_cast<char* const*>(env));
      error.assign(errno, boost::system::system_category());
    }
    protocol::on_exec_error(*this, program, argv, error, inits...);
    ::_exit(127);
  }

  void end() {
    pidfd.reset();
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
};

}  // namespace elastrun::process
