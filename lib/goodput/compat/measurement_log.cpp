// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/measurement_log.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace elastrun::goodput {
namespace {

using telemetry::Record;
using Kind = MeasurementKind;

constexpr std::string_view kBegin = "job.started", kLogTime = "log_time";
constexpr std::string_view kSource = "ml-goodput-measurement";

bool is_of_orbax(Kind kind) {
  return kind >= Kind::Save && kind <= Kind::EmergencyRestore;
}

std::optional<double> finite(const telemetry::Value* value) {
  const auto read = value == nullptr ? std::nullopt : telemetry::as_real(*value);
  return read && std::isfinite(*read) ? read : std::nullopt;
}

std::optional<double> first_time(Members members) {
  for (const auto& [name, value] : members) {
    if (!name.contains("time")) continue;
    if (const auto read = finite(&value)) return read;
  }
  return std::nullopt;
}

/// Members that an entry needs. The first one that is missing or wrong is the status.
class Needed {
 public:
  explicit Needed(Members members) : members_(members) {}

  double number(std::string_view name) {
    const auto read = finite(find_in(members_, name));
    if (!read) refuse(fmt::format("'{}' is missing or not a number", name));
    return read.value_or(0);
  }
  /// Steps are whole numbers; the recorder cuts fractions off.
  std::int64_t step(std::string_view name) {
    constexpr double kFarthest = 9.0e15;  // doubles below it name every whole number
    const double read = number(name);
    const bool near = read >= -kFarthest && read <= kFarthest;
    if (!near) refuse(fmt::format("'{}' is {}, out of range", name, read));
    return near ? static_cast<std::int64_t>(read) : 0;
  }
  std::string text(std::string_view name) {
    const auto* found = find_in(members_, name);
    const auto* text = found == nullptr ? nullptr : std::get_if<std::string>(found);
    if (text == nullptr) refuse(fmt::format("'{}' is missing or not a text", name));
    return text == nullptr ? std::string() : *text;
  }
  Status status;

 private:
  void refuse(std::string text) {
    if (status) status = fail(Code::Protocol, std::move(text));
  }
  Members members_;
};

Kind kind_of(Members members) {
  const auto* event = find_in(members, "event_type");
  const auto* text = event == nullptr ? nullptr : std::get_if<std::string>(event);
  for (const Kind kind : {Kind::Save, Kind::Restore, Kind::EmergencyRestore}) {
    if (text != nullptr && *text == measurement_name(kind)) return kind;
  }
  for (auto kind = Kind::Step; kind != Kind::Other; kind = Kind(static_cast<int>(kind) + 1)) {
    if (!is_of_orbax(kind) && find_in(members, measurement_name(kind)) != nullptr) return kind;
  }
  return Kind::Other;
}

void read_checkpoint(Members members, Needed& needed, ReadEntry& read) {
  const std::string_view waits = read.entry.kind == Kind::Save ? "blocking_" : "";
  auto& detail = read.detail;
  read.entry.step = needed.step("step");
  detail.seconds = needed.number(fmt::format("checkpoint_manager_{}duration_secs", waits));
  // The original takes what lies in a bucket for persistent, and all else for local.
  detail.persistent = needed.text("directory").starts_with("gs://");
  read.entry.time = first_time(members).value_or(0);
  detail.begin = finite(find_in(members, fmt::format("checkpoint_manager_{}start_time", waits)))
                     .value_or(read.entry.time);
}

}  // namespace

std::string_view measurement_name(Kind kind) {
  // By kind: the member that makes an entry what it is, and holds its time; what Orbax writes says
  // itself which event it is. An entry of the original has one of them; of a stranger's the first
  // in this order decides.
  constexpr std::string_view kMembers[] = {"step_start_time",
                                           "job_start_time",
                                           "job_end_time",
                                           "tpu_init_start_time",
                                           "tpu_init_end_time",
                                           "training_prep_start_time",
                                           "training_prep_end_time",
                                           "data_loading_start_time",
                                           "data_loading_end_time",
                                           "custom_badput_event_start_time",
                                           "custom_badput_event_end_time",
                                           "save",
                                           "restore",
                                           "emergency_restore",
                                           "elastic_wait_start_time",
                                           "elastic_wait_end_time",
                                           "elastic_reinit_start_time",
                                           "elastic_reinit_end_time",
                                           "elastic_slice_counts_timestamp",
                                           "step_end_time",
                                           "checkpoint_save_start_time",
                                           "checkpoint_save_end_time",
                                           "checkpoint_restore_start_time",
                                           "checkpoint_restore_end_time",
                                           ""};
  return kMembers[static_cast<std::size_t>(kind)];
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

const telemetry::Value* find_in(Members members, std::string_view name) {
  const auto found = std::ranges::find(members, name, &telemetry::Attribute::first);
  return found == members.end() ? nullptr : &found->second;
}

Result<ReadEntry> read_measurement(Members members) {
  ReadEntry read;
  auto& [entry, detail] = read;
  Needed needed(members);
  entry.kind = kind_of(members);
  if (is_of_orbax(entry.kind)) {
    read_checkpoint(members, needed, read);
  } else if (entry.kind == Kind::Other) {
    entry.time = first_time(members).value_or(0);
  } else {
    entry.time = needed.number(measurement_name(entry.kind));
  }
  if (entry.kind == Kind::Step || entry.kind == Kind::StepEnd) {
    entry.step = needed.step("step_count");
  } else if (entry.kind == Kind::CustomStart || entry.kind == Kind::CustomEnd) {
    detail.name = in_capitals(needed.text("custom_badput_event_type"));
  } else if (entry.kind == Kind::ElasticWaitStart || entry.kind == Kind::ElasticWaitEnd) {
    detail.name = needed.text("elastic_wait_event_type");
  } else if (entry.kind == Kind::SliceCounts) {
    detail.active = needed.number("active_slices");
    detail.available = needed.number("available_slices");
    detail.total = needed.number("total_slices");
  }
  if (!needed.status) return std::unexpected(needed.status.error());
  return read;
}

Status MeasurementLog::add(Members members, double log_time) {
  auto read = read_measurement(members);
  if (!read) return std::unexpected(read.error());
  auto& entry = entries_.emplace_back(read->entry);
  // NaN stands for an entry whose log gave it no time.
  entry.log_time = std::isnan(log_time) ? entry.time : log_time;
  const bool named = entry.kind == Kind::CustomStart || entry.kind == Kind::CustomEnd ||
                     entry.kind == Kind::ElasticWaitStart || entry.kind == Kind::ElasticWaitEnd;
  if (named || is_of_orbax(entry.kind) || entry.kind == Kind::SliceCounts) {
    entry.detail = index_of(std::move(read->detail), named);
  }
  return {};
}

std::int32_t MeasurementLog::index_of(MeasurementDetail detail, bool named) {
  const auto next = static_cast<std::int32_t>(details_.size());
  if (named) {
    const auto [known, is_new] = named_.try_emplace(detail.name, next);
    if (!is_new) return known->second;
  }
  details_.push_back(std::move(detail));
  return next;
}

TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall) {
  const std::chrono::duration<double> since_epoch = wall.time_since_epoch();
  // What is older than a day was not said by this worker.
  const double ago = std::clamp(since_epoch.count() - posix_seconds, 0.0, 86'400.0);
  return now - from_seconds(ago);
}

namespace {

/// Such a log has one clock. Years that no clock shows would not be read again.
Record event(std::string_view scope, std::string_view name, WallTime wall) {
  Record record;
  record.stamp = {TimePoint(wall.time_since_epoch()), wall};
  record.scope = scope;
  record.name = name;
  return record;
}

}  // namespace

std::vector<telemetry::Attribute> members_of(const json::object& entry) {
  std::vector<telemetry::Attribute> members;
  for (const auto& [name, value] : entry) {
    members.emplace_back(name, telemetry::to_value(value));
  }
  return members;
}

Record begin_of_log(const std::string& job, WallTime wall) {
  auto record = event("elastrun.agent", kBegin, wall);
  record.attributes = {
      {"format", std::int64_t{1}}, {"run_id", job}, {"source", std::string(kSource)}};
  return record;
}

bool is_begin_of_log(const Record& record) {
  return record.name == kBegin && record.scope == "elastrun.agent" &&
         record.text("source") == kSource;
}

Record record_of_entry(Members members, double log_time) {
  const bool logged = std::isfinite(log_time);
  const auto read = read_measurement(members);
  const auto kind = read ? measurement_name(read->entry.kind) : std::string_view();
  const double time = logged ? log_time : read ? read->entry.time : 0;
  // The stamp is for people and for the order of files; the entry has its times as they were.
  auto record = event(kRecorderScope, kind.empty() ? "entry" : kind,
                      WallTime(from_seconds(std::clamp(time, 0.0, 8.9e9))));
  for (const auto& member : members) {
    if (!logged || member.first != kLogTime) record.attributes.push_back(member);
  }
  if (logged) record.attributes.emplace_back(kLogTime, log_time);
  return record;
}

Record lines_left_out(std::uint64_t count, WallTime wall) {
  auto record = event(kRecorderScope, "left_out", wall);
  record.attributes = {{"count", static_cast<std::int64_t>(count)}};
  return record;
}

std::uint64_t count_told(const Record& record, std::string_view name) {
  if (record.scope != kRecorderScope || record.name != name) return 0;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(record.whole("count").value_or(0), 0));
}

}  // namespace elastrun::goodput
