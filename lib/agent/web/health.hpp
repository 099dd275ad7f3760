// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What tells whether an agent lives, at one moment.
struct Vitals {
  Duration since_beat{};              // of the loop
  std::optional<Duration> overdue{};  // how long a timer of a worker has been over without effect
  std::string phase;
};

/// Past this the answer is that the agent hangs: torch's limit for its health check.
constexpr Duration kHealthLimit = std::chrono::seconds(60);

/// An empty list: it is well; else sentences. Pure. A job that fails, restarts, or ends does not
/// make its agent ill, which knows what it does: a supervisor that ended it then would do harm.
std::vector<std::string> ailments(const Vitals& vitals);
/// For people and programs: "status" is "ok" or "failing", "why" what ails it.
json::object health_json(const Vitals& vitals);

/// The heartbeat of a loop, which goes on as long as the loop turns. Not by an AwakeClock, which
/// leaves out just what is looked for here; CLOCK_MONOTONIC does not count a suspended machine.
class LoopBeat {
 public:
  explicit LoopBeat(Clock& clock);
  Duration since() const { return clock_.now() - last_; }

 private:
  void beat();
  Clock& clock_;
  TimePoint last_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace elastrun::agent
