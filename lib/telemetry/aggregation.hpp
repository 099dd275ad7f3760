// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace elastrun::telemetry {

/// How the values of one window become one number. The first seven are torch.monitor's, with its
/// numbers and names, Last being its VALUE (which its Python binding takes for NONE). STDDEV is
/// that of the values themselves (divided by their count); the quantiles come from a Sketch.
enum class Aggregation : std::uint8_t {
  None,
  Last,
  Mean,
  Count,
  Sum,
  Max,
  Min,
  Stddev,
  P50,
  P90,
  P95,
  P99,
  P999
};

/// "none", "value", ..., "p999".
std::string_view to_text(Aggregation aggregation);
std::optional<Aggregation> aggregation_named(std::string_view name);
/// 0.5 for P50; nothing for what is not a quantile.
std::optional<double> quantile_of(Aggregation aggregation);

/// A set of them.
class Aggregations {
 public:
  constexpr Aggregations() = default;
  constexpr Aggregations(std::initializer_list<Aggregation> all) {
    for (const auto one : all) add(one);
  }
  constexpr void add(Aggregation one) {
    if (one != Aggregation::None) bits_ |= 1u << static_cast<unsigned>(one);
  }
  constexpr bool has(Aggregation one) const {
    return (bits_ >> static_cast<unsigned>(one) & 1u) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  /// Whether a quantile is among them.
  bool need_sketch() const;
  /// In the order of the enumeration.
  std::vector<Aggregation> list() const;
  bool operator==(const Aggregations&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace elastrun::telemetry
