// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "logs/stream_factory.hpp"
#include "process/launcher.hpp"
#include "workers/error_file.hpp"
#include "workers/shared_page.hpp"

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
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

/// A worker of the group, running or ended; its request is not kept.
struct Worker : WorkerPlan {
  pid_t pid = 0;
  std::unique_ptr<process::Child> child;
  std::optional<process::Exit> exit;
  bool stopped_by_us = false;  // ended after we had asked it to
  TimePoint stopped_at{};      // then: when we had
  bool abandoned = false;      // did not even end by SIGKILL within the bound, or is out of reach
  bool out_of_reach = false;   // runs as another user: not waited for
  bool returned = false;       // its script has; it waits for those of the others
  enum class Output { Flowing, Draining, Drained } output = Output::Drained;
  bool succeeded() const { return exit && exit->status.success(); }
  bool failed() const { return exit && !exit->status.success(); }
};

/// A Python exception as its last lines name it.
struct PythonException {
  std::string type;     // "ValueError", "torch.cuda.OutOfMemoryError"
  std::string message;  // its first line; may be empty
  std::string place{};  // "train.py:12", of an import or a parse that failed; else empty
  /// "ValueError: no such thing", "SyntaxError: invalid syntax (train.py:12)"
  std::string text() const {
    return type + (message.empty() ? "" : ": " + message) +
           (place.empty() ? "" : " (" + place + ")");
  }
  bool operator==(const PythonException&) const = default;
};

/// One worker that ended badly, with all that is known about why. Facts only: who is to blame is
/// for `judge` (diagnostics.hpp).
struct Failure : process::Exit {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  std::optional<TimePoint> traceback_at;  // when its last traceback began on stderr
  std::optional<TimePoint> wrote_at{};    // when the last of its stderr came
  bool stopped_by_us = false;             // it ended after our signal to stop
  TimePoint stopped_at{};                 // then: that signal
  bool cut_short = false;                 // it had said why it fails before that: judge() sets this
  std::string error_file_path;
  std::optional<ErrorFile> error_file;  // none if the worker left none
  std::optional<PythonException> exception;
  std::vector<std::string> last_lines;   // of stderr, oldest first, as they were written
  bool lines_are_mixed = false;          // with those of stdout
  bool lines_are_all = true;             // else the first of them may lack its start
  bool stderr_shown = false;             // they stand on the console already
  std::string stdout_path, stderr_path;  // log files; empty if none
  std::string out_of_memory;             // one sentence; empty if it was not
  std::string expired_timer;             // why it was ended: one sentence; empty: not by a timer
  std::vector<std::string> stack;        // then: its stack before that, lines
  std::optional<PageContents> page;      // what it last wrote there; none if it had no page
};

}  // namespace elastrun::workers
