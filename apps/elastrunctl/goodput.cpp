// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"
#include "core/user_locale.hpp"
#include "goodput/restart_table.hpp"
#include "goodput/summary.hpp"
#include "goodput_files.hpp"
#include "table.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

using goodput::BadputType;

constexpr std::size_t kShownRestarts = 50;

/// "2 lines skipped, 1 entry twice": what of the input is not in the books.
std::string remarks(const GoodputInput& input, const std::optional<goodput::MeasuredBooks>& books) {
  const std::uint64_t misplaced = input.journal.misplaced() + (books ? books->misplaced : 0);
  const std::pair<std::uint64_t, std::string_view> counts[] = {
      {input.skipped, "lines that are no record"},
      {input.other_jobs + input.journal.other_jobs(), "records of other jobs"},
      {misplaced, "out of place"},
      {books ? books->duplicates : 0, "given twice"},
      {input.lost + input.journal.lost(), "that the recorder lost"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  }
  return text;
}

json::object compatible_json(const goodput::JobGoodput& job) {
  json::object object;
  object["goodput_percent"] = job.percent;
  object["badput_percent"] = badput_json(job.badput_percent);
  object["goodput_s"] = job.productive_seconds;
  object["badput_s"] = badput_json(job.badput_seconds);
  object["total_elapsed_s"] = job.total_seconds;
  object["max_productive_step"] = job.max_productive_step;
  object["disruptions"] = job.disruptions;
  object["ideal_step_s"] = job.ideal_step_time ? json::value(*job.ideal_step_time) : nullptr;
  return object;
}

std::string compatible_text(const goodput::JobGoodput& job) {
  std::string text = fmt::format(
      "ml-goodput-measurement 0.2.3 would say: goodput {:.2f} % of {:.3f} s, {} disruption{}\n",
      job.percent, job.total_seconds, job.disruptions, job.disruptions == 1 ? "" : "s");
  const auto line = [&](std::string_view name, double seconds, double percent) {
    if (seconds > 0)
      text += fmt::format("  {:<40} {:>12.3f} s {:>6.2f} %\n", name, seconds, percent);
  };
  for (std::size_t i = 1; i < goodput::kBadputTypes; ++i) {
    const auto type = static_cast<BadputType>(i);
    line(goodput::badput_name(type), job.badput_seconds[type], job.badput_percent[type]);
  }
  for (const auto& [name, seconds] : job.badput_seconds.custom) {
    line(shown(name), seconds, job.badput_percent.custom.at(name));
  }
  return text;
}

struct Answer {
  std::string job;
  goodput::Ledger::Summary summary;
  std::optional<goodput::MeasuredBooks> measured;
  std::optional<goodput::JobGoodput> compatible;
};

Status add_compatible(Answer& answer, const GoodputInput& input, double until) {
  auto job = goodput::GoodputCalculator(input.measurements).job(until);
  if (!job) return std::unexpected(job.error().context("ml-goodput-measurement's numbers"));
  answer.compatible = std::move(*job);
  return {};
}

double last_time(const goodput::MeasurementLog& log) {
  double last = 0;
  for (const auto& entry : log.entries()) last = std::max(last, entry.time);
  return last;
}

Result<Answer> answer_of(const GoodputInput& input, const GoodputOptions& options) {
  if (input.measured) {
    auto books = goodput::keep_books(input.measurements);
    if (!books) {
      return fail(Code::Usage, "the log has no job_start_time, so nothing is known of the job");
    }
    Answer answer{input.job, books->summary, books, {}};
    if (!options.compatible) return answer;
    if (auto added = add_compatible(answer, input, books->last); !added) {
      return std::unexpected(added.error());
    }
    return answer;
  }
  if (options.compatible && input.measurements.entries().empty()) {
    return fail(
        Code::Usage,
        "--compatible needs a log of ml-goodput-measurement, or a journal of workers with a "
        "recorder; this is none");
  }
  const auto summary = input.journal.summary();
  if (!summary)
    return fail(Code::Usage, "no job starts in what was given: no line with job.started");
  Answer answer{input.journal.run_id(), *summary, {}, {}};
  if (!options.compatible) return answer;
  const auto added = add_compatible(answer, input, last_time(input.measurements));
  if (!added) return std::unexpected(added.error());
  return answer;
}

void print_json(const Answer& answer, const GoodputInput& input) {
  auto object = goodput::summary_json(answer.summary);
  object["restart_waterfall"] = goodput::restarts_json(input.journal.restarts());
  object["job"] = answer.job;
  object["submissions"] = answer.measured ? json::value(nullptr) : input.journal.submissions();
  object["records"] = input.records;
  object["skipped"] = input.skipped;
  object["other_jobs"] = input.other_jobs + input.journal.other_jobs();
  object["misplaced"] =
      input.journal.misplaced() + (answer.measured ? answer.measured->misplaced : 0);
  object["lost"] = input.lost + input.journal.lost();
  object["duplicates"] = answer.measured ? answer.measured->duplicates : 0;
  if (answer.compatible) object["compatible"] = compatible_json(*answer.compatible);
  fmt::print("{}\n", python_json(object));
}

}  // namespace

int run_goodput_report(const GoodputOptions& options) {
  const auto input = read_goodput_files(options.files);
  if (!input) return report_error(input.error().text, kExitFailed);
  const auto answer = answer_of(*input, options);
  if (!answer) return report_error(answer.error().text, kExitFailed);
  if (options.json) {
    print_json(*answer, *input);
    return kExitDone;
  }
  const int submissions = input->journal.submissions();
  fmt::print("job \"{}\"{}, {} record{}", shown(answer->job),
             submissions > 1 ? fmt::format(", submitted {} times", submissions) : "",
             input->records, input->records == 1 ? "" : "s");
  const auto left_out = remarks(*input, answer->measured);
  fmt::print("{}\n", left_out.empty() ? "" : fmt::format(" (left out: {})", left_out));
  fmt::print("{}{}", goodput::summary_text(answer->summary, locale_is_utf8()),
             goodput::restart_table(input->journal.restarts(), kShownRestarts, true));
  if (answer->compatible) fmt::print("\n{}", compatible_text(*answer->compatible));
  return kExitDone;
}

}  // namespace elastrun::ctl
