// SPDX-License-Identifier: Apache-2.0
#include "process/removal.hpp"

#include "core/standard_streams.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using Steady = std::chrono::steady_clock;

/// The child: a byte for each path that is done.
[[noreturn]] void work(const std::vector<std::string>& paths, void (*remove)(const std::string&),
                       int report, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != parent) ::_exit(EXIT_FAILURE);
  constexpr int kReport = 0;
  // Nobody who reads our output, or waits for a lock, waits for this process.
  if (::dup2(report, kReport) < 0) ::_exit(EXIT_FAILURE);
  close_descriptors_from(kReport + 1);
  for (const std::string& path : paths) {
    remove(path);
    [[maybe_unused]] const auto written = ::write(kReport, "", 1);
  }
  ::_exit(EXIT_SUCCESS);
}

timespec until_spec(Steady::time_point until) {
  using namespace std::chrono;
  const auto left = std::max(until - Steady::now(), Steady::duration::zero());
  const auto whole = duration_cast<seconds>(left);
  return {whole.count(), duration_cast<nanoseconds>(left - whole).count()};
}

/// False if it has not ended in time.
bool await(pid_t child) {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  for (const int signal : {SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    ::sigaddset(&awaited, signal);
  }
  const auto began = Steady::now();
  auto until = began + kRemovalBound;
  while (::waitpid(child, nullptr, WNOHANG) == 0) {
    if (Steady::now() >= until) return false;
    const auto left = until_spec(until);
    const int signal = ::sigtimedwait(&awaited, nullptr, &left);
    if (signal > 0 && signal != SIGCHLD) until = std::min(until, began + kRemovalAfterSignal);
  }
  return true;
}

}  // namespace

void remove_path(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::vector<std::string> remove_within_bound(const std::vector<std::string>& paths,
                                             void (*remove)(const std::string&)) {
  if (paths.empty()) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return paths;
  const UniqueFd reports(ends[0]), report(ends[1]);
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) work(paths, remove, report.get(), self);
  if (child < 0) return paths;
  if (!await(child)) ::kill(child, SIGKILL);
  std::string done(paths.size(), '\0');
  const auto count = ::read(reports.get(), done.data(), done.size());
  return {paths.begin() + std::max<std::ptrdiff_t>(count, 0), paths.end()};
}

}  // namespace elastrun::process
