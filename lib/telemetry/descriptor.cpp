// SPDX-License-Identifier: Apache-2.0
#include "telemetry/descriptor.hpp"

namespace elastrun::telemetry {

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
