// SPDX-License-Identifier: Apache-2.0

#include "goodput/reports/restart_table.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <span>

namespace elastrun::goodput {
namespace {

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
    rows.push_back(
        json::object{{"attempt", start.number},
                     {"at_s", to_seconds(start.at)},
                     {"ran_s", to_seconds(start.ran)},
                     {"first_step", or_null(start.first_step)},
                     {"last_step", or_null(start.last_step)},
                     {"goodput", start.knows_steps() ? json::value(start.goodput()) : nullptr},
                     {"ended", text_or_null(start.ended)}});
  }
  return rows;
}

namespace {

constexpr std::size_t kCauseWidth = 66;

}  // namespace

std::string cut_words(std::string_view text, std::size_t size) {
  constexpr std::string_view kMore = "..";
  if (text.size() <= size || size <= kMore.size()) return std::string(cut(text, size));
  const auto room = cut(text, size - kMore.size());
  const auto blank = text[room.size()] == ' ' ? room.size() : room.rfind(' ');
  const auto words = blank == room.npos || blank == 0 ? room : room.substr(0, blank);
  return std::string(words).append(kMore);
}

std::string brief(Duration duration) {
  const double seconds = to_seconds(duration);
  if (duration == Duration::zero()) return "-";
  // The bounds are those of the rounded text: never "1000 ms" or "100.0 s".
  if (seconds < 0.9995) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.00995 ? 1 : 0);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 597) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 5970) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string restart_table(const std::vector<RestartPath>& paths, std::size_t most, bool causes) {
  if (paths.empty()) return {};
  const auto first = paths.size() > most ? paths.size() - most : 0;
  constexpr std::string_view kRow = "  {:>10}{:>8}{:>8}{:>8}{:>11}{:>8}{:>9}{:>8}{:>8}\n";
  std::string text = fmt::format(kRow, "restart at", "exit", "detect", "stop", "rendezvous",
                                 "spawn", "1st step", "redo", "total");
  for (const auto& path : std::span(paths).subspan(first)) {
    const auto stage = [&](RestartStage which) { return brief(path.of(which)); };
    text += fmt::format(
        kRow, brief(path.at), stage(RestartStage::Exit), stage(RestartStage::Detect),
        stage(RestartStage::Stop), stage(RestartStage::Rendezvous), stage(RestartStage::Spawn),
        stage(RestartStage::FirstStep), stage(RestartStage::Redo), brief(path.total()));
    if (causes && !path.cause.empty()) {
      text += fmt::format("             {}\n", cut_words(printable(path.cause), kCauseWidth));
    }
  }
  if (first > 0) text += fmt::format("  and {} before these\n", first);
  return text;
}

json::array restarts_json(const std::vector<RestartPath>& paths) {
  json::array rows;
  for (const auto& path : paths) {
    json::object stages;
    for (std::size_t i = 0; i < kRestartStages; ++i) {
      stages[stage_name(static_cast<RestartStage>(i))] = to_seconds(path.stages[i]);
    }
    rows.push_back(json::object{{"at_s", to_seconds(path.at)},
                                {"cause", path.cause},
                                {"stages_s", std::move(stages)},
                                {"total_s", to_seconds(path.total())},
                                {"last_step", or_null(path.last_step)},
                                {"first_step", or_null(path.first_step)},
                                {"caught_up", path.caught_up}});
  }
  return rows;
}

}  // namespace elastrun::goodput
