// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "elastrunctl/command_line.hpp"
#include "elastrunctl/goodput_files.hpp"
#include "goodput/reports/summary.hpp"

#include <cstdio>
#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

using goodput::BadputType;

constexpr std::size_t kShownRestarts = 50, kShownStarts = 8;

json::object compatible_json(const goodput::CalculatedGoodput& job) {
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

std::string compatible_text(const goodput::CalculatedGoodput& job) {
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

void print_account(const goodput::Ledger::Summary& summary, const goodput::JournalBooks& journal) {
  const auto restarts = journal.restarts();
  fmt::print("{}{}{}{}", goodput::summary_text(summary, locale_is_utf8()),
             goodput::hints_text(goodput::hints(summary, restarts)),
             goodput::restart_table(restarts, kShownRestarts, true),
             goodput::start_table(journal.starts(), kShownStarts));
}

int report_job(const std::vector<std::string>& files, const GoodputOptions& options) {
  GoodputReader reader;
  const auto& input = reader.input;
  if (!options.html.empty()) reader.input.journal.keep_history();
  const auto read = read_into(reader, files);
  if (!read) return report_error(read.error().text, kExitFailed);
  const auto answer = answer_of(input, options.compatible);
  if (!answer) return report_error(answer.error().text, kExitFailed);
  if (!options.html.empty()) {
    const auto written = write_goodput_page(options.html, goodput_page(input, *answer));
    return written ? kExitDone : report_error(written.error().text, kExitFailed);
  }
  if (options.json) {
    auto account = account_json(input, *answer);
    if (answer->compatible) account["compatible"] = compatible_json(*answer->compatible);
    fmt::print("{}\n", python_json(account));
    return kExitDone;
  }
  fmt::print("{}\n", job_line(input, *answer));
  print_account(answer->summary, input.journal);
  if (answer->compatible) fmt::print("\n{}", compatible_text(*answer->compatible));
  return kExitDone;
}

}  // namespace

int run_goodput_report(const GoodputOptions& options) {
  const auto jobs = files_by_job(options.files);
  if (!jobs) return report_error(jobs.error().text, kExitFailed);
  if (jobs->size() > 1 && !options.html.empty()) {
    return report_error("--html takes the files of one job; these are of several", kExitUsage);
  }
  for (const auto& files : *jobs) {
    if (&files != &jobs->front() && !options.json) fmt::print("\n");
    if (const int code = report_job(files, options); code != kExitDone) return code;
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
