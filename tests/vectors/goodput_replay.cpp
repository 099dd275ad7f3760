// SPDX-License-Identifier: Apache-2.0
#include "goodput_replay.hpp"

#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/compat/step_times.hpp"
#include "goodput_answers.hpp"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <utility>

namespace elastrun::vectors {
namespace {

using goodput::GoodputCalculator;
using goodput::MeasurementLog;

constexpr double kForever = std::numeric_limits<double>::infinity();

double number_or(const json::value& call, std::string_view name, double otherwise) {
  const auto* value = find_member(call, name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

std::optional<double> maybe_number(const json::value& call, std::string_view name) {
  const double read = number_or(call, name, kForever);
  return read == kForever ? std::nullopt : std::optional(read);
}

std::vector<double> numbers(const json::value* values) {
  std::vector<double> read;
  if (values == nullptr || !values->is_array()) return read;
  for (const auto& value : values->get_array()) read.push_back(value.to_number<double>());
  return read;
}

/// A calculator with its own view of the log. One that was opened over the cache file of another
/// never reads on: an artefact of the original's cache that three scenarios record.
struct Player {
  MeasurementLog log;
  std::size_t read = 0;
  bool reads_on = true;
  GoodputCalculator calculator;

  explicit Player(GoodputCalculator::Kind kind) : calculator(log, kind) {}
};

class Scenario {
 public:
  Scenario(const json::value& scenario, std::string name)
      : scenario_(scenario), name_(std::move(name)), entries_(find_member(scenario, "entries")) {
    kind_ = member_text_or(scenario, "calculator", "base") == "elastic"
                ? GoodputCalculator::Kind::Elastic
                : GoodputCalculator::Kind::Base;
    current_ = fresh();
  }

  Status play(Tally& tally) {
    const auto* calls = find_member(scenario_, "calls");
    if (entries_ == nullptr || !entries_->is_array() || calls == nullptr || !calls->is_array()) {
      return fail(Code::Protocol, fmt::format("'{}' has no entries or no calls", name_));
    }
    for (const auto& call : calls->get_array()) {
      if (const auto status = make(call, tally); !status) return status;
    }
    return {};
  }

 private:
  std::unique_ptr<Player> fresh() const { return std::make_unique<Player>(kind_); }
  Status make(const json::value& call, Tally& tally);
  Result<json::object> answer(const std::string& what, const json::value& call);
  Status read(Player& player, const json::value& call) const;
  void reopen(const json::value& call);
  void judge(const json::value& call, const Result<json::object>& got, Tally& tally) const;

  const json::value& scenario_;
  std::string name_;
  const json::value* entries_;
  GoodputCalculator::Kind kind_ = GoodputCalculator::Kind::Base;
  std::unique_ptr<Player> current_, other_;
};

/// The log as it was at this call.
Status Scenario::read(Player& player, const json::value& call) const {
  const double until = number_or(call, "upto", kForever);
  const auto& entries = entries_->get_array();
  for (; player.reads_on && player.read < entries.size(); ++player.read) {
    const auto& entry = entries[player.read];
    const double log_time = number_or(entry, "log_time", 0);
    if (log_time > until) break;
    const auto* payload = find_member(entry, "payload");
    const auto added = player.log.add(payload == nullptr ? json::value() : *payload, log_time);
    if (!added) {
      return std::unexpected(added.error().context(fmt::format("'{}': an entry", name_)));
    }
  }
  return {};
}

void Scenario::reopen(const json::value& call) {
  auto opened = fresh();
  for (std::size_t i = 0; i < current_->read; ++i) {
    const auto& entry = entries_->get_array()[i];
    std::ignore = opened->log.add(entry.at("payload"), number_or(entry, "log_time", 0));
  }
  opened->read = current_->read;
  opened->reads_on = false;
  const auto* keep = find_member(call, "keep");
  if (keep != nullptr && keep->is_bool() && keep->get_bool()) other_ = std::move(current_);
  current_ = std::move(opened);
}

Result<json::object> Scenario::answer(const std::string& what, const json::value& call) {
  const auto render = [](const auto& got) -> Result<json::object> {
    if (!got) return std::unexpected(got.error());
    return as_json(*got);
  };
  const auto ideal = maybe_number(call, "ideal");
  if (what == "job") {
    const auto got = current_->calculator.job(number_or(call, "now", 0), ideal);
    if (!got) return std::unexpected(got.error());
    return as_json(*got, current_->calculator.deviations());
  }
  if (what == "interval") {
    return render(current_->calculator.window({number_or(call, "a", 0), number_or(call, "b", 0)}));
  }
  if (what == "deviation") {
    const auto& deviations = current_->calculator.step_deviations(kForever, ideal);
    if (deviations.empty()) return fail(Code::Usage, "no step time is known");
    return json::object{{"step_time_deviation", as_json(deviations)}};
  }
  if (what != "exclude") return fail(Code::Protocol, fmt::format("unknown call '{}'", what));
  std::vector<goodput::TimeSpan> spans;
  if (const auto* list = find_member(call, "spans"); list != nullptr && list->is_array()) {
    for (const auto& span : list->get_array()) {
      const auto ends = numbers(&span);
      if (ends.size() == 2) spans.push_back({ends[0], ends[1]});
    }
  }
  return render(current_->calculator.job_without(std::move(spans), number_or(call, "now", 0)));
}

Status Scenario::make(const json::value& call, Tally& tally) {
  const auto what = member_text_or(call, "call", "");
  if (what == "reset") {
    current_ = fresh();
  } else if (what == "reopen") {
    reopen(call);
  } else if (what == "swap") {
    std::swap(current_, other_);
    if (!current_) return fail(Code::Protocol, fmt::format("'{}': nothing to swap", name_));
  } else {
    if (what == "exclude") current_ = fresh();
    if (const auto status = read(*current_, call); !status) return status;
    const auto got = answer(what, call);
    if (!got && got.error().code == Code::Protocol) return std::unexpected(got.error());
    judge(call, got, tally);
  }
  return {};
}

void Scenario::judge(const json::value& call, const Result<json::object>& got, Tally& tally) const {
  std::vector<std::string> lines;
  const auto* wanted = find_member(call, "result");
  if (wanted == nullptr) {
    if (got) lines.emplace_back("an answer where the original refuses");
  } else if (!got) {
    lines.push_back(got.error().text);
  } else {
    lines = differences("", *wanted, *got);
  }
  ++(lines.empty() ? tally.passed : tally.failed);
  for (const auto& line : lines) {
    fmt::print("FAILED {} {}: {}\n", name_, member_text_or(call, "call", ""), line);
  }
}

void check_helper(const std::string& name, const json::value& one, const json::value& got,
                  Tally& tally) {
  const auto* wanted = find_member(one, "value");
  const auto lines = differences(name, wanted == nullptr ? json::value() : *wanted, got);
  ++(lines.empty() ? tally.passed : tally.failed);
  for (const auto& line : lines) fmt::print("FAILED helper {}\n", line);
}

json::value help(const std::string& name, const json::value& one) {
  const auto times = numbers(find_member(one, "step_times"));
  if (name == "ideal_step_time") {
    const auto ideal = goodput::ideal_step_time(times);
    return ideal ? json::value(*ideal) : json::value();
  }
  if (name == "anomaly_extra_time") return goodput::anomalous_steps(times).extra;
  if (name == "percentile") {
    return goodput::percentile(numbers(find_member(one, "values")), number_or(one, "p", 0) / 100);
  }
  std::vector<double> deviations;  // by the formula that the file states
  for (std::int64_t i = 0; i < member_int_or(one, "n", 0); ++i) {
    deviations.push_back(static_cast<double>(37 * i % 101) / 64);
  }
  const bool window = member_text_or(one, "mode", "") == "INTERVAL";
  return goodput::deviation_metric(
      deviations, window ? goodput::DeviationOver::Window : goodput::DeviationOver::Job);
}

}  // namespace

Result<Tally> replay_goodput(const json::value& vectors) {
  Tally tally;
  const auto* scenarios = find_member(vectors, "scenarios");
  if (scenarios == nullptr || !scenarios->is_array()) {
    return fail(Code::Protocol, "an object with an array 'scenarios' was expected");
  }
  for (const auto& scenario : scenarios->get_array()) {
    Scenario one(scenario, member_text_or(scenario, "name", "?"));
    if (const auto status = one.play(tally); !status) return std::unexpected(status.error());
  }
  const auto* helpers = find_member(vectors, "helpers");
  for (const std::string name :
       {"ideal_step_time", "percentile", "deviation_metric", "anomaly_extra_time"}) {
    const auto* list = helpers == nullptr ? nullptr : find_member(*helpers, name);
    if (list == nullptr || !list->is_array()) continue;
    for (const auto& one : list->get_array()) check_helper(name, one, help(name, one), tally);
  }
  return tally;
}

}  // namespace elastrun::vectors
