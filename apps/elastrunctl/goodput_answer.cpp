// SPDX-License-Identifier: Apache-2.0
#include "goodput_answer.hpp"

#include "core/text.hpp"
#include "elastrunctl/subcommands.hpp"
#include "goodput/reports/hints.hpp"
#include "goodput/reports/restart_table.hpp"
#include "goodput/reports/start_table.hpp"
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace elastrun::ctl {
namespace {

Status add_compatible(GoodputAnswer& answer, const GoodputInput& input, double until) {
  // All of the log, whenever it got what.
  constexpr double kEver = std::numeric_limits<double>::infinity();
  auto job = goodput::GoodputCalculator(input.measurements).job(until, {}, kEver);
  if (!job) return std::unexpected(job.error().context("ml-goodput-measurement's numbers"));
  answer.compatible = std::move(*job);
  return {};
}

double last_time(const goodput::MeasurementLog& log) {
  double last = 0;
  for (const auto& entry : log.entries()) last = std::max(last, entry.time);
  return last;
}

/// Of how many agents the journals are, and how often their clocks were set.
json::value agents_json(const GoodputInput& input) {
  const auto& agents = input.agents;
  json::object object;
  object["journals"] = agents.journals;
  object["clock_steps"] = agents.clock_steps + input.clocks.count();
  return object;
}

/// ", from 3 agents by their wall clocks".
std::string agents_text(const GoodputInput& input) {
  const auto& agents = input.agents;
  std::string text;
  if (agents.journals > 1) {
    text += fmt::format(", from {} agents by their wall clocks", agents.journals);
  }
  const auto steps = agents.clock_steps + input.clocks.count();
  if (steps > 0) text += fmt::format(", clock set {} time{}", steps, steps == 1 ? "" : "s");
  return text;
}

Result<GoodputAnswer> answer_of_log(const GoodputInput& input) {
  auto books = goodput::keep_books(input.measurements);
  if (!books) {
    return fail(Code::Usage, "the log has no job_start_time, so nothing is known of the job");
  }
  const auto summary = books->summary;
  return GoodputAnswer{input.job, input.job, summary, std::move(books), {}};
}

Result<GoodputAnswer> answer_of_journal(const GoodputInput& input) {
  const auto summary = input.journal.summary();
  if (!summary) {
    return fail(Code::Usage, "no job starts in what was given: no line with job.started");
  }
  return GoodputAnswer{input.journal.run_id(), input.name, *summary, {}, {}};
}

}  // namespace

Result<GoodputAnswer> answer_of(const GoodputInput& input, bool compatible) {
  if (compatible && !input.measured && input.measurements.entries().empty()) {
    return fail(
        Code::Usage,
        "--compatible needs a log of ml-goodput-measurement, or a journal of workers with a "
        "recorder; this is none");
  }
  auto answer = input.measured ? answer_of_log(input) : answer_of_journal(input);
  if (!answer || !compatible) return answer;
  const double until = answer->measured ? answer->measured->last : last_time(input.measurements);
  if (const auto added = add_compatible(*answer, input, until); !added) {
    return std::unexpected(added.error());
  }
  return answer;
}

json::object account_json(const GoodputInput& input, const GoodputAnswer& answer) {
  auto object = goodput::summary_json(answer.summary);
  const auto& books = answer.measured;
  const auto restarts = input.journal.restarts();
  object["hints"] = goodput::hints_json(goodput::hints(answer.summary, restarts));
  object["restart_waterfall"] = goodput::restarts_json(restarts);
  object["goodput_attempts"] = goodput::starts_json(input.journal.starts());
  object["job"] = answer.job;
  object["name"] = answer.name;
  object["submissions"] = books ? json::value(nullptr) : input.journal.submissions();
  object["records"] = input.records;
  object["agents"] = agents_json(input);
  object["skipped"] = input.skipped;
  object["other_jobs"] = input.other_jobs + input.journal.other_jobs();
  object["misplaced"] = input.journal.misplaced() + (books ? books->misplaced : 0);
  object["lost"] = input.lost + input.journal.lost();
  object["duplicates"] = books ? books->duplicates : 0;
  return object;
}

std::string job_line(const GoodputInput& input, const GoodputAnswer& answer) {
  const int submissions = input.journal.submissions();
  const auto missing = left_out(input, answer);
  return fmt::format("job \"{}\"{}, {} record{}{}{}", shown(answer.name),
                     submissions > 1 ? fmt::format(", submitted {} times", submissions) : "",
                     input.records, input.records == 1 ? "" : "s", agents_text(input),
                     missing.empty() ? "" : fmt::format(" (left out: {})", missing));
}

std::string left_out(const GoodputInput& input, const GoodputAnswer& answer) {
  const auto& books = answer.measured;
  const std::pair<std::uint64_t, std::string_view> counts[] = {
      {input.skipped, "lines that are not records"},
      {input.other_jobs + input.journal.other_jobs(), "records of other jobs"},
      {input.journal.misplaced() + (books ? books->misplaced : 0), "out of place"},
      {books ? books->duplicates : 0, "given twice"},
      {input.lost + input.journal.lost(), "that the recorder lost"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  }
  return text;
}

}  // namespace elastrun::ctl
