// SPDX-License-Identifier: Apache-2.0
#include "telemetry/descriptor.hpp"

#include <algorithm>
#include <array>

namespace elastrun::telemetry {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_name_part(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '/';
}

}  // namespace

std::string_view to_text(Kind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"counter", "updown", "gauge", "stat",
                                                      "histogram"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 255 && is_letter(text.front()) &&
         std::all_of(text.begin(), text.end(), is_name_part);
}

std::vector<View> default_views(Kind kind) {
  using enum Aggregation;
  View view;
  switch (kind) {
    case Kind::Counter:
    case Kind::UpDown:
      view.aggregations = {Sum};
      view.on_empty = OnEmpty::Zero;
      break;
    case Kind::Gauge:
      view.aggregations = {Value};
      view.on_empty = OnEmpty::KeepLast;
      break;
    case Kind::Stat:
      view.aggregations = {Mean, Count, Max, Min};
      break;
    case Kind::Histogram:
      view.aggregations = {Count, Sum, Max, Min, P50, P90, P99};
      break;
  }
  return {view};
}

}  // namespace elastrun::telemetry
