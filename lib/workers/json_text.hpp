// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace elastrun::workers {

/// JSON as a sloppy writer has it, with U+FFFD for each half of a character: the escape of a
/// surrogate without its other half (Python's json writes those), and bytes that are not UTF-8.
std::string with_whole_characters(std::string_view json);

}  // namespace elastrun::workers
