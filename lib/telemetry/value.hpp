// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "telemetry/record.hpp"

namespace elastrun::telemetry {

/// For sources that write JSON.
json::value to_json(const Value& value);
/// The other way: a whole number that does not fit is a real one, arrays and objects are JSON text.
Value to_value(const json::value& value);
/// As Python's str(): "None", "True", "3", "0.5", the text itself.
std::string to_text(const Value& value);

}  // namespace elastrun::telemetry
