// SPDX-License-Identifier: Apache-2.0
#include "telemetry/descriptor.hpp"

namespace elastrun::telemetry {

bool fits_pattern(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*') {
    return !name.empty() && pattern.front() == name.front() &&
           fits_pattern(pattern.substr(1), name.substr(1));
  }
  // One star stays within a part between dots, two go over them.
  const bool all = pattern.starts_with("**");
  pattern.remove_prefix(all ? 2 : 1);
  for (;;) {
    if (fits_pattern(pattern, name)) return true;
    if (name.empty() || (!all && name.front() == '.')) return false;
    name.remove_prefix(1);
  }
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
      view.aggregations = {Last};
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
