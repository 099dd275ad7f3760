// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stat_book.hpp"
#include "stat_choice.hpp"
#include "stat_core.hpp"
#include "stat_window.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// Values summarised in windows, as torch.monitor's Stat: a window that is over is the event
/// "torch.monitor.Stat" with NAME.mean and so on. It ends with the next value, with close_due(), or
/// with the last Stat of its name. A window with `max_samples` values ends at once, and takes no
/// more until its time is over; without a time each `max_samples` values are a window, and none is
/// dropped. Values that are not finite are dropped. For all threads; Stats of one name are one,
/// with the unit and help of the first, and std::invalid_argument is thrown if they differ
/// otherwise.
class Stat {
 public:
  using Clock = std::chrono::steady_clock;
  using Options = StatOptions;

  /// `window`: at least 1 ms, less is taken for that. `max_samples` 0: no limit.
  Stat(std::string name, std::initializer_list<Aggregation> aggregations,
       std::chrono::milliseconds window, std::uint64_t max_samples = 0)
      : Stat(std::move(name), aggregations,
             Options{std::max(window, std::chrono::milliseconds(1)), max_samples}) {}
  Stat(std::string name, std::initializer_list<Aggregation> aggregations, Options options)
      : core_(detail::stat_book.open(name, detail::chosen_for(name, aggregations),
                                     std::move(options))) {}

  void add(double value) { add(value, Clock::now()); }
  /// With a time of one's own, for tests.
  void add(double value, Clock::time_point now) { core_->add(value, now); }
  /// Ends the window if its time is over: where values may stay away.
  void close_due(Clock::time_point now = Clock::now()) { core_->close_due(now); }
  /// Its value is taken once for each window, when that ends, and whenever a Collector reports: for
  /// what costs something to measure, such as memory in use. One that raises is a dropped value.
  void observe(std::function<double()> callback) { core_->observe(std::move(callback)); }

  /// Values in the open window, and those that are in none.
  std::uint64_t count() const { return core_->count(); }
  std::uint64_t dropped() const { return core_->dropped(); }
  /// The aggregations of the last window that had values; zeros before the first. That of Histogram
  /// is how many values there were: histogram() has the buckets.
  std::map<Aggregation, double> get() const {
    const auto closed = core_->closed();
    std::map<Aggregation, double> found;
    for (const auto one : core_->aggregations) found[one] = closed->of(one);
    return found;
  }
  /// Of that window, if Histogram or a percentile was chosen: the end of each bucket (2.2 % wide)
  /// and how many values are in it, from the lowest.
  std::vector<std::pair<double, std::uint64_t>> histogram() const {
    return core_->closed()->sketch().buckets();
  }
  const std::string& name() const { return core_->name; }
  const std::string& unit() const { return core_->options.unit; }
  const std::string& help() const { return core_->options.help; }
  const std::vector<Aggregation>& aggregations() const { return core_->aggregations; }

  /// Adds the seconds from here to its end, however that comes.
  class Timing {
   public:
    explicit Timing(std::shared_ptr<detail::StatCore> core) : core_(std::move(core)) {}
    ~Timing() {
      const auto now = Clock::now();
      core_->add(std::chrono::duration<double>(now - begin_).count(), now);
    }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;

   private:
    const std::shared_ptr<detail::StatCore> core_;
    const Clock::time_point begin_ = Clock::now();
  };
  [[nodiscard]] Timing add_time() { return Timing(core_); }

 private:
  friend std::map<std::string, Stat> stats(std::string_view pattern);
  explicit Stat(std::shared_ptr<detail::StatCore> core) : core_(std::move(core)) {}

  std::shared_ptr<detail::StatCore> core_;
};

/// Those that exist and match `pattern` (with * and ?), by name.
inline std::map<std::string, Stat> stats(std::string_view pattern = "*") {
  std::map<std::string, Stat> found;
  for (auto& core : detail::stat_book.living(pattern)) {
    const auto name = core->name;
    found.emplace(name, Stat(std::move(core)));
  }
  return found;
}

/// Ends windows whose time is over, also when no value comes: the header starts no thread, so that
/// one of the program's, or its loop, may call this. Returns in how long the next one ends, if any
/// will tell something then.
inline std::optional<std::chrono::duration<double>> close_due(
    Stat::Clock::time_point now = Stat::Clock::now()) {
  std::optional<std::chrono::duration<double>> next;
  for (const auto& core : detail::stat_book.living("*")) {
    const auto wait = core->close_due(now);
    if (wait && (!next || *wait < *next)) next = wait;
  }
  return next;
}

}  // namespace elastrun::worker
