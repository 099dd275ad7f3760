// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "launcher/worker_spec.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun {

/// A caller's request, in the words of elastrun-protocol(7), "A caller and its agent".
struct CallerRequest {
  agent::WorkerSpec spec{};  // without its handler if that is the caller's own
  bool wants_metrics = false, wants_events = false;
  std::optional<int> asked_at;       // the socket at which the caller's own handler is asked
  std::optional<int> fork_socket;    // to the copy of the caller that forks the workers
  std::string backend, run_id;       // of that handler
  std::vector<std::string> options;  // words of a command line, for what has no field
};

/// Pure. Fails with Usage and names the field; unknown ones are an error, too.
Result<CallerRequest> read_caller_request(const json::value& text);

}  // namespace elastrun
