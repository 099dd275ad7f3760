// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/start_table.hpp"

#include "core/text.hpp"
#include "goodput/reports/restart_table.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <span>

namespace elastrun::goodput {
namespace {

json::value step_or_null(const std::optional<std::int64_t>& step) {
  return step ? json::value(*step) : json::value(nullptr);
}

std::string steps_text(const WorkersStart& start) {
  if (!start.first_step) return "-";
  return fmt::format("{}-{}", *start.first_step, *start.last_step);
}

}  // namespace

std::string start_table(const std::vector<WorkersStart>& starts, std::size_t most,
                        std::size_t columns) {
  // Of a single start the account says the same.
  if (starts.size() < 2) return {};
  constexpr std::string_view kRow = "  {:>7}{:>9}{:>9} {:>13}{:>8}  ";
  std::string text = fmt::format(kRow, "attempt", "at", "ran", "steps", "goodput") + "ended\n";
  const auto first = starts.size() > most ? starts.size() - most : 0;
  for (const auto& start : std::span(starts).subspan(first)) {
    const auto share =
        start.knows_steps() ? fmt::format("{:.1f} %", start.goodput() * 100) : std::string("-");
    const auto row = fmt::format(kRow, start.number, brief(start.at), brief(start.ran),
                                 steps_text(start), share);
    const auto ended = start.ended.empty() ? "it runs" : printable(start.ended);
    const auto room = columns - std::min(columns, row.size());
    text.append(row).append(columns > 0 ? cut_words(ended, room) : ended) += '\n';
  }
  if (first > 0) text += fmt::format("  and {} before these\n", starts[first].number - 1);
  return text;
}

json::array starts_json(const std::vector<WorkersStart>& starts) {
  json::array rows;
  for (const auto& start : starts) {
    rows.push_back(json::object{
        {"attempt", start.number},
        {"at_s", to_seconds(start.at)},
        {"ran_s", to_seconds(start.ran)},
        {"first_step", step_or_null(start.first_step)},
        {"last_step", step_or_null(start.last_step)},
        {"goodput", start.knows_steps() ? json::value(start.goodput()) : json::value(nullptr)},
        {"ended", start.ended.empty() ? json::value(nullptr) : json::value(start.ended)}});
  }
  return rows;
}

}  // namespace elastrun::goodput
