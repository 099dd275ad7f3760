// SPDX-License-Identifier: Apache-2.0
#include "process/removal.hpp"

#include "core/standard_streams.hpp"
#include "core/unique_fd.hpp"
#include "process/bounded_child.hpp"

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

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

/// What a child that ended, or was given up, has left of them.
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
