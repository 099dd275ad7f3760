// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "telemetry/series.hpp"

#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <utility>

namespace elastrun::telemetry {

class Pipeline;

/// At most so many series of one instrument; values under more labels go to one that is labelled
/// otel.metric.overflow="true", as OpenTelemetry has it.
constexpr std::size_t kSeriesOfInstrument = 2000;

/// One series as a collector sees it at one moment.
struct Point {
  std::shared_ptr<const Spec> spec;
  Kind kind = Kind::Stat;
  std::vector<Attribute> labels{};
  Value value{};              // of counters the sum, of gauges the value; whole numbers stay whole
  Summary<double> summary{};  // of stats and histograms
  bool no_data = false;       // an unset gauge, an observer that failed
  TimePoint start{}, changed{};  // since when; when a collector last saw something new
};
struct Snapshot {
  std::uint64_t tick = 0;  // one number for all series of one collection
  Stamp at;
  std::vector<Point> points;  // by scope, name and labels
  /// By how much the wall clock is ahead of the steady one; none: as `at` says.
  std::optional<Duration> ahead{};

  /// When a point of it begins. The same in all collections, as readers take a start that moves for
  /// a counter that began again, unless the wall clock was set back.
  WallTime start_of(const Point& point) const {
    const auto now = at.wall.time_since_epoch() - at.mono.time_since_epoch();
    return WallTime(point.start.time_since_epoch() + ahead.value_or(now));
  }
};

/// Points as samples of that moment, for sinks that are told: labels are attributes, of which
/// `rank` and `local_rank` are numbers, and a counter has `total`: true. What has no single number
/// (stats, histograms, gauges without data) is left out. Pure.
std::vector<Record> records_of(const std::vector<Point>& points, const Stamp& at);

/// An observer that a registry asks at each collection, for as long as this object lives. Its end
/// waits for a call that is under way on another thread, so that what the observer borrows may go
/// afterwards, and takes the instrument with its series away. Not to be ended inside that call;
/// must not outlive the registry.
class Observation {
 public:
  Observation() = default;
  explicit Observation(std::function<void()> end) : end_(std::move(end)) {}
  Observation(Observation&& other) noexcept : end_(std::exchange(other.end_, {})) {}
  Observation& operator=(Observation&& other) noexcept {
    std::swap(end_, other.end_);
    return *this;
  }
  ~Observation() {
    if (end_) end_();
  }

 private:
  std::function<void()> end_;
};

/// All instruments of a process. Everything here is for all threads, and while an observer is
/// called only the observer's lock is held, so that one thread at a time calls it. Any number of
/// readers collect, and see the same totals. For patterns see fits_pattern().
class Registry {
 public:
  /// Called once for each collection, however many sinks there are: calls `report` for what it
  /// sees. One that throws has no data this time.
  using Report = std::function<void(double value, std::vector<std::string> labels)>;
  using Observer = std::function<void(const Report& report)>;

  /// Borrows `clock`.
  explicit Registry(const Clock& clock) : clock_(clock) {}

  /// The series of these label values, made or found. The same spec again gives the same series;
  /// another spec, kind or type of number under one scope and name, a bad name, or the wrong number
  /// of labels fail with Usage and say what is wrong, and where the first one was. Without any
  /// label values an instrument with keys is made known, and its series stays unused. `whole`: a
  /// total in whole numbers.
  Result<std::shared_ptr<Series>> series(
      Kind kind, bool whole, Spec spec, std::vector<std::string> labels,
      std::source_location where = std::source_location::current());
  /// `kind`: Gauge, or Counter and UpDown for totals that are kept elsewhere. Ends when the result
  /// is dropped.
  Result<Observation> observe(Kind kind, Spec spec, Observer observer,
                              std::source_location where = std::source_location::current());

  /// The series with these labels is seen no more: what is added to its handles goes nowhere. With
  /// its last series an instrument goes, too.
  void end(const std::string& scope, const std::string& name,
           const std::vector<std::string>& labels);

  /// The user decides, not the author; holds for instruments that come later, too.
  void override_views(std::string pattern, std::vector<View> views);

  Snapshot collect(std::string_view pattern = "**");
  /// The windows of all views that have ended by now, as Window records. They have to be asked for:
  /// see step(). At the end also those of time that are open and have seen something.
  enum class Closing { InTime, AtTheEnd };
  std::vector<Record> close_windows(Closing closing = Closing::InTime);
  /// When the next window of time ends; nothing if there is none.
  std::optional<TimePoint> due() const;
  /// Sends the windows that have ended down a pipeline, and returns due(): a driver calls it, a
  /// loop with an alarm, a thread, a test. Being late loses no value: what several windows would
  /// have had is in one.
  std::optional<TimePoint> step(Pipeline& pipeline);

  const Clock& clock() const { return clock_; }
  /// Label sets beyond kSeriesOfInstrument, observers that failed.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  std::uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  struct Family {
    std::shared_ptr<const Spec> spec;
    Kind kind;
    bool whole, observed;
    std::source_location where;
    std::vector<View> views;
    std::mutex asking{};  // held while the observer is called; before the registry's
    Observer observer{};
    std::map<std::vector<std::string>, std::shared_ptr<Series>> series{};  // by labels
  };
  std::shared_ptr<Family> make_family(Kind kind, bool whole, bool observed, Spec spec,
                                      std::source_location where);
  std::shared_ptr<Series> series_of(Family& family, std::vector<std::string> labels);
  void run_observers();
  void run_observer(Family& family);
  void end_observation(Family& family);

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Family>> families_;
  std::vector<std::pair<std::string, std::vector<View>>> overrides_;
  std::uint64_t tick_ = 0;
  std::optional<Duration> ahead_;  // of the wall clock, as starts are told
  std::atomic<std::uint64_t> refused_{0}, failed_{0};
};

/// The registry of this process. Never destroyed, because threads may add until the very end.
Registry& process_registry();

}  // namespace elastrun::telemetry
