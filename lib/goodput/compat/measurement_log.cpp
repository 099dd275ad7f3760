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

using Kind = MeasurementKind;

// Doubles below it name every whole number.
constexpr std::int64_t kMostWhole = 9'000'000'000'000'000;

bool is_named(Kind kind) {
  return kind == Kind::CustomStart || kind == Kind::CustomEnd || kind == Kind::ElasticWaitStart ||
         kind == Kind::ElasticWaitEnd;
}

std::optional<double> finite(const telemetry::Value* value) {
  const auto read = value == nullptr ? std::nullopt : telemetry::as_real(*value);
  return read && std::isfinite(*read) ? read : std::nullopt;
}

const std::string* text_in(Members members, std::string_view name) {
  return std::get_if<std::string>(find_in(members, name));
}

double first_time(Members members) {
  for (const auto& [name, value] : members) {
    if (!name.contains("time")) continue;
    if (const auto read = finite(&value)) return *read;
  }
  return 0;
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
    const double read = number(name);
    const bool near = read >= -kMostWhole && read <= kMostWhole;
    if (!near) refuse(fmt::format("'{}' is {}, out of range", name, read));
    return near ? static_cast<std::int64_t>(read) : 0;
  }
  std::string text(std::string_view name) {
    const auto* text = text_in(members_, name);
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

void read_checkpoint(Members members, Needed& needed, ReadEntry& read) {
  const std::string_view waits = read.entry.kind == Kind::Save ? "blocking_" : "";
  auto& [entry, detail] = read;
  entry.step = needed.step("step");
  detail.seconds = needed.number(fmt::format("checkpoint_manager_{}duration_secs", waits));
  // The original takes what lies in a bucket for persistent, and all else for local.
  detail.persistent = needed.text("directory").starts_with("gs://");
  entry.time = first_time(members);
  detail.begin = finite(find_in(members, fmt::format("checkpoint_manager_{}start_time", waits)))
                     .value_or(entry.time);
}

}  // namespace

std::string_view measurement_name(Kind kind) {
  constexpr std::string_view kNames[] = {"step_start_time",
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
  return kNames[static_cast<std::size_t>(kind)];
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::vector<telemetry::Attribute> members_of(const json::object& entry) {
  std::vector<telemetry::Attribute> members;
  for (const auto& [name, value] : entry) {
    members.emplace_back(name, value.is_structured() ? std::nan("") : telemetry::to_value(value));
  }
  return members;
}

const telemetry::Value* find_in(Members members, std::string_view name) {
  const auto found = std::ranges::find(members, name, &telemetry::Attribute::first);
  return found == members.end() ? nullptr : &found->second;
}

std::uint64_t count_in(Members members, std::string_view name) {
  const double count = finite(find_in(members, name)).value_or(0);
  return count >= 1 && count <= kMostWhole ? static_cast<std::uint64_t>(count) : 0;
}

Kind kind_of(Members members) {
  const auto* event = text_in(members, "event_type");
  for (const Kind kind : {Kind::Save, Kind::Restore, Kind::EmergencyRestore}) {
    if (event != nullptr && *event == measurement_name(kind)) return kind;
  }
  // An entry of the original has one of them; of a stranger's the first in this order decides.
  for (auto kind = Kind::Step; kind != Kind::Other; kind = Kind(static_cast<int>(kind) + 1)) {
    if (!is_of_orbax(kind) && find_in(members, measurement_name(kind)) != nullptr) return kind;
  }
  return Kind::Other;
}

Result<ReadEntry> read_measurement(Members members) {
  ReadEntry read;
  auto& [entry, detail] = read;
  Needed needed(members);
  entry.kind = kind_of(members);
  if (is_of_orbax(entry.kind)) {
    read_checkpoint(members, needed, read);
  } else if (entry.kind == Kind::Other) {
    entry.time = first_time(members);
  } else {
    entry.time = needed.number(measurement_name(entry.kind));
  }
  if (entry.kind == Kind::Step || entry.kind == Kind::StepEnd) {
    entry.step = needed.step("step_count");
  } else if (entry.kind == Kind::CustomStart || entry.kind == Kind::CustomEnd) {
    detail.name = in_capitals(needed.text("custom_badput_event_type"));
  } else if (is_named(entry.kind)) {
    detail.name = needed.text("elastic_wait_event_type");
  } else if (entry.kind == Kind::SliceCounts) {
    detail.active = needed.number("active_slices");
    detail.available = needed.number("available_slices");
    detail.total = needed.number("total_slices");
  }
  if (!needed.status) return std::unexpected(needed.status.error());
  return read;
}

bool MeasurementLog::add_step(std::int64_t step, double time, double log_time) {
  if (!std::isfinite(time) || step < -kMostWhole || step > kMostWhole) return false;
  entries_.push_back({Kind::Step, -1, step, time, std::isnan(log_time) ? time : log_time});
  return true;
}

Status MeasurementLog::add(Members members, double log_time) {
  auto read = read_measurement(members);
  if (!read) return std::unexpected(read.error());
  auto& [entry, detail] = *read;
  entry.log_time = std::isnan(log_time) ? entry.time : log_time;
  const bool named = is_named(entry.kind);
  if (named || is_of_orbax(entry.kind) || entry.kind == Kind::SliceCounts) {
    entry.detail = static_cast<std::int32_t>(details_.size());
    // Of a name that is known already the place is the same one.
    if (named) entry.detail = named_.try_emplace(detail.name, entry.detail).first->second;
    if (std::cmp_equal(entry.detail, details_.size())) details_.push_back(std::move(detail));
  }
  entries_.push_back(entry);
  return {};
}

TimePoint time_of_entry(double posix_seconds, TimePoint now, WallTime wall) {
  const std::chrono::duration<double> since_epoch = wall.time_since_epoch();
  // What is older than a day was not said by this worker.
  const double ago = std::clamp(since_epoch.count() - posix_seconds, 0.0, 86'400.0);
  return now - from_seconds(ago);
}

}  // namespace elastrun::goodput
