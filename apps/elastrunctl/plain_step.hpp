// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace elastrun::ctl {

/// A step in a log of ml-goodput-measurement.
struct PlainStep {
  std::string_view job;  // of the line
  std::int64_t step = 0;
  double time = 0;
  double log_time = std::numeric_limits<double>::quiet_NaN();
};

/// Reads a line as recorders write nearly all of them, without a tree of JSON. None: the line is
/// something else, or has more in it; JSON says what that is.
std::optional<PlainStep> read_plain_step(std::string_view line);

}  // namespace elastrun::ctl
