// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput_page.hpp"

#include <string>
#include <vector>

/// The pictures of the page of `goodput report --html`, as HTML and SVG. They stretch with the
/// page, so what is to be read stands beside them. Pure.
namespace elastrun::ctl {

constexpr double kPlotWidth = 1000;     // of a picture, in its own units
constexpr std::size_t kPlotRows = 200;  // of the table below a picture, about

/// Where a restart or a submission lies in the job; `id` of its row in the table.
struct PlotMark {
  Duration at{};
  bool submission = false;
  std::string id, label;
};

/// Their lines across a picture, and the times below it.
std::string plot_marks(const std::vector<PlotMark>& marks, Duration elapsed, double height);
std::string plot_axis(Duration elapsed);

std::string bucket_bar(const goodput::Ledger::Summary& summary);
/// A span of several buckets is divided in its height: areas are times.
std::string timeline_plot(const GoodputPage& page, const std::vector<PlotMark>& marks);
/// What the timeline shows as rows of a table; of many spans the longest ones.
std::string timeline_rows(const GoodputPage& page);
/// The stages of a restart, to the scale of the longest one.
std::string restart_bar(const goodput::RestartPath& path, Duration longest);

/// A line of the mean and an area from the shortest to the longest step, over time, with the step
/// that was done then below. What takes far longer than is usual is cut off at the top, with a
/// mark.
std::string step_plot(const GoodputPage& page, const std::vector<PlotMark>& marks);
/// The same as rows of a table, of neighbours together where there are many.
std::string step_rows(const GoodputPage& page);

}  // namespace elastrun::ctl
