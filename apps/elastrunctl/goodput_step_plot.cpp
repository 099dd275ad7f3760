// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "elastrunctl/goodput_page.hpp"
#include "goodput_html.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <string>

namespace elastrun::ctl {
namespace {

using Point = goodput::StepSeries::Point;

constexpr double kStepHeight = 160;
/// Beyond so many times the usual step, a scale with the longest one would show the others as a
/// flat line: the scale ends earlier.
constexpr double kClipFrom = 8, kClipAt = 4;
constexpr int kMarks = 100;  // of what is cut off: the longest of each hundredth of the width

struct StepScale {
  double high = 1;  // seconds
  bool clips = false;

  double y(Duration time) const {
    return (1 - std::clamp(to_seconds(time) / high, 0.0, 1.0)) * kStepHeight;
  }
};

StepScale scale_of(const std::vector<Point>& points) {
  std::vector<double> means;
  Duration most{};
  for (const auto& point : points) {
    means.push_back(to_seconds(point.mean()));
    most = std::max(most, point.max);
  }
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>(means.size() / 2);
  std::ranges::nth_element(means, middle);
  // The median, since a checkpoint or a restart makes single steps a hundred times as long.
  const double usual = std::max(*middle, 1e-6);
  if (to_seconds(most) > kClipFrom * usual) return {kClipAt * usual, true};
  return {std::max(to_seconds(most), 1e-6) * 1.05, false};
}

/// 1, 2 or 5 times a power of ten, of which three to seven fit.
double tick_of(double high) {
  double power = 1;  // without a logarithm: libm's would cost 300 kB (apps/CMakeLists.txt)
  while (power > high) power /= 10;
  while (power * 10 <= high) power *= 10;
  const double leading = high / power;
  return power * (leading < 1.5 ? 0.2 : leading < 3.5 ? 0.5 : leading < 7.5 ? 1 : 2);
}

std::string tick_lines(const StepScale& scale) {
  std::string text;
  const double tick = tick_of(scale.high);
  for (int i = 1; i * tick < scale.high; ++i) {
    text += fmt::format("<path class=\"tick\" d=\"M0 {0:.2f}H{1}\"/>\n",
                        scale.y(from_seconds(i * tick)), kPlotWidth);
  }
  return text;
}

std::string tick_labels(const StepScale& scale) {
  std::string text;
  const double tick = tick_of(scale.high);
  for (int i = 1; i * tick < scale.high * 0.98; ++i) {
    text += fmt::format("<span style=\"bottom:{:.2f}%\">{}</span>", i * tick / scale.high * 100,
                        format_duration(from_seconds(i * tick)));
  }
  return text;
}

/// Above the picture, where something is cut off.
std::string clip_marks(const std::vector<Point>& points, const StepScale& scale, Duration elapsed) {
  std::string text;
  const Point* longest = nullptr;
  int place = -1;
  const auto put = [&] {
    if (longest == nullptr) return;
    text += fmt::format("<i class=\"clip\" style=\"left:{:.2f}%\" title=\"step {}: {}\">▲</i>",
                        placed(longest->at, elapsed, 100), longest->last,
                        format_duration(longest->max));
  };
  for (const auto& point : points) {
    if (to_seconds(point.max) <= scale.high) continue;
    const int at = static_cast<int>(placed(point.at, elapsed, kMarks));
    if (at != place) {
      put();
      longest = &point;
    } else if (point.max > longest->max) {
      longest = &point;
    }
    place = at;
  }
  put();
  return "<div class=\"clips\">" + text + "</div>\n";
}

/// The step that was done last at each quarter of the time.
std::string step_axis(const std::vector<Point>& points, Duration elapsed) {
  std::string text = "<div class=\"axis\" aria-hidden=\"true\">";
  for (int quarter = 0; quarter <= 4; ++quarter) {
    const Point* done = nullptr;
    for (const auto& point : points) {
      if (point.at <= elapsed / 4 * quarter) done = &point;
    }
    text += fmt::format("<span>step {}</span>", done == nullptr ? "–" : std::to_string(done->last));
  }
  return text + "</div>\n";
}

std::string clip_note(const std::vector<Point>& points) {
  const auto longest = std::ranges::max_element(points, {}, &Point::max);
  return fmt::format(
      "<p class=\"dim\">▲: longer than the scale; the longest one, step {}, took {}.</p>\n",
      longest->last, format_duration(longest->max));
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
      // From the end: an area is drawn along its upper edge and back along its lower one.
      below.insert(0, fmt::format("L{:.2f} {:.2f}", x, scale.y(points[i].min)));
    }
    // A path of one point draws nothing.
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
  const Duration elapsed = page.summary.elapsed;
  const std::string clips = scale.clips ? clip_marks(points, scale, elapsed) : std::string();
  std::string text =
      clips + fmt::format(
                  "<div class=\"plot\"><svg class=\"steps\" role=\"img\" "
                  "aria-labelledby=\"step-title step-desc\" viewBox=\"0 0 {} {}\" "
                  "preserveAspectRatio=\"none\"><title id=\"step-title\">Step times</title>"
                  "<desc id=\"step-desc\">Seconds a step over the time of the job, from 0 below to "
                  "{} above. The table below has the same.</desc>\n",
                  kPlotWidth, kStepHeight, format_duration(from_seconds(scale.high)));
  text += tick_lines(scale) + curves(points, scale, elapsed) +
          plot_marks(marks, elapsed, kStepHeight) + "</svg>" + tick_labels(scale) + "</div>\n";
  text += plot_axis(elapsed) + step_axis(points, elapsed);
  return scale.clips ? text + clip_note(points) : text;
}

std::string step_rows(const GoodputPage& page) {
  const auto& points = page.history.steps;
  const std::size_t together = (points.size() + kPlotRows - 1) / kPlotRows;
  std::string text;
  for (std::size_t i = 0; i < points.size();) {
    Point row = points[i];
    std::size_t next = i + 1;
    for (; next < std::min(points.size(), i + together); ++next) {
      // Steps that were done again: a row does not reach over a restart.
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
