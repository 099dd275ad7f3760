// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/windows.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::telemetry {

enum class Kind { Counter, UpDown, Gauge, Stat, Histogram };

/// What a window without values becomes: nothing, zeros, a record that says so, or what the last
/// one had (gauges).
enum class OnEmpty { Skip, Zero, NoData, KeepLast };

/// How a series is summarised: chosen by the author, overridden by the user.
struct View {
  Aggregations aggregations;
  WindowPlan window = every(std::chrono::seconds(60));
  OnEmpty on_empty = OnEmpty::Skip;
  bool operator==(const View&) const = default;
};

/// What an instrument is. Two of one scope and name must agree in everything.
struct Spec {
  std::string name;     // "elastrun.rendezvous.duration": OpenTelemetry's rule, see is_name()
  std::string unit{};   // UCUM: "s", "By", "1", "{restart}"
  std::string help{};   // one sentence
  std::string scope{};  // the library or group that owns the name
  std::vector<std::string> label_keys{};
  std::vector<View> views{};  // empty: those of its kind
  bool operator==(const Spec&) const = default;
};

/// A letter, then letters, digits and `_ . - /`, 255 at most: what OpenTelemetry takes as the name
/// of an instrument.
constexpr bool is_name(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !text.empty() && text.size() <= 255 && is_letter(text.front()) &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return is_letter(c) || (c >= '0' && c <= '9') || std::string_view("_.-/").contains(c);
         });
}
/// Whether a name fits a pattern: `*` stands for anything but a dot, `**` for anything.
bool fits_pattern(std::string_view pattern, std::string_view name);
/// What an instrument of that kind has when its author says nothing.
std::vector<View> default_views(Kind kind);

}  // namespace elastrun::telemetry
