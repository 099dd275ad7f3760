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

}  // namespace elastrun::ctl
