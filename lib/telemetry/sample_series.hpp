// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"
#include "telemetry/route.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::telemetry {

/// Makes samples of a pipeline readable for those who pull: each is the last value of a gauge under
/// its scope and name, labelled with its "rank" if it has one, and with the labels of its meaning;
/// those with the attribute "total": true are what a counter has come to. Beside the gauge of a
/// worker there is NAME.samples with the count and the sum of all that was put, so that a mean over
/// any stretch can be had; a sample that brings a sketch is a histogram alone. None has windows,
/// because those who are told of records have had the sample itself.
///
/// What no instrument can be called becomes `_`, character by character; a name that begins with
/// anything but a letter gets an "m_" before it. A sample that is not a number, one with the name
/// of another instrument and one whose labels have other names than the first one's stays out,
/// counted. At most kMostNames names are known; of each name there is a series for each rank and
/// set of labels: how many ranks there are is not for workers to say, and the registry bounds the
/// rest.
///
/// For all threads, as sinks are.
class SampleSeries final : public Sink {
 public:
  /// Names come from workers, who may make up as many as they like.
  static constexpr std::size_t kMostNames = 5000;
  struct Key {
    std::string scope, name, rank;
    bool counts = false;
    std::vector<std::pair<std::string, std::string>> labels{};
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
  /// None of them: refused for that reason, and not asked for again.
  struct Held {
    Kind kind = Kind::Gauge;
    std::shared_ptr<Series> series{}, samples{};
    double total = 0;  // that a counter has been told of
    std::string_view refusal{};
    std::vector<std::string> values{};  // of the labels
  };
  void make(Held& held, const Key& key, const Record& record);
  Held* find(Key key, const Record& record);
  std::string_view take(const Record& record);

  Registry& registry_;
  const Told told_;
  std::mutex mutex_;  // for what follows
  std::map<Key, Held> held_;
  // By scope and name: what the first sample said, which holds for all of its series.
  std::map<std::pair<std::string, std::string>, Spec> names_;
  std::atomic<std::uint64_t> refused_ = 0;
};

/// The name of an instrument for any text, as above.
std::string instrument_name(std::string_view text);

}  // namespace elastrun::telemetry
