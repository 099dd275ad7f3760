// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/reports/hints.hpp"
#include "goodput_answer.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::ctl {

/// What the page of a job shows.
struct GoodputPage {
  std::string job;  // as people call it
  std::string run_id, left_out;
  std::uint64_t records = 0;
  std::optional<WallTime> started;
  goodput::Ledger::Summary summary;
  goodput::History history;
  std::vector<goodput::Hint> hints;
  std::vector<goodput::WorkersStart> starts;
  std::vector<goodput::RestartPath> restarts;
  std::uint64_t restarts_forgotten = 0;
  std::vector<goodput::JournalBooks::Submission> submitted;
  int submissions = 0;
};
/// `input` was read with its history.
GoodputPage goodput_page_of(const GoodputInput& input, const GoodputAnswer& answer);

/// One HTML file without a script that asks for nothing else. Pure.
std::string goodput_page(const GoodputPage& page);

/// Writes it there, "-" being standard output. A file that is there is replaced only if it is a
/// page, too: what was meant may be the journal. Fails with Usage then, else with Io.
Status write_goodput_page(const std::string& path, const std::string& text);

/// The pictures of the page of `goodput report --html`, as HTML and SVG. They stretch with the
/// page, so what is to be read stands beside them. Pure.

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
