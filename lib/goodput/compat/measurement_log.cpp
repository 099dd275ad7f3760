// SPDX-License-Identifier: Apache-2.0

#include "goodput/compat/measurement_log.hpp"

#include "core/text.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
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

namespace {

struct TimeMember {
  std::string_view name;
  MeasurementKind kind;
};

/// The member that makes an entry what it is, and holds its time.
constexpr std::array<TimeMember, 21> kTimeMembers = {{
    {"step_start_time", MeasurementKind::Step},
    {"job_start_time", MeasurementKind::JobStart},
    {"job_end_time", MeasurementKind::JobEnd},
    {"tpu_init_start_time", MeasurementKind::AcceleratorInitStart},
    {"tpu_init_end_time", MeasurementKind::AcceleratorInitEnd},
    {"training_prep_start_time", MeasurementKind::PreparationStart},
    {"training_prep_end_time", MeasurementKind::PreparationEnd},
    {"data_loading_start_time", MeasurementKind::DataLoadingStart},
    {"data_loading_end_time", MeasurementKind::DataLoadingEnd},
    {"custom_badput_event_start_time", MeasurementKind::CustomStart},
    {"custom_badput_event_end_time", MeasurementKind::CustomEnd},
    {"elastic_wait_start_time", MeasurementKind::ElasticWaitStart},
    {"elastic_wait_end_time", MeasurementKind::ElasticWaitEnd},
    {"elastic_reinit_start_time", MeasurementKind::ElasticReinitStart},
    {"elastic_reinit_end_time", MeasurementKind::ElasticReinitEnd},
    {"elastic_slice_counts_timestamp", MeasurementKind::SliceCounts},
    {"step_end_time", MeasurementKind::StepEnd},
    {"checkpoint_save_start_time", MeasurementKind::SaveStart},
    {"checkpoint_save_end_time", MeasurementKind::SaveEnd},
    {"checkpoint_restore_start_time", MeasurementKind::RestoreStart},
    {"checkpoint_restore_end_time", MeasurementKind::RestoreEnd},
}};

std::optional<double> number(const json::value* value) {
  if (value == nullptr || !value->is_number()) return std::nullopt;
  boost::system::error_code error;
  const double read = value->to_number<double>(error);
  // A comparison that NaN and the infinities fail.
  if (error || !(read - read == 0)) return std::nullopt;
  return read;
}

Result<double> needed_number(const json::object& payload, std::string_view member) {
  const auto read = number(payload.if_contains(member));
  if (!read) return fail(Code::Protocol, fmt::format("'{}' is missing or not a number", member));
  return *read;
}

/// Steps are whole numbers; the recorder cuts fractions off.
Result<std::int64_t> needed_step(const json::object& payload, std::string_view member) {
  const auto read = needed_number(payload, member);
  if (!read) return std::unexpected(read.error());
  constexpr double kFarthest = 9.0e15;  // doubles below it name every whole number
  if (*read < -kFarthest || *read > kFarthest) {
    return fail(Code::Protocol, fmt::format("'{}' is {}, out of range", member, *read));
  }
  return static_cast<std::int64_t>(*read);
}

std::optional<double> first_time(const json::object& payload) {
  for (const auto& member : payload) {
    if (std::string_view(member.key()).find("time") == std::string_view::npos) continue;
    if (const auto read = number(&member.value())) return read;
  }
  return std::nullopt;
}

MeasurementKind checkpoint_kind(const json::object& payload) {
  const json::value* type = payload.if_contains("event_type");
  if (type == nullptr || !type->is_string()) return MeasurementKind::Other;
  const std::string_view text = type->get_string();
  if (text == "save") return MeasurementKind::Save;
  if (text == "restore") return MeasurementKind::Restore;
  if (text == "emergency_restore") return MeasurementKind::EmergencyRestore;
  return MeasurementKind::Other;
}

}  // namespace

std::string in_capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

std::string_view measurement_name(MeasurementKind kind) {
  if (kind == MeasurementKind::Save) return "save";
  if (kind == MeasurementKind::Restore) return "restore";
  if (kind == MeasurementKind::EmergencyRestore) return "emergency_restore";
  const auto found = std::ranges::find(kTimeMembers, kind, &TimeMember::kind);
  return found == kTimeMembers.end() ? std::string_view() : found->name;
}

Result<NamedEntry> read_measurement(const json::value& payload) {
  MeasurementLog log;
  if (const auto added = log.add(payload); !added) return std::unexpected(added.error());
  const auto& entry = log.entries().front();
  const bool named = entry.detail >= 0 && log.has_name(entry);
  return NamedEntry{entry, named ? log.name(entry) : std::string()};
}

Status MeasurementLog::add(const json::value& payload, double log_time) {
  const json::object* object = payload.if_object();
  if (object == nullptr) return fail(Code::Protocol, "an entry is a JSON object");
  MeasurementEntry entry;
  if (const auto status = read(*object, entry); !status) return status;
  // NaN, which equals nothing, stands for an entry whose log gave it no time.
  entry.log_time = log_time == log_time ? log_time : entry.time;
  entries_.push_back(entry);
  return {};
}

void MeasurementLog::add_step(std::int64_t step, double time, double log_time) {
  entries_.push_back(
      {MeasurementKind::Step, -1, step, time, log_time == log_time ? log_time : time});
}

Status MeasurementLog::read(const json::object& payload, MeasurementEntry& entry) {
  entry.kind = checkpoint_kind(payload);
  if (entry.kind != MeasurementKind::Other) return read_checkpoint(payload, entry);
  // An entry of the original has one of them; of a stranger's the first in this order decides.
  for (const auto& [name, kind] : kTimeMembers) {
    if (!payload.contains(name)) continue;
    const auto time = needed_number(payload, name);
    if (!time) return std::unexpected(time.error());
    entry.kind = kind;
    entry.time = *time;
    break;
  }
  switch (entry.kind) {
    case MeasurementKind::Step:
    case MeasurementKind::StepEnd: {
      const auto step = needed_step(payload, "step_count");
      if (!step) return std::unexpected(step.error());
      entry.step = *step;
      return {};
    }
    case MeasurementKind::CustomStart:
    case MeasurementKind::CustomEnd:
      return read_name(payload, "custom_badput_event_type", entry);
    case MeasurementKind::ElasticWaitStart:
    case MeasurementKind::ElasticWaitEnd:
      return read_name(payload, "elastic_wait_event_type", entry);
    case MeasurementKind::SliceCounts:
      return read_slices(payload, entry);
    case MeasurementKind::Other:
      entry.time = first_time(payload).value_or(0);
      return {};
    default:
      return {};
  }
}

Status MeasurementLog::read_checkpoint(const json::object& payload, MeasurementEntry& entry) {
  const auto step = needed_step(payload, "step");
  if (!step) return std::unexpected(step.error());
  const auto seconds = needed_number(payload, entry.kind == MeasurementKind::Save
                                                  ? "checkpoint_manager_blocking_duration_secs"
                                                  : "checkpoint_manager_duration_secs");
  if (!seconds) return std::unexpected(seconds.error());
  const json::value* directory = payload.if_contains("directory");
  if (directory == nullptr || !directory->is_string()) {
    return fail(Code::Protocol, "'directory' is missing or not a text");
  }
  entry.step = *step;
  entry.time = first_time(payload).value_or(0);
  entry.detail = static_cast<std::int32_t>(checkpoints_.size());
  const auto begin = number(payload.if_contains(entry.kind == MeasurementKind::Save
                                                    ? "checkpoint_manager_blocking_start_time"
                                                    : "checkpoint_manager_start_time"));
  checkpoints_.push_back(
      // The original takes what lies in a bucket for persistent, and all else for local.
      {directory->get_string().starts_with("gs://"), *seconds, begin.value_or(entry.time)});
  return {};
}

Status MeasurementLog::read_slices(const json::object& payload, MeasurementEntry& entry) {
  const auto active = needed_number(payload, "active_slices");
  if (!active) return std::unexpected(active.error());
  const auto available = needed_number(payload, "available_slices");
  if (!available) return std::unexpected(available.error());
  const auto total = needed_number(payload, "total_slices");
  if (!total) return std::unexpected(total.error());
  entry.detail = static_cast<std::int32_t>(slices_.size());
  slices_.push_back({*active, *available, *total});
  return {};
}

Status MeasurementLog::read_name(const json::object& payload, std::string_view member,
                                 MeasurementEntry& entry) {
  const json::value* name = payload.if_contains(member);
  if (name == nullptr || !name->is_string()) {
    return fail(Code::Protocol, fmt::format("'{}' is missing or not a text", member));
  }
  std::string text(name->get_string());
  const bool custom =
      entry.kind == MeasurementKind::CustomStart || entry.kind == MeasurementKind::CustomEnd;
  entry.detail = index_of(custom ? in_capitals(std::move(text)) : std::move(text));
  return {};
}

std::int32_t MeasurementLog::index_of(std::string name) {
  if (const auto known = name_index_.find(name); known != name_index_.end()) return known->second;
  const auto index = static_cast<std::int32_t>(names_.size());
  names_.push_back(name);
  name_index_.emplace(std::move(name), index);
  return index;
}

json::object entry_of(const Record& record) {
  json::object entry;
  for (const auto& [name, value] : record.attributes) entry[name] = telemetry::to_json(value);
  return entry;
}

TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall) {
  const std::chrono::duration<double> since_epoch = wall.time_since_epoch();
  // What is older than a day was not said by this worker.
  const double ago = std::clamp(since_epoch.count() - posix_seconds, 0.0, 86'400.0);
  return now - from_seconds(ago);
}

}  // namespace elastrun::goodput
