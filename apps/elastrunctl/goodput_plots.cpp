// SPDX-License-Identifier: Apache-2.0
#include "goodput_plots.hpp"

#include "core/text.hpp"
#include "goodput/reports/summary.hpp"
#include "goodput_html.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>

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

}  // namespace elastrun::ctl
