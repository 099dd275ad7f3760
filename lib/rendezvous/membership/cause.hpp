// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/restart_rules.hpp"

#include <cstdint>
#include <string>

namespace elastrun::rendezvous {

/// Why a group is stopped, a job given up: named alike on every node.
struct Cause {
  enum class Kind {
    WorkerFailed,  // a worker ended badly
    NodeLost,      // an agent's connection broke or fell silent
    NodeLeft,      // an agent said goodbye (preemption, signal)
    NodeJoined,    // a larger world is possible
    Closed,        // the job was closed by request
    Preempted,     // it was asked to save and end, and has
    CoordinatorLost,
    Timeout,  // a bounded wait of the rendezvous ended
  } kind = Kind::WorkerFailed;
  std::string node{};  // id of the node it happened on
  int rank = -1;       // global rank of the culprit, if a worker
  int local_rank = -1;
  int exit_code = 0;        // torchrun's number: negative is a signal; only with WorkerFailed
  std::string text{};       // one sentence for a person
  double wall_seconds = 0;  // when, since the epoch, by that node's clock
  bool final = false;       // no restart would mend it
  // What the restart policy goes by (RestartRule).
  spec::CauseClass what = spec::CauseClass::Error;  // only with WorkerFailed
  /// What is alike when the same happens again: "ValueError@train.py:7", "SIGSEGV"; may be empty.
  std::string fingerprint{};
  std::int64_t step = -1, checkpoint = -1;  // reached, saved; -1: not known
  std::string rule{};                       // that decided what follows; empty: as torchrun
  bool hopeless = false;                    // a requeue would not help either
  bool misuse = false;                      // what was asked for cannot be: exit code 2
  bool operator==(const Cause&) const = default;
};

}  // namespace elastrun::rendezvous
