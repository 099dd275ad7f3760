// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/instruments.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::telemetry {

/// Makes samples of a pipeline readable for those who pull: each is the last value of a gauge under
/// its scope and name, labelled with its "rank" if it has one; those with the attribute "total":
/// true are what a counter has come to. Neither has windows, because those who are told of records
/// have had the sample itself.
///
/// What no instrument can be called becomes `_`, character by character; a name that begins with
/// anything but a letter gets an "m_" before it. A sample that is no number, and one whose name is
/// that of another instrument, stays out, counted.
class SampleSeries final : public Sink {
 public:
  /// Borrows the registry. `told` runs after each sample.
  explicit SampleSeries(Registry& registry, std::function<void()> told = {})
      : registry_(registry), told_(std::move(told)) {}
  void consume(const Record& record) override;
  std::uint64_t refused() const { return refused_; }

 private:
  /// Names come from workers, who may make up as many as they like.
  static constexpr std::size_t kMostNames = 5000;
  struct Key {
    std::string scope, name, rank;
    bool counts = false;
    auto operator<=>(const Key&) const = default;
  };
  /// None of both: refused, and not asked for again.
  struct Held {
    std::optional<Gauge> gauge{};
    std::optional<Counter<double>> counter{};
    double total = 0;  // that the counter has been told of
  };
  Held make(const Key& key) const;
  bool take(const Record& record, double number);

  Registry& registry_;
  const std::function<void()> told_;
  std::map<Key, Held> held_;
  std::uint64_t refused_ = 0;
};

/// The name of an instrument for any text, as above.
std::string instrument_name(std::string_view text);

}  // namespace elastrun::telemetry
