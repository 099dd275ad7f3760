// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "logs/stream_factory.hpp"
#include "process/launcher.hpp"
#include "workers/failure.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::workers {

/// One worker to be started. The descriptors of the request are filled in from `streams`.
struct WorkerPlan {
  int rank = 0, local_rank = 0;
  process::LaunchRequest request;
  std::string error_file;
  std::unique_ptr<logs::WorkerStreams> streams;  // null: everything is inherited
  bool stderr_shown = false;                     // people see it on the console anyway
};

/// A worker of the group, running or ended.
struct Worker {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  std::string error_file;
  std::unique_ptr<logs::WorkerStreams> streams;
  std::unique_ptr<process::Child> child;
  std::optional<process::Exit> exit;
  bool stderr_shown = false;
  bool stopped_by_us = false;  // ended after we had asked it to
  TimePoint stopped_at{};      // then: when we had
  bool abandoned = false;      // did not even end by SIGKILL within the bound, or is out of reach
  bool out_of_reach = false;   // runs as another user: not waited for
  bool returned = false;       // its script has; it waits for those of the others
  enum class Output { Flowing, Draining, Drained } output = Output::Drained;
  bool succeeded() const { return exit && exit->status.success(); }
  bool failed() const { return exit && !exit->status.success(); }
};

/// A signal for each of their groups, and SIGCONT, without which one that was stopped would notice
/// no other than SIGKILL. A worker that runs as another user is named, and is out of reach then.
void send_signal(std::vector<Worker>& workers, int signal);

/// What is known of a worker that ended so, with what it left in its error file, if anything.
Failure failure_of(const Worker& worker, const process::Exit& exit, std::optional<ErrorFile> left);

}  // namespace elastrun::workers
