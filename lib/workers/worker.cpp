// SPDX-License-Identifier: Apache-2.0
#include "workers/worker.hpp"

#include "core/log.hpp"
#include "process/process_table.hpp"
#include "workers/diagnostics.hpp"

#include <csignal>
#include <utility>

namespace elastrun::workers {
namespace {

constexpr std::size_t kLastLines = 40;  // a Python traceback of some depth, and what led to it
constexpr std::size_t kSearched =
    1000;  // all that is kept: some tracebacks are deep, some messages long
constexpr std::string_view kTraceback = "Traceback (most recent call last):";

bool stops(int signal) {
  return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

}  // namespace

Failure failure_of(const Worker& worker, const process::Exit& exit, std::optional<ErrorFile> left) {
  Failure failure;
  failure.rank = worker.rank;
  failure.local_rank = worker.local_rank;
  failure.pid = worker.pid;
  failure.status = exit.status;
  failure.at = exit.at;
  failure.wall = exit.wall;
  failure.peak_rss_bytes = exit.peak_rss_bytes;
  failure.stopped_by_us = worker.stopped_by_us;
  failure.stopped_at = worker.stopped_at;
  failure.stderr_shown = worker.stderr_shown;
  failure.error_file_path = worker.error_file;
  // Empty it says only that a running worker is about to fail: once that has ended, that it could
  // not write, because /dev/shm or a disk is full.
  if (left && !(worker.exit && left->raw.empty())) failure.error_file = std::move(left);
  if (worker.streams) {
    failure.last_lines = worker.streams->last_lines(kSearched);
    failure.lines_are_mixed = worker.streams->mixes_streams();
    failure.lines_are_all =
        worker.streams->knows_all_lines() && failure.last_lines.size() < kSearched;
    failure.traceback_at = worker.streams->seen_at(kTraceback);
    failure.wrote_at = worker.streams->seen_at("");
    failure.stdout_path = worker.streams->stdout_path();
    failure.stderr_path = worker.streams->stderr_path();
  }
  failure.exception = exception_of(failure);
  auto& lines = failure.last_lines;
  if (lines.size() > kLastLines) {
    lines.erase(lines.begin(), lines.end() - kLastLines);
    failure.lines_are_all = false;
  }
  return failure;
}

/// A worker that runs as another user is named at once: what is to come cannot end it either.
void send_signal(std::vector<Worker>& workers, int signal) {
  for (auto& worker : workers) {
    const bool reached = worker.child->signal_group(signal);
    // To one that was stopped by SIGSTOP or Ctrl+Z. A stop signal itself would be taken back by
    // this before it is delivered: signal(7).
    if (!stops(signal) && signal != SIGKILL) worker.child->signal_group(SIGCONT);
    if (reached || worker.exit || std::exchange(worker.out_of_reach, true)) continue;
    worker.abandoned = true;
    log::error(
        "workers",
        "Process {} runs as {}: elastrun may not signal it, does not wait for it, and leaves "
        "it behind if it does not end by itself",
        worker.pid, process::owner_of(worker.pid));
  }
}

}  // namespace elastrun::workers
