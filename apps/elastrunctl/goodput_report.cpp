// SPDX-License-Identifier: Apache-2.0

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "elastrunctl/command_line.hpp"
#include "elastrunctl/goodput_files.hpp"
#include "files/whole_file.hpp"
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

using goodput::BadputType;
using goodput::Bucket;
using goodput::RestartPath;
using Submission = goodput::JournalBooks::Submission;

constexpr std::string_view kFirstLine = "<!doctype html>", kData = "<!--data-->";
constexpr std::size_t kShownRestarts = 50, kShownStarts = 8;

/// Whole microseconds, as the page has all times.
std::int64_t us(Duration time) {
  return time / std::chrono::microseconds(1);
}

/// "2026-01-02 03:04:05 UTC"
std::string utc(WallTime when) {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(when));
  std::tm parts{};
  std::array<char, 40> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "at an unknown time";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

/// "2 lines that are not records, 1 given twice": what of the input is not in the books; may be
/// empty.
std::string left_out(const GoodputInput& input, const GoodputAnswer& answer) {
  const std::pair<std::uint64_t, std::string_view> counts[] = {
      {input.skipped, "lines that are not records"},
      {answer.other_jobs, "records of other jobs"},
      {answer.misplaced, "out of place"},
      {answer.duplicates, "given twice"},
      {answer.lost, "that the recorder lost"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  }
  return text;
}

std::string subtitle(const GoodputInput& input, const GoodputAnswer& answer) {
  auto text = fmt::format("{} to {}, {} record{}", utc(answer.first),
                          utc(answer.at(answer.summary.elapsed)), input.records,
                          input.records == 1 ? "" : "s");
  if (answer.job != answer.name) text += ", run id " + printable(answer.job);
  const auto missing = left_out(input, answer);
  return missing.empty() ? text : fmt::format("{} (left out: {})", text, missing);
}

json::array tiles(const GoodputAnswer& answer, int submissions) {
  const auto& summary = answer.summary;
  const bool empty = summary.elapsed <= Duration::zero();
  json::array all;
  const auto add = [&all](std::string_view name, std::string value) {
    all.push_back(json::array{name, std::move(value)});
  };
  add("goodput", empty ? "–" : goodput::goodput_text(summary.share()));
  add("elapsed", empty ? "0 s" : format_duration(summary.elapsed));
  add(submissions > 1 ? "restarts, with submissions" : "restarts",
      std::to_string(summary.restarts));
  if (submissions > 1) add("submissions", std::to_string(submissions));
  if (summary.last_step) add("last step", std::to_string(*summary.last_step));
  if (summary.last_checkpoint) add("last checkpoint", std::to_string(*summary.last_checkpoint));
  return all;
}

json::array notes(const goodput::Ledger::Summary& summary) {
  json::array all;
  if (!summary.steps_known()) all.emplace_back(goodput::kStepsUnknown);
  if (!summary.loss_known) all.emplace_back(goodput::kLossUnknown);
  return all;
}

json::array buckets(const goodput::Ledger::Summary& summary) {
  json::array all;
  for (const Bucket bucket : goodput::filled_buckets(summary)) {
    all.push_back(json::array{goodput::bucket_name(bucket), us(summary.of(bucket)),
                              goodput::bucket_share(bucket, summary),
                              goodput::bucket_meaning(bucket, summary)});
  }
  return all;
}

json::array spans(const goodput::History& history) {
  json::array all;
  for (const auto& span : history.spans) {
    json::object of;
    for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
      if (const auto time = us(span.buckets[i]); time > 0) {
        of[goodput::bucket_name(static_cast<Bucket>(i))] = time;
      }
    }
    if (!of.empty()) all.push_back(json::array{us(span.from), us(span.to), std::move(of)});
  }
  return all;
}

json::array steps(const goodput::History& history) {
  json::array all;
  for (const auto& one : history.steps) {
    all.push_back(json::array{us(one.at), one.first, one.last, us(one.min), us(one.max),
                              us(one.mean()), one.count});
  }
  return all;
}

std::string step_or_none(const std::optional<std::int64_t>& step) {
  return step ? std::to_string(*step) : "–";
}

json::object fall(const char* kind, std::size_t number, Duration at, std::string cause,
                  Duration total) {
  const bool restart = kind[0] == 'r';
  return {{"kind", kind},
          {"id", fmt::format("{}{}", kind[0], number)},
          {"label", fmt::format("{}{}", restart ? "" : "S", number)},
          {"at", us(at)},
          {"cause", std::move(cause)},
          {"total", restart || total > Duration::zero() ? format_duration(total) : ""}};
}

json::object restart(const RestartPath& path, std::size_t number) {
  auto one = fall("restart", number, path.at,
                  path.cause.empty() ? "not told" : printable(path.cause), path.total());
  json::array stages;
  for (std::size_t i = 0; i < goodput::kRestartStages; ++i) {
    if (path.stages[i] <= Duration::zero()) continue;
    const auto name = goodput::stage_name(static_cast<goodput::RestartStage>(i));
    stages.push_back(json::array{name, us(path.stages[i])});
  }
  one["stages"] = std::move(stages);
  one["steps"] =
      fmt::format("steps {} → {}{}", step_or_none(path.last_step), step_or_none(path.first_step),
                  path.caught_up || !path.first_step ? "" : ", did not catch up");
  return one;
}

json::object submission(const Submission& one, const Submission& before, std::size_t number) {
  const auto* const why = !before.succeeded   ? "the one before left no last word"
                          : *before.succeeded ? "the one before had succeeded"
                                              : "the one before had failed";
  const auto apart = before.end ? one.at - *before.end : Duration();
  const auto earlier =
      before.end ? fmt::format(", {} earlier", format_duration(apart)) : std::string();
  return fall("submission", number, one.at, fmt::format("submitted again: {}{}", why, earlier),
              apart);
}

/// In the order of their times.
json::array falls(const GoodputInput& input, const std::vector<RestartPath>& restarts) {
  std::vector<json::object> all;
  for (std::size_t i = 0; i < restarts.size(); ++i) {
    all.push_back(restart(restarts[i], i + 1 + input.journal.restarts_forgotten()));
  }
  const auto& submitted = input.journal.submitted();
  for (std::size_t i = 1; i < submitted.size(); ++i) {
    all.push_back(submission(submitted[i], submitted[i - 1], i + 1));
  }
  const auto at = [](const json::object& one) { return one.at("at").as_int64(); };
  std::ranges::stable_sort(all, {}, at);
  json::array sorted;
  for (auto& one : all) {
    one["when"] = ", " + utc(input.journal.first_wall() + std::chrono::microseconds(at(one)));
    sorted.push_back(std::move(one));
  }
  return sorted;
}

json::array starts(const GoodputInput& input) {
  json::array all;
  const auto starts = input.journal.starts();
  for (const auto& start : starts) {
    const bool any = start.first_step.has_value();
    all.push_back(json::array{
        std::to_string(start.number), format_duration(start.at), format_duration(start.ran),
        any ? fmt::format("{} to {}", *start.first_step, *start.last_step) : "–",
        any ? goodput::share_text(goodput::to_share(start.productive, start.ran)) : "–",
        start.ended.empty() ? "it runs" : printable(start.ended)});
  }
  return starts.size() > 1 ? all : json::array();
}

/// Makes one HTML file that shows the account with a timeline and the times of the steps, and asks
/// for nothing else: its script draws what stands in it as JSON. `input` was read with its history.
std::string goodput_page(const GoodputInput& input, const GoodputAnswer& answer) {
  const auto restarts = input.journal.restarts();
  Duration longest{};
  for (const auto& path : restarts) longest = std::max(longest, path.total());
  json::array hints;
  if (!input.measured) {
    for (const auto& hint : goodput::hints(answer.summary, restarts)) {
      hints.emplace_back(printable(hint.text));
    }
  }
  const json::object data = {
      {"job", answer.name.empty() ? "a job without a name" : printable(answer.name)},
      {"subtitle", subtitle(input, answer)},
      {"elapsed", us(answer.summary.elapsed)},
      {"tiles", tiles(answer, input.journal.submissions())},
      {"notes", notes(answer.summary)},
      {"buckets", buckets(answer.summary)},
      {"hints", std::move(hints)},
      {"spans", spans(answer.history)},
      {"steps", steps(answer.history)},
      {"falls", falls(input, restarts)},
      {"longest_restart", us(longest)},
      {"starts", starts(input)}};
  std::string text = json::serialize(data);
  // Nothing in a name ends the element that holds it, or begins another one.
  for (auto place = text.find('<'); place != std::string::npos; place = text.find('<', place)) {
    text.replace(place, 1, "\\u003c");
  }
  std::string page(goodput_page_html());
  return page.replace(page.find(kData), kData.size(), text);
}

/// Writes it there, "-" being standard output. A file that is there is replaced only if it is a
/// page, too: what was meant may be the journal. Fails with Usage then, else with Io.
Status write_goodput_page(const std::string& path, const std::string& text) {
  if (path == "-") {
    const int failed = write_all(STDOUT_FILENO, text);
    if (failed == 0) return {};
    return std::unexpected(errno_error(Code::Io, "cannot write to stdout", failed));
  }
  std::string line;
  // A pattern or a slip ("--html journal.jsonl") must not cost a file that cannot be made again.
  if (!files::is_written_to(path)) std::getline(std::ifstream(path), line);
  if (!line.empty() && line != kFirstLine) {
    return fail(Code::Usage, fmt::format("{} exists and is not an HTML page: --html takes the "
                                         "name of the file to write, or - for standard output",
                                         path));
  }
  return files::put_file(path, text, 0666);
}

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

/// ", from 3 agents by their wall clocks".
std::string agents_text(const GoodputInput& input) {
  std::string text;
  if (input.agents > 1) {
    text += fmt::format(", from {} agents by their wall clocks", input.agents);
  }
  const auto steps = input.clocks.count();
  if (steps > 0) text += fmt::format(", clock set {} time{}", steps, steps == 1 ? "" : "s");
  return text;
}

/// "job "night", submitted 2 times, 31412 records (left out: 1 given twice)", for people.
std::string job_line(const GoodputInput& input, const GoodputAnswer& answer) {
  const int submissions = input.journal.submissions();
  const auto missing = left_out(input, answer);
  return fmt::format("job \"{}\"{}, {} record{}{}{}", shown(answer.name),
                     submissions > 1 ? fmt::format(", submitted {} times", submissions) : "",
                     input.records, input.records == 1 ? "" : "s", agents_text(input),
                     missing.empty() ? "" : fmt::format(" (left out: {})", missing));
}

/// Writes what `report --json` does, without what --compatible adds.
json::object account_json(const GoodputInput& input, const GoodputAnswer& answer) {
  auto object = goodput::summary_json(answer.summary);
  const auto restarts = input.journal.restarts();
  object["hints"] = goodput::hints_json(goodput::hints(answer.summary, restarts));
  object["restart_waterfall"] = goodput::restarts_json(restarts);
  object["goodput_attempts"] = goodput::starts_json(input.journal.starts());
  object["job"] = answer.job;
  object["name"] = answer.name;
  object["submissions"] = input.measured ? json::value(nullptr) : input.journal.submissions();
  object["records"] = input.records;
  object["agents"] =
      json::object{{"journals", input.agents}, {"clock_steps", input.clocks.count()}};
  object["skipped"] = input.skipped;
  object["other_jobs"] = answer.other_jobs;
  object["misplaced"] = answer.misplaced;
  object["lost"] = answer.lost;
  object["duplicates"] = answer.duplicates;
  return object;
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
