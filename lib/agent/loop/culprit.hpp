// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/fact.hpp"
#include "workers/diagnostics.hpp"

#include <optional>
#include <string>

namespace elastrun::agent {

/// The one to blame for the end of a job. Text, report and exit code read this and nothing else, so
/// that they cannot name different ones.
struct Culprit {
  rendezvous::Cause cause;  // also when not a worker's fault: a lost node, a timeout
  /// The job named it, alike on every node. Else this node did, by what it knows at the end.
  bool agreed = false;
  /// It is the first of this node's judgement, so that its process and its output are known.
  bool ours = false;
  bool is_worker() const { return cause.kind == rendezvous::Cause::Kind::WorkerFailed; }
};

/// What the other nodes are told about a failure on node `node`, an id.
rendezvous::Cause cause_of(const workers::Failure& failure, const std::string& node);

/// Chosen once, at the end. None after a success, a signal, or where the cause is unknown: workers
/// that were stopped do not count. `judgement`: of this node's failures in the last round; `round`:
/// the last one. Pure.
std::optional<Culprit> choose_culprit(const Ending& ending,
                                      const std::optional<workers::Judgement>& judgement,
                                      const std::optional<rendezvous::Round>& round);

}  // namespace elastrun::agent
