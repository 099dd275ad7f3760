// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/override.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

class Values;

/// How goodput is watched while the job runs: [goodput].
struct GoodputOptions {
  Duration interval = std::chrono::seconds(30);
  std::vector<Duration> windows;  // of whole seconds, in ascending order, each once
  struct Alert {
    double below = 0;  // a share, above 0 and at most 1
    Duration window{};
    std::vector<std::string> command;  // argv; empty: none
    bool operator==(const Alert&) const = default;
  };
  std::optional<Alert> alert;
  std::string prefix = "elastrun.";  // of the names of metrics
  bool operator==(const GoodputOptions&) const = default;
};

/// "90", "90s", "10m", "1h", "7d": whole seconds, from one to 366 days. Nothing for another text.
std::optional<Duration> parse_window(std::string_view text);

/// From the rows of [goodput]. Refuses (exit code 2) what is out of range, and names who said it.
Answer<GoodputOptions> goodput_options(const Values& values);

}  // namespace elastrun::spec
