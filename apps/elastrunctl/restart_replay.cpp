// SPDX-License-Identifier: Apache-2.0
#include "restart_replay.hpp"

#include "core/text.hpp"
#include "core/utf8.hpp"
#include "text_table.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

using rendezvous::Cause;
using telemetry::Record;

std::string recorded_text(const Record& record, std::string_view name) {
  const auto* text = std::get_if<std::string>(record.find(name));
  return text != nullptr ? *text : std::string();
}

std::int64_t recorded_number(const Record& record, std::string_view name, std::int64_t otherwise) {
  const auto* number = std::get_if<std::int64_t>(record.find(name));
  return number != nullptr ? *number : otherwise;
}

bool recorded_flag(const Record& record, std::string_view name) {
  const auto* flag = std::get_if<bool>(record.find(name));
  return flag != nullptr && *flag;
}

/// Journals of before the policy have no class: a failure is an error, as it was counted.
std::optional<Cause> recorded_cause(const Record& record) {
  const auto name = recorded_text(record, "class");
  const auto what = spec::find_cause_class(name);
  if (!what && !recorded_flag(record, "failure")) return std::nullopt;
  Cause cause;
  cause.what = what.value_or(spec::CauseClass::Error);
  cause.kind = what == spec::CauseClass::NodeLost    ? Cause::Kind::NodeLost
               : what == spec::CauseClass::Preempted ? Cause::Kind::NodeLeft
                                                     : Cause::Kind::WorkerFailed;
  cause.text = recorded_text(record, "cause");
  cause.node = recorded_text(record, "node");
  cause.fingerprint = recorded_text(record, "fingerprint");
  cause.step = recorded_number(record, "step", -1);
  cause.checkpoint = recorded_number(record, "checkpoint", -1);
  cause.exit_code = static_cast<int>(
      std::clamp<std::int64_t>(recorded_number(record, "exit_code", 0), -1000, 1000));
  return cause;
}

/// An id is ADDRESS_PID_SERIAL; the machine is what a policy can leave out.
std::string recorded_machine(const std::string& id) {
  const auto last = id.rfind('_');
  return last == std::string::npos ? id : id.substr(0, id.rfind('_', last - 1));
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

void RestartReplay::take(const Record& record) {
  if (!start_) start_ = record.stamp.wall;
  last_ = std::max(last_, record.stamp.wall);
  if (record.name == "job.started") {
    recorded_max_ = static_cast<int>(
        std::clamp<std::int64_t>(recorded_number(record, "max_restarts", 0), 0, 1'000'000));
  } else if (record.name == "restart") {
    decide(record, true);
  } else if (record.name == "job.ended" && !recorded_flag(record, "succeeded")) {
    decide(record, false);
  }
}

void RestartReplay::decide(const Record& record, bool restarted) {
  const auto cause = recorded_cause(record);
  if (!cause) return;
  if (ended_at_) return void(++after_end_);
  if (!rule_)
    rule_.emplace(
        rendezvous::RestartSettings{max_restarts_.value_or(recorded_max_), policy_, rules_});
  Row row{record.stamp.wall - *start_, cause->text, restarted ? "restart" : "end", {}};
  row.decision = rule_->decide(*cause, TimePoint(record.stamp.wall.time_since_epoch()),
                               recorded_machine(cause->node));
  if (!row.decision.restarts) ended_at_ = row.at;
  rows_.push_back(std::move(row));
}

std::string RestartReplay::total() const {
  if (rows_.empty()) return "no failure is recorded\n";
  if (!ended_at_) {
    return rows_.back().recorded == "end" ? "it would have gone on; what then is not recorded\n"
                                          : "it would not have ended the job\n";
  }
  const auto code = rows_.back().decision.hopeless ? 93 : 1;
  return fmt::format(
      "it would have ended the job after {} with exit code {}: {} less, {} restart{} "
      "less\n",
      format_duration(*ended_at_), code, format_duration((last_ - *start_) - *ended_at_),
      after_end_, after_end_ == 1 ? "" : "s");
}

std::string RestartReplay::text() const {
  std::vector<std::vector<std::string>> rows{{"AFTER", "RECORDED", "WOULD", "CAUSE"}};
  for (const auto& row : rows_) {
    rows.push_back({format_duration(row.at), row.recorded, would_text(row.decision),
                    shown(std::string(cut(row.cause, 60)))});
  }
  std::string text = rows_.empty() ? "" : table(rows);
  if (!rows_.empty() && !rows_.back().decision.rule.empty())
    text += fmt::format("  the last by {}\n", rows_.back().decision.rule);
  return text + total();
}

json::object RestartReplay::json() const {
  json::array rows;
  for (const auto& row : rows_) {
    rows.emplace_back(json::object{{"after_s", to_seconds(row.at)},
                                   {"cause", row.cause},
                                   {"recorded", row.recorded},
                                   {"restarts", row.decision.restarts},
                                   {"spent", row.decision.attempt_spent},
                                   {"delay_s", to_seconds(row.decision.delay)},
                                   {"excluded", row.decision.excluded},
                                   {"hopeless", row.decision.hopeless},
                                   {"rule", row.decision.rule}});
  }
  json::object out{{"failures", std::move(rows)}, {"not_reached", after_end_}};
  out["ended_after_s"] = ended_at_ ? json::value(to_seconds(*ended_at_)) : json::value(nullptr);
  return out;
}

}  // namespace elastrun::ctl
