// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput/exponential.hpp"
#include "goodput_html.hpp"
#include "goodput_plots.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

using Point = goodput::StepSeries::Point;

constexpr double kStepHeight = 160;
/// Beyond it a linear scale would show the usual steps as one flat line.
constexpr double kLogFrom = 8;

struct StepScale {
  double low = 0, high = 1;  // seconds
  bool logarithmic = false;

  double y(Duration time) const {
    double share = (to_seconds(time) - low) / (high - low);
    if (logarithmic)
      share = goodput::natural_log(to_seconds(time) / low) / goodput::natural_log(high / low);
    return (1 - std::clamp(share, 0.0, 1.0)) * kStepHeight;
  }
};

StepScale scale_of(const std::vector<Point>& points) {
  std::vector<double> means;
  Duration least = points.front().min, most{};
  for (const auto& point : points) {
    means.push_back(to_seconds(point.mean()));
    least = std::min(least, point.min);
    most = std::max(most, point.max);
  }
  std::ranges::nth_element(means, means.begin() + static_cast<std::ptrdiff_t>(means.size() / 2));
  StepScale scale{0, to_seconds(most) * 1.05, false};
  if (to_seconds(most) > kLogFrom * means[means.size() / 2]) {
    scale = {std::max(to_seconds(least), 1e-6) * 0.9, to_seconds(most) * 1.1, true};
  }
  return scale;
}

/// A line for each run of steps that follow each other: a restart is a gap.
std::string curves(const std::vector<Point>& points, const StepScale& scale, Duration elapsed) {
  std::string text;
  for (std::size_t first = 0; first < points.size();) {
    std::size_t stop = first + 1;
    while (stop < points.size() && points[stop].last > points[stop - 1].last) ++stop;
    std::string mean, above, below;
    for (std::size_t i = first; i < stop; ++i) {
      const double x = placed(points[i].at, elapsed, kPlotWidth);
      const char* const move = i == first ? "M" : "L";
      mean += fmt::format("{}{:.2f} {:.2f}", move, x, scale.y(points[i].mean()));
      above += fmt::format("{}{:.2f} {:.2f}", move, x, scale.y(points[i].max));
      below.insert(0, fmt::format("L{:.2f} {:.2f}", x, scale.y(points[i].min)));
    }
    if (stop == first + 1) mean += "h.01";
    text += fmt::format("<path class=\"area\" d=\"{}{}Z\"/><path d=\"{}\"/>\n", above, below, mean);
    first = stop;
  }
  return text;
}

}  // namespace

std::string step_plot(const GoodputPage& page, const std::vector<PlotMark>& marks) {
  const auto& points = page.history.steps;
  const auto scale = scale_of(points);
  std::string text = fmt::format(
      "<div class=\"plot\"><span class=\"top\">{0}</span><span class=\"bottom\">{1}</span>"
      "<svg class=\"steps\" role=\"img\" aria-labelledby=\"step-title step-desc\" viewBox=\"0 0 "
      "{2} "
      "{3}\" preserveAspectRatio=\"none\"><title id=\"step-title\">Step times</title>"
      "<desc id=\"step-desc\">Seconds a step over the time of the job, from {1} below to {0} above"
      "{4}. The table below has the same.</desc>\n",
      format_duration(from_seconds(scale.high)),
      scale.low > 0 ? format_duration(from_seconds(scale.low)) : "0", kPlotWidth, kStepHeight,
      scale.logarithmic ? ", on a logarithmic scale" : "");
  text += curves(points, scale, page.summary.elapsed);
  return text + plot_marks(marks, page.summary.elapsed, kStepHeight) + "</svg></div>\n" +
         plot_axis(page.summary.elapsed) +
         (scale.logarithmic ? "<p class=\"dim\">The scale of the seconds is logarithmic.</p>\n"
                            : "");
}

std::string step_rows(const GoodputPage& page) {
  const auto& points = page.history.steps;
  const std::size_t together = (points.size() + kPlotRows - 1) / kPlotRows;
  std::string text;
  for (std::size_t i = 0; i < points.size();) {
    Point row = points[i];
    std::size_t next = i + 1;
    for (; next < std::min(points.size(), i + together); ++next) {
      if (points[next].last <= row.last) break;
      row.at = points[next].at;
      row.last = points[next].last;
      row.min = std::min(row.min, points[next].min);
      row.max = std::max(row.max, points[next].max);
      row.sum += points[next].sum;
      row.count += points[next].count;
    }
    i = next;
    text += fmt::format(
        "<tr><td class=\"num\">{}<td class=\"num\">{}<td class=\"num\">{}"
        "<td class=\"num\">{}<td class=\"num\">{}</tr>\n",
        row.first == row.last ? fmt::format("{}", row.last)
                              : fmt::format("{} to {}", row.first, row.last),
        format_duration(row.at), format_duration(row.mean()), format_duration(row.min),
        format_duration(row.max));
  }
  return text;
}

}  // namespace elastrun::ctl
