// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantile_sketch.hpp"
#include "samples.hpp"
#include "stat_choice.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// Values summarised in windows, as torch.monitor's Stat: a window that is over is the event
/// "torch.monitor.Stat" with NAME.mean and so on. It ends with the next value, with close_due(), or
/// with the object. A window with `max_samples` values ends at once, and takes no more until its
/// time is over; without a time each `max_samples` values are a window, and none is dropped. Values
/// that are not finite are dropped. One thread at a time.
class Stat {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::chrono::milliseconds window{};  // 0: none
    std::uint64_t max_samples = 0;       // 0: no limit
    std::string unit{}, help{};
  };
  /// `window`: at least 1 ms, less is taken for that. `max_samples` 0: no limit.
  Stat(std::string name, std::initializer_list<Aggregation> aggregations,
       std::chrono::milliseconds window, std::uint64_t max_samples = 0)
      : Stat(std::move(name), aggregations,
             Options{window < std::chrono::milliseconds(1) ? std::chrono::milliseconds(1) : window,
                     max_samples}) {}
  Stat(std::string name, std::initializer_list<Aggregation> aggregations, Options options)
      : name_(std::move(name)),
        aggregations_(detail::chosen_for(name_, aggregations)),
        options_(std::move(options)) {
    for (const auto one : aggregations_) sketched_ |= one >= Aggregation::P50;
  }
  ~Stat() { close(); }
  Stat(const Stat&) = delete;
  Stat& operator=(const Stat&) = delete;

  void add(double value) { add(value, Clock::now()); }
  /// With a time of one's own, for tests.
  void add(double value, Clock::time_point now) {
    close_due(now);
    take(value);
  }
  /// Ends the window if its time is over: where values may stay away.
  void close_due(Clock::time_point now = Clock::now()) {
    if (options_.window.count() == 0) return;
    const auto id = now.time_since_epoch() / options_.window;
    if (id == id_) return;
    if (callback_ && id_ >= 0) take(callback_());
    close();
    id_ = id;
    full_ = false;
  }
  /// Its value is taken once for each window, when that ends: for what costs something to measure,
  /// such as memory in use.
  void observe(std::function<double()> callback) { callback_ = std::move(callback); }
  /// Values in the open window, and those that are in none.
  std::uint64_t count() const { return count_; }
  std::uint64_t dropped() const { return dropped_; }
  const std::string& name() const { return name_; }

  /// Adds the seconds from here to its end, however that comes.
  class Timing {
   public:
    explicit Timing(Stat& stat) : stat_(stat) {}
    ~Timing() { stat_.add(std::chrono::duration<double>(Clock::now() - begin_).count()); }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;

   private:
    Stat& stat_;
    const Clock::time_point begin_ = Clock::now();
  };
  [[nodiscard]] Timing add_time() { return Timing(*this); }

 private:
  void take(double value) {
    if (full_ || !std::isfinite(value)) {
      ++dropped_;
      return;
    }
    min_ = count_ == 0 || value < min_ ? value : min_;
    max_ = count_ == 0 || value > max_ ? value : max_;
    last_ = value;
    sum_ += value;
    ++count_;
    const double away = value - mean_;
    mean_ += away / static_cast<double>(count_);
    squares_ += away * (value - mean_);
    if (sketched_) sketch_.add(value);
    if (count_ != options_.max_samples) return;
    full_ = options_.window.count() > 0;
    close();
  }
  double of(Aggregation aggregation) const {
    const auto quantile = [this](double rank) {
      const double found = sketch_.quantile(rank);  // a bucket may be wider than what is in it
      return found < min_ ? min_ : found > max_ ? max_ : found;
    };
    switch (aggregation) {
      case Aggregation::Value:
        return last_;
      case Aggregation::Mean:
        return sum_ / static_cast<double>(count_);
      case Aggregation::Sum:
        return sum_;
      case Aggregation::Max:
        return max_;
      case Aggregation::Min:
        return min_;
      case Aggregation::Stddev:
        return std::sqrt(squares_ / static_cast<double>(count_));
      case Aggregation::P50:
        return quantile(0.5);
      case Aggregation::P90:
        return quantile(0.9);
      case Aggregation::P95:
        return quantile(0.95);
      case Aggregation::P99:
        return quantile(0.99);
      case Aggregation::P999:
        return quantile(0.999);
      default:  // Count, and Histogram, whose buckets are told apart
        return static_cast<double>(count_);
    }
  }
  void close() {
    if (count_ == 0) return;
    std::string packet = R"({"kind":"event","name":"torch.monitor.Stat","attributes":{)";
    for (const auto aggregation : aggregations_) {
      if (aggregation == Aggregation::Histogram) continue;
      const auto name = name_ + '.' + detail::kAggregations[static_cast<int>(aggregation)];
      if (packet.back() != '{') packet += ',';
      packet += quoted(name) + ':' + number(of(aggregation));
      Page::instance().put(Page::instance().series("torch.monitor", name), of(aggregation));
    }
    const auto add = [&](const char* key, const std::string& text, std::size_t most) {
      if (text.empty()) return;
      if (packet.back() != '{') packet += ',';
      packet += quoted(key) + ':' + quoted(detail::cut(text, most));
    };
    add("stat.unit", options_.unit, 64);
    add("stat.help", options_.help, 1024);
    tell([&] { return packet + "}}"; });
    tell_histogram();
    count_ = 0;
    sum_ = mean_ = squares_ = 0;
    sketch_ = {};
  }
  void tell_histogram() const {
    bool wanted = false;
    for (const auto one : aggregations_) wanted |= one == Aggregation::Histogram;
    if (!wanted) return;
    tell([&] {
      return R"({"kind":"metric","type":"histogram","group":"torch.monitor","name":)" +
             quoted(name_) + R"(,"value":)" + number(last_) + R"(,"count":)" +
             std::to_string(count_) + R"(,"sum":)" + number(sum_) + R"(,"min":)" + number(min_) +
             R"(,"max":)" + number(max_) + sketch_.members() +
             detail::about_members({{}, options_.unit, options_.help}) + '}';
    });
  }

  std::string name_;
  std::vector<Aggregation> aggregations_;
  Options options_;
  std::function<double()> callback_;
  bool sketched_ = false;
  std::int64_t id_ = -1;
  bool full_ = false;
  std::uint64_t count_ = 0, dropped_ = 0;
  double last_ = 0, sum_ = 0, min_ = 0, max_ = 0, mean_ = 0, squares_ = 0;
  detail::Sketch sketch_;
};

}  // namespace elastrun::worker
