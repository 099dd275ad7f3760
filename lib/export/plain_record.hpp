// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <string_view>

namespace elastrun::exporter {

/// Reads a line as to_json_line() writes nearly all of them, maybe with spaces between its tokens:
/// no escapes, ASCII, no window, severity or id. Ten times as fast as by a tree of JSON, which
/// counts where a journal has a million steps. Reuses what `record` has allocated. False, with
/// anything in `record`, for every other line: from_json_line() says what that is. Where both read
/// it, they read the same.
bool read_plain_record(std::string_view line, telemetry::Record& record);

}  // namespace elastrun::exporter
