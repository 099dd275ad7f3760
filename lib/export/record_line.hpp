// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "telemetry/record.hpp"

#include <string>
#include <string_view>

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

}  // namespace elastrun::exporter
