// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/goodput_page.hpp"

#include "core/text.hpp"
#include "core/write_all.hpp"
#include "files/whole_file.hpp"
#include "goodput/reports/summary.hpp"
#include "goodput_html.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

using goodput::Bucket;
using goodput::bucket_name;
using Span = goodput::Timeline::Span;

constexpr double kHeight = 60;
// About the pixels of a narrow window: what is thinner is not seen anyway.
constexpr int kColumns = 500;
constexpr double kMarkEvery = 4;  // per cent of the width, for a label

std::string rectangle(Bucket bucket, double x, double width, double y, double height,
                      const std::string& title) {
  return fmt::format(
      "<rect class=\"b-{}\" x=\"{:.3f}\" y=\"{:.2f}\" width=\"{:.3f}\" height=\"{:.2f}\">"
      "<title>{}</title></rect>\n",
      bucket_name(bucket), x, y, width, height, title);
}

std::string between(Duration from, Duration to) {
  return fmt::format("{} to {}", format_duration(from), format_duration(to));
}

std::string drawn(const Span& span, Duration elapsed) {
  const double x = placed(span.from, elapsed, kPlotWidth);
  const double width = placed(span.length(), elapsed, kPlotWidth);
  double y = 0;
  std::string text;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const Duration time = span.buckets[i];
    if (time <= Duration::zero()) continue;
    const auto bucket = static_cast<Bucket>(i);
    const double height = placed(time, span.length(), kHeight);
    text += rectangle(bucket, x, width, y, height,
                      fmt::format("{}: {}, {}", bucket_name(bucket), format_duration(time),
                                  between(span.from, span.to)));
    y += height;
  }
  return text;
}

/// Numbers above the picture, where there is room for them.
std::string flags(const std::vector<PlotMark>& marks, Duration elapsed) {
  std::string text = "<div class=\"flags\">";
  double last = -kMarkEvery;
  for (const auto& mark : marks) {
    const double left = placed(mark.at, elapsed, 100);
    if (left - last < kMarkEvery) continue;
    last = left;
    text += fmt::format("<a class=\"{}\" href=\"#{}\" style=\"left:{:.2f}%\">{}</a>",
                        mark.submission ? "submission" : "restart", mark.id, left,
                        html_text(mark.label));
  }
  return text + "</div>\n";
}

void append(Span& span, const Span& next) {
  span.to = next.to;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) span.buckets[i] += next.buckets[i];
}

/// What is narrower than a line is drawn together with its neighbours.
std::vector<Span> columns(const std::vector<Span>& spans, Duration elapsed) {
  const Duration least = elapsed / kColumns;
  std::vector<Span> joined;
  for (const auto& span : spans) {
    if (!joined.empty() && joined.back().length() < least && span.length() < least) {
      append(joined.back(), span);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

/// Neighbours of which the same bucket is most.
std::vector<Span> stretches(const std::vector<Span>& spans) {
  std::vector<Span> joined;
  for (const auto& span : spans) {
    if (!joined.empty() && joined.back().most() == span.most()) {
      append(joined.back(), span);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

}  // namespace

std::string plot_marks(const std::vector<PlotMark>& marks, Duration elapsed, double height) {
  std::string text;
  for (const auto& mark : marks) {
    const double x = placed(mark.at, elapsed, kPlotWidth);
    text += fmt::format(
        "<line class=\"{}\" x1=\"{:.3f}\" x2=\"{:.3f}\" y1=\"0\" y2=\"{}\"><title>{} at {}"
        "</title></line>\n",
        mark.submission ? "submission" : "restart", x, x, height, html_text(mark.label),
        format_duration(mark.at));
  }
  return text;
}

std::string plot_axis(Duration elapsed) {
  // Screen readers have the tables, which say the same.
  std::string text = "<div class=\"axis\" aria-hidden=\"true\">";
  for (int quarter = 0; quarter <= 4; ++quarter) {
    text +=
        fmt::format("<span>{}</span>", quarter == 0 ? "0" : format_duration(elapsed / 4 * quarter));
  }
  return text + "</div>\n";
}

std::string bucket_bar(const goodput::Ledger::Summary& summary) {
  std::string text = "<div class=\"bar\" aria-hidden=\"true\">";
  for (const Bucket bucket : goodput::filled_buckets(summary)) {
    text += fmt::format("<i class=\"b-{0}\" style=\"width:{1:.3f}%\" title=\"{0}: {2}\"></i>",
                        bucket_name(bucket), placed(summary.of(bucket), summary.elapsed, 100),
                        goodput::bucket_share(bucket, summary));
  }
  return text + "</div>\n";
}

std::string timeline_plot(const GoodputPage& page, const std::vector<PlotMark>& marks) {
  const Duration elapsed = page.summary.elapsed;
  if (page.history.spans.empty()) return "<p class=\"dim\">No time has passed.</p>\n";
  std::string text =
      flags(marks, elapsed) +
      fmt::format(
          "<svg class=\"time\" role=\"img\" aria-labelledby=\"time-title time-desc\" viewBox=\"0 0 "
          "{0} {1}\" preserveAspectRatio=\"none\"><title id=\"time-title\">Timeline of the job"
          "</title><desc id=\"time-desc\">{2} from left to right, coloured by what the time was "
          "spent on. The tables below have the same.</desc>\n",
          kPlotWidth, kHeight, format_duration(elapsed));
  for (const auto& span : columns(page.history.spans, elapsed)) text += drawn(span, elapsed);
  return text + plot_marks(marks, elapsed, kHeight) + "</svg>\n" + plot_axis(elapsed);
}

std::string timeline_rows(const GoodputPage& page) {
  auto rows = stretches(page.history.spans);
  std::string note;
  if (rows.size() > kPlotRows) {
    auto lengths = rows;
    // Not sorted by length: the rows stay in the order of their times.
    std::ranges::nth_element(lengths, lengths.begin() + kPlotRows, std::greater(), &Span::length);
    std::erase_if(rows, [least = lengths[kPlotRows].length()](const Span& one) {
      return one.length() <= least;
    });
    note = fmt::format("<tr><td colspan=\"4\" class=\"dim\">the {} longest of {}</td></tr>\n",
                       rows.size(), stretches(page.history.spans).size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format(
        "<tr><td class=\"num\">{}<td class=\"num\">{}<td>{}{}</tr>\n", format_duration(row.from),
        format_duration(row.length()), bucket_name(row.most()),
        row.is_pure() ? "" : fmt::format(" ({})", share_text(row.of(row.most()), row.length())));
  }
  return text + note;
}

std::string restart_bar(const goodput::RestartPath& path, Duration longest) {
  std::string text = "<div class=\"bar\" aria-hidden=\"true\">";
  for (std::size_t stage = 0; stage < goodput::kRestartStages; ++stage) {
    const Duration time = path.stages[stage];
    if (time <= Duration::zero()) continue;
    const auto name = goodput::stage_name(static_cast<goodput::RestartStage>(stage));
    text += fmt::format("<i class=\"s-{0}\" style=\"width:{1:.3f}%\" title=\"{0}: {2}\"></i>", name,
                        placed(time, longest, 100), format_duration(time));
  }
  return text + "</div>";
}

namespace {

using goodput::RestartPath;
using Submission = goodput::JournalBooks::Submission;

constexpr std::string_view kFirstLine = "<!doctype html>";

/// "2026-01-02 03:04:05 UTC"
std::string utc(WallTime when) {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(when));
  std::tm parts{};
  std::array<char, 40> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "at an unknown time";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

std::string plural(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string subtitle(const GoodputPage& page) {
  std::string text;
  if (page.started) {
    text = fmt::format("{} to {}, ", utc(*page.started), utc(*page.started + page.summary.elapsed));
  }
  text += plural(page.records, "record");
  if (!page.run_id.empty()) text += ", run id " + html_text(page.run_id);
  if (!page.left_out.empty()) text += fmt::format(" (left out: {})", html_text(page.left_out));
  return text;
}

std::string tile(std::string_view name, const std::string& value) {
  return fmt::format(
      "<div class=\"tile\"><div class=\"value\">{}</div><div class=\"name\">{}</div></div>\n",
      value, name);
}

bool is_empty(const GoodputPage& page) {
  return page.summary.elapsed <= Duration::zero();
}

std::string tiles(const GoodputPage& page) {
  const auto& summary = page.summary;
  std::string text = tile("goodput", is_empty(page) ? "–" : goodput::goodput_text(summary.share()));
  text += tile("elapsed", is_empty(page) ? "0 s" : format_duration(summary.elapsed));
  text += tile(page.submissions > 1 ? "restarts, with submissions" : "restarts",
               fmt::format("{}", summary.restarts));
  if (page.submissions > 1) text += tile("submissions", fmt::format("{}", page.submissions));
  if (summary.last_step) text += tile("last step", fmt::format("{}", *summary.last_step));
  if (summary.last_checkpoint) {
    text += tile("last checkpoint", fmt::format("{}", *summary.last_checkpoint));
  }
  return text;
}

std::string notes(const GoodputPage& page) {
  std::string text;
  if (!page.summary.steps_known()) {
    text +=
        "<p>Rank 0 reported no steps: how much was training is not known; --goodput auto "
        "tells.</p>\n";
  }
  if (!page.summary.loss_known) {
    text += "<p>No checkpoint or later step was reported: what failures cost is not known.</p>\n";
  }
  return text;
}

std::string bucket_rows(const GoodputPage& page) {
  const auto& summary = page.summary;
  std::string text;
  for (const Bucket bucket : goodput::filled_buckets(summary)) {
    text += fmt::format(
        "<tr><td><i class=\"swatch b-{0}\"></i>{0}<td class=\"num\">{1}<td class=\"num "
        "wide\">{2:.3f}"
        "<td class=\"num\">{3}<td class=\"dim wide\">{4}</tr>\n",
        goodput::bucket_name(bucket), format_duration(summary.of(bucket)),
        to_seconds(summary.of(bucket)), goodput::bucket_share(bucket, summary),
        goodput::bucket_meaning(bucket, summary));
  }
  return text;
}

std::string step_or_none(const std::optional<std::int64_t>& step) {
  return step ? fmt::format("{}", *step) : "–";
}

/// The line above a bar: which one, when, why, and how long.
std::string fall_head(const GoodputPage& page, const PlotMark& mark, const std::string& cause,
                      const std::string& total) {
  const auto when = page.started ? ", " + utc(*page.started + mark.at) : std::string();
  return fmt::format(
      "<div class=\"fall\" id=\"{0}\"><div><a href=\"#{0}\">{1}</a> <span "
      "class=\"cause\">{2}</span> <span class=\"dim\">after {3}{4}</span><b "
      "class=\"push\">{5}</b></div>",
      mark.id, html_text(mark.label), cause, format_duration(mark.at), when, total);
}

std::string restart_row(const GoodputPage& page, const PlotMark& mark, const RestartPath& path,
                        Duration longest) {
  std::string stages;
  for (std::size_t i = 0; i < goodput::kRestartStages; ++i) {
    if (path.stages[i] <= Duration::zero()) continue;
    const auto name = goodput::stage_name(static_cast<goodput::RestartStage>(i));
    stages += fmt::format("<span><i class=\"swatch s-{}\"></i>{} {}</span>", name, name,
                          format_duration(path.stages[i]));
  }
  const auto steps = fmt::format("<span>steps {} → {}{}</span>", step_or_none(path.last_step),
                                 step_or_none(path.first_step),
                                 path.caught_up || !path.first_step ? "" : ", did not catch up");
  return fall_head(page, mark, path.cause.empty() ? "not told" : html_text(path.cause),
                   format_duration(path.total())) +
         restart_bar(path, longest) +
         fmt::format("<div class=\"legend\">{}{}</div></div>\n", stages, steps);
}

std::string submission_row(const GoodputPage& page, const PlotMark& mark,
                           const Submission& before) {
  const auto why = !before.succeeded   ? "the one before left no last word"
                   : *before.succeeded ? "the one before had succeeded"
                                       : "the one before had failed";
  const auto apart = before.end ? format_duration(mark.at - *before.end) : std::string();
  return fall_head(page, mark,
                   fmt::format("submitted again: {}{}", why,
                               apart.empty() ? "" : fmt::format(", {} earlier", apart)),
                   apart) +
         "</div>\n";
}

/// In the order of their times; each with its row.
std::vector<std::pair<PlotMark, std::string>> disruptions(const GoodputPage& page) {
  std::vector<std::pair<PlotMark, std::string>> all;
  Duration longest{};
  for (const auto& path : page.restarts) longest = std::max(longest, path.total());
  for (std::size_t i = 0; i < page.restarts.size(); ++i) {
    const auto number = i + 1 + page.restarts_forgotten;
    const PlotMark mark{page.restarts[i].at, false, fmt::format("r{}", number),
                        fmt::format("{}", number)};
    all.emplace_back(mark, restart_row(page, mark, page.restarts[i], longest));
  }
  for (std::size_t i = 1; i < page.submitted.size(); ++i) {
    const PlotMark mark{page.submitted[i].at, true, fmt::format("s{}", i + 1),
                        fmt::format("S{}", i + 1)};
    all.emplace_back(mark, submission_row(page, mark, page.submitted[i - 1]));
  }
  std::ranges::stable_sort(all, {}, [](const auto& one) { return one.first.at; });
  return all;
}

std::string hint_items(const GoodputPage& page) {
  std::string text;
  for (const auto& hint : page.hints) text += fmt::format("<li>{}</li>\n", html_text(hint.text));
  return text;
}

std::string start_rows(const GoodputPage& page) {
  std::string text;
  for (const auto& start : page.starts) {
    text += fmt::format(
        "<tr><td class=\"num\">{}<td class=\"num wide\">{}<td class=\"num wide\">{}"
        "<td class=\"num\">{}<td class=\"num\">{}<td class=\"cause\">{}</tr>\n",
        start.number, format_duration(start.at), format_duration(start.ran),
        start.first_step ? fmt::format("{} to {}", *start.first_step, *start.last_step) : "–",
        start.first_step ? share_text(start.productive, start.ran) : "–",
        start.ended.empty() ? "it runs" : html_text(start.ended));
  }
  return text;
}

}  // namespace

GoodputPage goodput_page_of(const GoodputInput& input, const GoodputAnswer& answer) {
  GoodputPage page;
  page.job = answer.name;
  if (answer.job != answer.name) page.run_id = answer.job;
  page.left_out = left_out(input, answer);
  page.records = input.records;
  page.summary = answer.summary;
  if (answer.measured) {
    page.history = answer.measured->history;
    page.started = WallTime() + from_seconds(answer.measured->first);
    // Such a log is not a journal: of restarts and submissions it says nothing.
    return page;
  }
  page.started = input.journal.first_wall();
  page.history = input.journal.history();
  page.restarts = input.journal.restarts();
  page.starts = input.journal.starts();
  page.hints = goodput::hints(answer.summary, page.restarts);
  page.restarts_forgotten = input.journal.restarts_forgotten();
  page.submitted = input.journal.submitted();
  page.submissions = input.journal.submissions();
  return page;
}

std::string goodput_page(const GoodputPage& page) {
  std::vector<PlotMark> marks;
  std::string rows;
  for (const auto& [mark, row] : disruptions(page)) {
    marks.push_back(mark);
    rows += row;
  }
  const bool steps = !page.history.steps.empty();
  const auto hidden = [](bool shown) { return std::string(shown ? "" : "hidden"); };
  return filled(goodput_page_html(),
                {{"job", page.job.empty() ? "a job without a name" : html_text(page.job)},
                 {"subtitle", subtitle(page)},
                 {"tiles", tiles(page)},
                 {"notes", notes(page)},
                 {"empty-hidden", hidden(!is_empty(page))},
                 {"bucket-bar", bucket_bar(page.summary)},
                 {"bucket-rows", bucket_rows(page)},
                 {"timeline", timeline_plot(page, marks)},
                 {"timeline-rows", timeline_rows(page)},
                 {"steps-hidden", hidden(steps)},
                 {"steps", steps ? step_plot(page, marks) : ""},
                 {"step-rows", step_rows(page)},
                 {"hints-hidden", hidden(!page.hints.empty())},
                 {"hints", hint_items(page)},
                 {"starts-hidden", hidden(page.starts.size() > 1)},
                 {"starts", start_rows(page)},
                 {"disruptions-hidden", hidden(!rows.empty())},
                 {"disruptions", rows}});
}

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

}  // namespace elastrun::ctl
