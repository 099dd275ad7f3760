// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/instruments.hpp"
#include "telemetry/route.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
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
/// anything but a letter gets an "m_" before it. A sample that is not a number, and one with the
/// name of another instrument, stays out, counted. At most kMostNames names are known; of each name
/// there is a series for each rank, and how many ranks there are is not for workers to say.
///
/// For all threads, as sinks are.
class SampleSeries final : public Sink {
 public:
  /// Names come from workers, who may make up as many as they like.
  static constexpr std::size_t kMostNames = 5000;
  struct Key {
    std::string scope, name, rank;
    bool counts = false;
    auto operator<=>(const Key&) const = default;
  };
  struct Told {
    std::function<void()> taken;  // after each sample
    std::function<void(const Record& record, std::string_view why)> refused;
  };
  /// Borrows the registry.
  explicit SampleSeries(Registry& registry, Told told = {})
      : registry_(registry), told_(std::move(told)) {}
  void consume(const Record& record) override;
  /// Ends the series that fit, which then disappear. The next sample starts a new one.
  void end_if(const std::function<bool(const Key& key)>& fits);
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  /// None of both: refused, and not asked for again.
  struct Held {
    std::optional<Gauge> gauge{};
    std::optional<Counter<double>> counter{};
    double total = 0;  // that the counter has been told of
  };
  Held make(const Key& key) const;
  Held* find(Key key);
  std::string_view take(const Record& record);

  Registry& registry_;
  const Told told_;
  std::mutex mutex_;  // for what follows
  std::map<Key, Held> held_;
  std::set<std::pair<std::string, std::string>> names_;  // scope and name
  std::atomic<std::uint64_t> refused_ = 0;
};

/// The name of an instrument for any text, as above.
std::string instrument_name(std::string_view text);

}  // namespace elastrun::telemetry
