// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace elastrun {

/// Returns the output of a program as the reader of a terminal sees it: valid UTF-8 without control
/// sequences (ECMA-48: colours, cursor, titles, links), and without_controls() but for those
/// `kept`. A sequence without an end takes the rest of its line with it, as on a terminal.
std::string without_escapes(std::string_view text, std::string_view kept = "\t");

}  // namespace elastrun
