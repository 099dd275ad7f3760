// SPDX-License-Identifier: Apache-2.0
#include "requeue.hpp"

#include "core/error.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <cerrno>
#include <csignal>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun {
namespace {

constexpr int kBriefLimit = 10'000;  // milliseconds

/// Runs a program, found in PATH, with our environment and streams, without a loop: for 10 seconds,
/// then it is killed. Fails with Spawn if it cannot be started, or does not end with 0.
Status run_briefly(std::vector<std::string> argv) {
  std::vector<char*> words;
  for (auto& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // The loop has blocked signals, and a child would begin with that.
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, words[0], nullptr, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) return std::unexpected(errno_error(Code::Spawn, argv.front(), failed));
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd end{ended.get(), POLLIN, 0};
  // Without a pidfd (kernels before 5.3) the program is waited for without a limit.
  if (ended && ::poll(&end, 1, kBriefLimit) == 0) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFSIGNALED(status))
    return fail(Code::Spawn, fmt::format("ended by signal {}", WTERMSIG(status)));
  return fail(Code::Spawn, fmt::format("ended with exit code {}", WEXITSTATUS(status)));
}

}  // namespace

void requeue(const agent::JobResult& result, const spec::JobSpec& spec) {
  // A spare that goes alone is named: it may have led a round before, and the job runs on.
  const bool alone = !result.ending.cause.node.empty();
  const bool leads = result.round && result.round->group_rank == 0 && !alone;
  const bool preempted = result.ending.kind == agent::Ending::Kind::Preempted;
  if (!preempted || !spec.requeues || !leads) return;
  if (spec.requeue_command.empty()) {
    return log::warning("preempt",
                        "--on-preempt requeue: outside of a Slurm job; exit code 75 says it");
  }
  if (const auto asked = run_briefly(split(spec.requeue_command, ' ')); !asked) {
    log::error("preempt", "{}: {}", spec.requeue_command, asked.error().text);
  }
}

}  // namespace elastrun
