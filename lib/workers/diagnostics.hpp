// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "logs/stream_factory.hpp"
#include "process/launcher.hpp"
#include "spec/agreed_rules.hpp"
#include "workers/shared_page.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::workers {

/// What a failing worker left in its error.json, as far as it can be understood. The file comes
/// from a dying program: it may be empty, half written, huge or anything else, and none of that
/// hurts (torchrun ends the whole job then).
struct ErrorFile {
  std::string raw;          // the beginning of the file as it is, for people and for telemetry
  bool understood = false;  // JSON in one of the two known forms; otherwise only `raw` is set
  bool plain = false;       // the form whose message is text, not an object
  std::string message;      // "ValueError: boom", one or more lines; may be empty
  std::string callstack;    // Python's traceback; may be empty
  std::optional<std::int64_t> timestamp;  // whole seconds since the epoch, by the worker's clock
  std::optional<WallTime> written;        // when the file was, by the file system's clock

  /// What the failure report shows after `traceback :`. Empty if there is nothing to show.
  const std::string& report_text() const { return callstack.empty() ? message : callstack; }
};

/// The two known forms (torchrun-parity 4.10); anything else gives `understood == false`. Of more
/// than 1 MiB only the message is known, as far as it is in the first 64 KiB. Pure.
ErrorFile parse_error_file(std::string_view text);

/// Nothing if the file is missing. Reads little more than 1 MiB.
std::optional<ErrorFile> read_error_file(const std::string& path);

/// Copies the root cause's file to the launcher's own, with `errorCode` in an object message. Of
/// one above 64 MiB the message alone is written, in torch's form. An existing file is replaced,
/// and the text returned is a warning with its contents, else empty; a device or FIFO is written
/// to. May wait for the file system, as the next one.
Result<std::string> copy_error_file(const std::string& from, const std::string& to, int exit_code);

/// Writes an error of the launcher itself in the form of torch's `@record`.
Result<std::string> write_error_file(const std::string& to, std::string_view message,
                                     WallTime when);

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

/// The exception that Python reported last in these lines of stderr, also when torch put a rank in
/// front of each ("[rank0]: "). Nothing if no traceback ends in them. `are_all`: stderr had no
/// other lines. Else they may begin inside a line, and inside a traceback without its header.
std::optional<PythonException> exception_in(const std::vector<std::string>& lines,
                                            bool are_all = true);

/// The same from the error file if there is one that can be understood, else from the last lines.
std::optional<PythonException> exception_of(const Failure& failure);

/// Whether an error says that another process of the job went away (a closed connection, a failed
/// collective): the one who says so is seldom the one to blame.
bool blames_a_peer(std::string_view text);

/// Whether only the loss of a peer, or our signal, explains its end. Where another worker has
/// failed by itself, on this node or on another one, that one is the culprit.
bool is_victim(const Failure& failure);

/// Whether NCCL's watchdog took the process down because a collective operation timed out: by
/// SIGABRT, like a crash, but the reason lies with a rank that did not take part.
bool ended_by_watchdog(const Failure& failure);

/// When a worker began to fail: the earliest of its exit, its error file and, if it exited or was
/// cut short, its last traceback. A Python program needs a while from its exception to its exit, so
/// that exits alone may name the wrong one.
TimePoint evident_at(const Failure& failure);

/// How long it took from there to its end: a traceback, destructors, the interpreter. Zero of one
/// that a signal killed; none of another one that did not tell when it began to fail.
std::optional<Duration> exit_time(const Failure& failure);

/// Whether the worker that failed first is among `failures` (not empty), so that waiting for more
/// reports is needless. Not if all of them blame a peer, if the traceback of a worker that still
/// runs is older, or if such a worker has left its error file, and so is ending too. `running` are
/// those, as if they had ended just now with an exit code. Pure.
bool is_first_known(const std::vector<Failure>& failures, const std::vector<Failure>& running);

/// Who failed first, and who only because of that.
struct Judgement {
  /// In torchrun's order: those that ended by themselves by local rank, then those we stopped.
  std::vector<Failure> failures;
  std::size_t root = 0;  // torchrun's rule: the oldest time in whole seconds, then as it was seen
  /// Ours: of those that died of something of their own, the one whose failure is the oldest by its
  /// diagnostics; the root if all of them blame a peer.
  std::size_t culprit = 0;
  std::vector<bool> consequence;  // of each failure: it would not have happened without the culprit
  const Failure& first() const { return failures[culprit]; }
};

/// `failures` must not be empty; `running` are as those of is_first_known. Who has said why it
/// fails, by an error file or a traceback, before it was stopped, or before now, has failed by
/// itself: an interpreter may take seconds to end, and its victims are quicker. Pure.
Judgement judge(std::vector<Failure> failures, std::vector<Failure> running = {});

/// The last line of stderr of a worker that exited without a traceback, as `sys.exit("no data")`
/// does; else empty. Refers to the failure.
std::string_view last_words(const Failure& failure);

/// What befell a worker, without its name: "ended with exit code 3 (ValueError: boom)", "was killed
/// by SIGKILL: the kernel ran out of memory".
std::string what_happened(const Failure& failure);

/// What ended it, for the restart policy. Pure.
spec::CauseClass class_of(const Failure& failure);

/// What is alike when the same happens again: the exception's type, or the signal, and where in the
/// user's program: "ValueError@train.py:7", "SIGSEGV@model.py:12", "exit 3". Messages are left out,
/// since they name steps, addresses and times. Pure.
std::string fingerprint_of(const Failure& failure);

}  // namespace elastrun::workers
