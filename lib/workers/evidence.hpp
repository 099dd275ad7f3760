// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workers/failure.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::workers {

/// The exception that Python reported last in these lines of stderr, also when torch put a rank in
/// front of each ("[rank0]: "). Nothing if no traceback ends in them.
std::optional<PythonException> exception_in(const std::vector<std::string>& lines);

/// The same from the error file if there is one that can be understood, else from the last lines.
std::optional<PythonException> exception_of(const Failure& failure);

/// Whether an error says that another process of the job went away (a closed connection, a failed
/// collective): the one who says so is seldom the one to blame.
bool blames_a_peer(std::string_view text);

/// Whether NCCL's watchdog took the process down because a collective operation timed out: by
/// SIGABRT, like a crash, but the reason lies with a rank that did not take part.
bool ended_by_watchdog(const Failure& failure);

/// Who failed first, and who only because of that.
struct Judgement {
  /// In torchrun's order: those that ended by themselves by local rank, then those we stopped.
  std::vector<Failure> failures;
  std::size_t root = 0;  // torchrun's rule: the oldest time in whole seconds, then as it was seen
  std::size_t culprit =
      0;  // ours: the root, unless it blames a peer and another one died by itself
  std::vector<bool> consequence;  // of each failure: it would not have happened without the culprit
  const Failure& first() const { return failures[culprit]; }
};

/// `failures` must not be empty. Pure.
Judgement judge(std::vector<Failure> failures);

/// What befell a worker, without its name: "ended with exit code 3 (ValueError: boom)", "was killed
/// by SIGKILL: the kernel ran out of memory".
std::string what_happened(const Failure& failure);

}  // namespace elastrun::workers
