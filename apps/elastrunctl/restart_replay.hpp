// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "telemetry/record.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::ctl {

/// What another restart policy would have decided at each failure of a recorded job: the rule of
/// the coordinator itself, fed with the recorded causes in their own time. It cannot know what
/// would have happened after a decision that differs; where it ends the job, the rest of that start
/// is left out. The next start has its own rule, as a requeued job has. Pure.
class RestartReplay {
 public:
  RestartReplay(spec::RestartPolicy policy, std::vector<spec::RestartRuleLine> rules,
                std::optional<int> max_restarts)
      : policy_(policy), rules_(std::move(rules)), max_restarts_(max_restarts) {}

  /// The records of a journal, in order; those of another agent or start follow its `job.started`.
  void take(const telemetry::Record& record);
  /// Of all that was taken.
  void decide();
  /// A line for each failure, and what comes of them; at most 100 columns but for causes.
  std::string text() const;
  json::object json() const;

 private:
  struct Failure {
    WallTime at;
    rendezvous::Cause cause;
    bool restarted;  // as recorded
  };
  /// Of a start of the job, as one of its agents or all of them have it.
  struct Start {
    std::string run_id;
    int max_restarts = 0;
    WallTime begin, end;
    std::vector<Failure> failures;
    std::vector<std::pair<WallTime, std::int64_t>> checkpoints;  // with the step
  };
  struct Row {
    std::size_t start;  // from 1
    Duration at{};      // since that start
    std::string cause;
    bool restarted;
    rendezvous::RestartDecision decision;
  };
  std::vector<Start> starts() const;
  void decide(const Start& start, std::size_t number);
  std::string total() const;

  const spec::RestartPolicy policy_;
  const std::vector<spec::RestartRuleLine> rules_;
  const std::optional<int> max_restarts_;
  std::vector<Start> taken_;  // one for each agent
  std::vector<Row> rows_;
  std::size_t starts_ = 0;
  std::optional<Duration> ended_at_;  // the first start that it would have ended
  bool hopeless_ = false;             // and how
  Duration less_{};
  int not_reached_ = 0;    // failures that would not have come
  int restarts_less_ = 0;  // recorded ones, of those and of the failure that ends it
};

}  // namespace elastrun::ctl
