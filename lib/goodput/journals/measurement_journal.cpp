// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/measurement_journal.hpp"

#include "core/text.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "goodput/journals/journal_books.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::goodput {
namespace {

using telemetry::Record;

constexpr std::string_view kBegin = "job.started", kLeftOut = "left_out", kLogTime = "log_time";
constexpr std::string_view kSource = "ml-goodput-measurement";

/// For people and for the order of files; the entry has its times as they were. Years that no
/// clock shows would not be read again.
WallTime stamp_of(double posix_seconds) {
  return WallTime(from_seconds(std::clamp(posix_seconds, 0.0, 8.9e9)));
}

/// Such a log has one clock.
Record event(std::string_view scope, std::string_view name, WallTime wall) {
  Record record;
  record.stamp = {TimePoint(wall.time_since_epoch()), wall};
  record.scope = scope;
  record.name = name;
  return record;
}

}  // namespace

Record begin_of_log(const std::string& job, WallTime wall) {
  auto record = event("elastrun.agent", kBegin, wall);
  record.attributes = {
      {"format", std::int64_t{1}}, {"run_id", job}, {"source", std::string(kSource)}};
  return record;
}

bool is_begin_of_log(const Record& record) {
  if (record.name != kBegin || record.scope != "elastrun.agent") return false;
  const auto* text = std::get_if<std::string>(record.find("source"));
  return text != nullptr && *text == kSource;
}

Record record_of_entry(const json::object& entry, double log_time) {
  const bool logged = log_time - log_time == 0;  // neither NaN nor infinite
  const auto read = read_measurement(entry);
  const auto kind = read ? measurement_name(read->entry.kind) : std::string_view();
  const double time = logged ? log_time : read ? read->entry.time : 0;
  auto record = event(kRecorderScope, kind.empty() ? "entry" : kind, stamp_of(time));
  for (const auto& [key, value] : entry) {
    std::string name(key);
    if (value.is_structured() || (logged && name == kLogTime)) continue;
    record.attributes.emplace_back(std::move(name), telemetry::to_value(value));
  }
  if (logged) record.attributes.emplace_back(kLogTime, log_time);
  return record;
}

Record lines_left_out(std::uint64_t count, WallTime wall) {
  auto record = event(kRecorderScope, kLeftOut, wall);
  record.attributes = {{"count", static_cast<std::int64_t>(count)}};
  return record;
}

std::uint64_t count_left_out(const Record& record) {
  if (record.scope != kRecorderScope || record.name != kLeftOut) return 0;
  const auto* whole = std::get_if<std::int64_t>(record.find("count"));
  return whole == nullptr ? 0 : static_cast<std::uint64_t>(std::max<std::int64_t>(*whole, 0));
}

}  // namespace elastrun::goodput
