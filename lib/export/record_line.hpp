// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Records as JSON, one object a line:
///
///     {"time":1767323045.123456789,"mono_ns":5200000000,"kind":"event","scope":"elastrun.agent",
///      "name":"worker.ended","value":3,"attributes":{"rank":0}}
///
/// (on one line). `value` and `attributes` are left out when empty, `severity` when it is INFO,
/// `id` when there is none. A window has "window":{"start_ns":0,"end_ns":60000000000,"index":0,
/// "count":2,"dropped":0,"unit":"s","aggregates":{"mean":0.5}} in monotonic time, and
/// "no_data":true when nothing was seen. Readers must skip keys and kinds that they do not know.
namespace elastrun::exporter {

/// One line without its newline.
std::string to_json_line(const telemetry::Record& record);
/// Fails with Protocol for anything else than an object with at least time, kind and name.
Result<telemetry::Record> from_json_line(std::string_view line);

/// Reads a line as to_json_line() writes nearly all of them, maybe with spaces between its tokens:
/// no escapes, ASCII, no window, severity or id. Ten times as fast as by a tree of JSON, which
/// counts where a journal has a million steps. Reuses what `record` has allocated. False, with
/// anything in `record`, for every other line: from_json_line() says what that is. Where both read
/// it, they read the same.
bool read_plain_record(std::string_view line, telemetry::Record& record);

/// Reads an entry of a log of ml-goodput-measurement, an object with a `job_name`, bare or as
/// {"log_time": SECONDS, "payload": {...}}; as read_plain_record(). `log_time`: NaN if not told.
bool read_plain_entry(std::string_view line, std::vector<telemetry::Attribute>& members,
                      double& log_time);

/// Reads an entry of that log that is a step and nothing else, its members in the order in which
/// recorders write them: in half the time, which counts where a log has a million.
struct PlainStep {
  std::string_view job;  // a part of the line
  std::int64_t step;
  double time, log_time;  // POSIX seconds; log_time NaN if not told
};
std::optional<PlainStep> read_plain_step(std::string_view line);

/// The name of a sample's or window's series in formats without labels: its name and each
/// attribute that is a text, "system.cpu.time/cpu.mode_user". Ranks are for the caller, who may
/// have another place for them. What is the same for all of a worker (its role) or a GPU that has
/// an index (model, serial) is left out.
std::string series_name(const telemetry::Record& record);

}  // namespace elastrun::exporter
