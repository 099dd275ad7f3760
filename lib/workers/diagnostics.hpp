// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/agreed_rules.hpp"
#include "workers/worker.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::workers {

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
