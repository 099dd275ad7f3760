// SPDX-License-Identifier: Apache-2.0

#include "core/json.hpp"
#include "core/text.hpp"
#include "elastrunctl/command_line.hpp"
#include "goodput_files.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::ctl {
namespace {

using rendezvous::Cause;
using telemetry::Record;

/// Journals of before the policy have no class: a failure is an error, as it was counted.
std::optional<Cause> recorded_cause(const Record& record) {
  const auto name = record.text("class");
  const auto what = spec::find_cause_class(name);
  if (!what && !record.is("failure")) return std::nullopt;
  Cause cause;
  cause.what = what.value_or(spec::CauseClass::Error);
  cause.kind = what == spec::CauseClass::NodeLost    ? Cause::Kind::NodeLost
               : what == spec::CauseClass::Preempted ? Cause::Kind::NodeLeft
                                                     : Cause::Kind::WorkerFailed;
  cause.text = record.text("cause");
  cause.node = record.text("node");
  cause.fingerprint = record.text("fingerprint");
  cause.step = record.whole("step").value_or(-1);
  cause.checkpoint = record.whole("checkpoint").value_or(-1);
  cause.exit_code = static_cast<int>(
      std::clamp<std::int64_t>(record.whole("exit_code").value_or(0), -1000, 1000));
  return cause;
}

/// An id is ADDRESS_PID_SERIAL; the machine is what a policy can leave out.
std::string recorded_machine(const std::string& id) {
  const auto last = id.rfind('_');
  return last == std::string::npos ? id : id.substr(0, id.rfind('_', last - 1));
}

std::string recorded_word(bool restarted) {
  return restarted ? "restart" : "end";
}

std::string would_text(const rendezvous::RestartDecision& decision) {
  if (!decision.restarts) return decision.hopeless ? "end, 93" : "end, 1";
  std::string text = decision.delay > Duration::zero()
                         ? "restart in " + format_duration(decision.delay)
                         : "restart";
  if (decision.excluded) text += ", node out";
  return text;
}

}  // namespace

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
  void take(const telemetry::Record& record) {
    if (record.name == "job.started" || taken_.empty()) {
      // Within bounds, because a journal is a file that others may have written.
      const auto most =
          std::clamp<std::int64_t>(record.whole("max_restarts").value_or(0), 0, 1'000'000);
      taken_.push_back({.run_id = record.text("run_id"),
                        .max_restarts = static_cast<int>(most),
                        .begin = record.stamp.wall,
                        .end = record.stamp.wall,
                        .failures = {},
                        .checkpoints = {}});
    }
    auto& start = taken_.back();
    start.end = std::max(start.end, record.stamp.wall);
    const bool restarted = record.name == "restart";
    if (restarted || (record.name == "job.ended" && !record.is("succeeded"))) {
      if (auto cause = recorded_cause(record)) {
        start.failures.push_back({record.stamp.wall, std::move(*cause), restarted});
      }
    } else if (record.name == "checkpoint") {
      start.checkpoints.emplace_back(record.stamp.wall, record.whole("step").value_or(-1));
    }
  }

  /// Of all that was taken.
  void decide() {
    for (const auto& start : starts()) decide(start, ++starts_);
  }
  /// A line for each failure, and what comes of them; at most 100 columns but for causes.
  std::string text() const {
    std::vector<std::vector<std::string>> rows{{"AFTER", "RECORDED", "WOULD", "CAUSE"}};
    for (const auto& row : rows_) {
      auto after = format_duration(row.at);
      if (starts_ > 1) after += fmt::format(" of start {}", row.start);
      rows.push_back({std::move(after), recorded_word(row.restarted), would_text(row.decision),
                      shown(std::string(cut(row.cause, 60)))});
    }
    std::string text = rows_.empty() ? "" : table(rows);
    if (!rows_.empty() && !rows_.back().decision.rule.empty())
      text += fmt::format("  the last by {}\n", rows_.back().decision.rule);
    return text + total();
  }

  json::object json() const {
    json::array rows;
    for (const auto& row : rows_) {
      rows.emplace_back(json::object{{"start", row.start},
                                     {"after_s", to_seconds(row.at)},
                                     {"cause", row.cause},
                                     {"recorded", recorded_word(row.restarted)},
                                     {"restarts", row.decision.restarts},
                                     {"spent", row.decision.attempt_spent},
                                     {"delay_s", to_seconds(row.decision.delay)},
                                     {"excluded", row.decision.excluded},
                                     {"hopeless", row.decision.hopeless},
                                     {"rule", row.decision.rule}});
    }
    json::object out{{"failures", std::move(rows)},
                     {"not_reached", not_reached_},
                     {"restarts_less", restarts_less_}};
    out["ended_after_s"] = ended_at_ ? json::value(to_seconds(*ended_at_)) : json::value(nullptr);
    return out;
  }

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

  // Each agent has recorded all restarts of its time: of those that ran together, the one that has
  // most of them speaks for all. Checkpoints are in the journal of the agent whose worker saved.
  std::vector<Start> starts() const {
    auto agents = taken_;
    std::ranges::stable_sort(agents, {}, &Start::begin);
    std::vector<Start> starts;
    for (auto& agent : agents) {
      if (starts.empty() || agent.run_id != starts.back().run_id ||
          agent.begin > starts.back().end) {
        starts.push_back(std::move(agent));
        continue;
      }
      auto& start = starts.back();
      start.end = std::max(start.end, agent.end);
      start.max_restarts = std::max(start.max_restarts, agent.max_restarts);
      if (agent.failures.size() > start.failures.size()) start.failures.swap(agent.failures);
      start.checkpoints.insert(start.checkpoints.end(), agent.checkpoints.begin(),
                               agent.checkpoints.end());
    }
    return starts;
  }

  void decide(const Start& start, std::size_t number) {
    rendezvous::RestartRule rule(
        rendezvous::RestartSettings{max_restarts_.value_or(start.max_restarts), policy_, rules_});
    bool ended = false;
    Duration later{};  // than recorded: the delays that would have been
    for (const auto& failure : start.failures) {
      if (ended) {
        ++not_reached_;
        restarts_less_ += failure.restarted;
        continue;
      }
      auto cause = failure.cause;
      for (const auto& [at, step] : start.checkpoints) {
        // The end of a job does not name the last one.
        if (at <= failure.at) cause.checkpoint = std::max(cause.checkpoint, step);
      }
      Row row{number, failure.at - start.begin, cause.text, failure.restarted, {}};
      row.decision = rule.decide(cause, TimePoint(failure.at.time_since_epoch() + later),
                                 recorded_machine(cause.node));
      later += row.decision.delay;
      if (!row.decision.restarts) {
        ended = true;
        less_ += start.end - failure.at;
        restarts_less_ += failure.restarted;
        if (!ended_at_) ended_at_ = row.at, hopeless_ = row.decision.hopeless;
      }
      rows_.push_back(std::move(row));
    }
  }

  std::string total() const {
    if (rows_.empty()) return "no failure is recorded\n";
    if (!ended_at_) {
      return rows_.back().restarted ? "it would not have ended the job\n"
                                    : "it would have gone on; what then is not recorded\n";
    }
    return fmt::format(
        "it would have ended the job after {} with exit code {}: {} less, {} restart{} less\n",
        format_duration(*ended_at_), hopeless_ ? 93 : 1, format_duration(less_), restarts_less_,
        restarts_less_ == 1 ? "" : "s");
  }

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

int run_goodput_what_if(const WhatIfOptions& options) {
  const auto rules = spec::parse_restart_rules(join(options.restart_rules, ","));
  if (!rules) return report_error(rules.error().text, kExitUsage);
  GoodputReader reader;
  RestartReplay replay(
      options.policy == "auto" ? spec::RestartPolicy::Auto : spec::RestartPolicy::Torchrun, *rules,
      options.max_restarts);
  reader.on_record = [&replay](const telemetry::Record& record) { replay.take(record); };
  const auto read = read_into(reader, options.files);
  if (!read) return report_error(read.error().text, kExitFailed);
  replay.decide();
  if (options.json) {
    fmt::print("{}\n", python_json(replay.json()));
  } else {
    fmt::print("{}", replay.text());
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
