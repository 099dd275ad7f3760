// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "telemetry/record.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace elastrun {

/// Gives a name of ours free: renames the entry that has it, as Prometheus renames a label that its
/// own would cover. "le" becomes "exported_le", with as many "exported_" as it takes.
template <class Value>
void make_room(std::vector<std::pair<std::string, Value>>& entries, const std::string& name) {
  using Entry = std::pair<std::string, Value>;
  const auto taken = std::ranges::find(entries, name, &Entry::first);
  if (taken == entries.end()) return;
  auto instead = "exported_" + name;
  while (std::ranges::find(entries, instead, &Entry::first) != entries.end())
    instead.insert(0, "exported_");
  taken->first = std::move(instead);
}

}  // namespace elastrun

/// The one table of series: instruments of the agent and samples of its workers go in, points for
/// pages and collectors come out, and windows for those who are told of records. All of it belongs
/// to one thread, the agent's loop; other threads put metrics (telemetry/metrics.hpp).
namespace elastrun::telemetry {

using worker::Aggregation;

enum class Kind { Counter, UpDown, Gauge, Stat, Histogram };

/// What an instrument is. Two of one scope and name must agree in everything.
struct Spec {
  std::string name;     // "elastrun.rendezvous.duration": OpenTelemetry's rule, see is_name()
  std::string unit{};   // UCUM: "s", "By", "1", "{restart}"
  std::string help{};   // one sentence
  std::string scope{};  // the library or group that owns the name
  std::vector<std::string> label_keys{};
  Duration window = std::chrono::seconds(60);  // of the windows that sinks are told of; zero: none
  bool tells_empty = true;  // a total that has not risen, a gauge without a new value
  bool operator==(const Spec&) const = default;
};

/// A letter, then letters, digits and `_ . - /`, 255 at most: what OpenTelemetry takes as the name
/// of an instrument.
bool is_name(std::string_view text);
/// The name of an instrument for any text: each other character becomes `_`, and one that begins
/// with anything but a letter gets an "m_" before it.
std::string instrument_name(std::string_view text);
/// Whether a name fits a pattern: `*` stands for anything but a dot, `**` for anything.
bool fits_pattern(std::string_view pattern, std::string_view name);

/// The aggregates of a window, by name; whole numbers stay whole. Percentiles without values are
/// null.
std::vector<Attribute> aggregates_of(const Summary& summary, const std::set<Aggregation>& chosen,
                                     bool whole = false);

/// The values of one instrument under one set of labels, since the start and in the open window.
class Series {
 public:
  /// Buckets of each sign that batches leave; beyond that the resolution is halved: the values of a
  /// worker may span 600 octaves, and its series must not take a megabyte each.
  static constexpr std::size_t kMostBuckets = 640;

  /// `whole`: a total that is counted in whole numbers.
  Series(Kind kind, bool whole, TimePoint start);

  /// To a total. False, and nothing is added, for what a counter that only rises does not take.
  bool count(std::int64_t more) {
    if (more < 0 && kind_ == Kind::Counter) return false;
    // Wraps instead of being undefined; differences stay right.
    number_ += static_cast<std::uint64_t>(more);
    return true;
  }
  bool count(double more) {
    if (!(more >= 0) && kind_ == Kind::Counter) return false;
    real_ += more;
    return true;
  }
  /// A gauge, or a total that is kept elsewhere.
  void set(double value) {
    real_ = value;
    known_ = true;
  }
  /// To a stat or histogram: NaN and infinities are counted apart.
  void add(double value) { open_.add(value); }
  /// Values that others have summed up: counts, sum, extremes and, where it has one, the sketch.
  /// What is not finite is left out.
  void add(const Summary& batch);

 private:
  friend class Registry;
  bool is_total() const { return kind_ == Kind::Counter || kind_ == Kind::UpDown; }
  Value value() const;
  Summary all() const;
  Summary take_window(bool sketched);
  void open_window(bool sketched);

  const Kind kind_;
  const bool whole_;
  bool known_ = false;  // a gauge that has a value
  const TimePoint start_;
  std::uint64_t number_ = 0;  // of a total in whole numbers
  double real_ = 0;
  Summary closed_, open_;    // of stats: what windows have had, and the open one
  std::int64_t window_ = 0;  // the number of the open one, and where a total began in it
  std::uint64_t number_before_ = 0;
  double real_before_ = 0;
  std::optional<double> last_{};  // of a gauge, in the last window in which it had a value
};

/// At most so many series of one instrument; values under more labels go to one that is labelled
/// otel.metric.overflow="true", as OpenTelemetry has it.
constexpr std::size_t kSeriesOfInstrument = 2000;

/// One series as a collector sees it at one moment.
struct Point {
  std::shared_ptr<const Spec> spec;
  Kind kind = Kind::Stat;
  std::vector<Attribute> labels{};
  Value value{};         // of counters the sum, of gauges the value; whole numbers stay whole
  Summary summary{};     // of stats and histograms
  bool no_data = false;  // an unset gauge, an observer that failed
  TimePoint start{};     // since when
};
struct Snapshot {
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

/// All series of a process. Any number of readers collect, and see the same totals.
///
/// A sample of a worker is readable as the last value of a gauge under its scope and name, labelled
/// with its "rank" if it has one, and with the labels of its meaning; one with the attribute
/// "total": true is what a counter has come to. Beside the gauge of a worker there is NAME.samples
/// with the count and the sum of all that was put, so that a mean over any stretch can be had; a
/// sample that brings a sketch is a histogram alone. None has windows, because those who are told
/// of records have had the sample itself.
class Registry {
 public:
  /// Names come from workers, who may make up as many as they like. Of each name there is a series
  /// for each rank and set of labels: how many ranks there are is not for workers to say.
  static constexpr std::size_t kMostNames = 5000;

  /// Called once for each collection, however many sinks there are: calls `report` for what it
  /// sees. One that throws has no data this time.
  struct Report {
    void operator()(double value, std::vector<std::string> labels) const {
      seen.emplace_back(std::move(labels), value);
    }
    std::vector<std::pair<std::vector<std::string>, double>>& seen;
  };
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
  /// A sample of a worker, as above. Returns why it is not taken: no number, another kind or other
  /// label names than the first sample of its name, one name too many; empty if it is.
  std::string_view take(const Record& sample);
  std::uint64_t refused_samples() const { return refused_samples_; }
  /// The next run counts from zero. The series of this one stay.
  void forget_samples() { held_.clear(), sampled_.clear(), refused_samples_ = 0; }
  /// Whose sample a series keeps.
  struct SampleKey {
    std::string scope, name, rank;
    bool counts = false;
    std::vector<std::pair<std::string, std::string>> labels{};
    auto operator<=>(const SampleKey&) const = default;
  };
  /// Ends the series of samples that fit, which then disappear. The next sample starts a new one.
  void end_samples(std::predicate<const SampleKey&> auto fits) {
    std::erase_if(held_, [&](const auto& one) {
      const bool ends = fits(one.first);
      if (ends) end(one.first, one.second);
      return ends;
    });
  }

  /// The user decides, not the author: these aggregations, in windows of a minute, of instruments
  /// that fit, also of those that come later. Windows without values are then not told.
  void override_aggregations(std::string pattern, std::set<Aggregation> chosen);

  Snapshot collect(std::string_view pattern = "**");
  /// The windows that have ended by now, as Window records. They have to be asked for; being late
  /// loses no value: what several windows would have had is in one. At the end of all also those
  /// that are open and have seen something.
  enum class Closing { InTime, AtTheEnd };
  std::vector<Record> close_windows(Closing closing = Closing::InTime);
  /// When the next window ends; nothing if there is none. Those of one length end together.
  std::optional<TimePoint> due() const;

 private:
  struct Family {
    std::shared_ptr<const Spec> spec;
    Kind kind;
    bool whole;
    std::source_location where;
    std::set<Aggregation> aggregations{};
    Duration window{};
    bool tells_empty = true;
    Observer observer{};
    std::map<std::vector<std::string>, std::shared_ptr<Series>> series{};  // by labels
    bool is_sketched() const;
    void override_with(const std::set<Aggregation>& chosen);
  };
  using Name = std::pair<std::string, std::string>;  // scope and name
  /// What a worker's samples are kept in. Neither: refused for that reason, and not asked for
  /// again.
  struct Held {
    Kind kind = Kind::Gauge;
    std::shared_ptr<Series> series{}, samples{};
    double total = 0;  // that a counter has been told of
    std::string_view refusal{};
    std::vector<std::string> values{};  // of the labels
  };
  friend class Observations;
  std::shared_ptr<Family> make_family(Kind kind, bool whole, Spec spec, std::source_location where);
  std::shared_ptr<Series> series_of(Family& family, std::vector<std::string> labels);
  void run_observers();
  void end(const SampleKey& key, const Held& held);
  Held make_held(const SampleKey& key, const Record& sample);
  Held* find_held(SampleKey key, const Record& sample);
  std::string_view put(const Record& sample);
  void close_window(const Family& family, const std::vector<std::string>& labels, Series& series,
                    const Stamp& now, bool at_the_end, std::vector<Record>& records);

  const Clock& clock_;
  std::map<Name, std::shared_ptr<Family>> families_;
  std::vector<std::pair<std::string, std::set<Aggregation>>> overrides_;
  std::optional<Duration> ahead_;  // of the wall clock, as starts are told
  std::map<SampleKey, Held> held_;
  std::map<Name, Spec> sampled_;  // what the first sample said, which holds for all of its series
  std::uint64_t refused_samples_ = 0;
};

/// Observers of instruments of one scope, which the registry asks at each collection for as long as
/// this object lives; its end takes their series away. It must not end inside such a call.
class Observations {
 public:
  /// Borrows the registry, which outlives this object.
  Observations(Registry& registry, std::string_view scope) : registry_(registry), scope_(scope) {}
  ~Observations();
  Observations(const Observations&) = delete;
  Observations& operator=(const Observations&) = delete;
  /// `kind`: Gauge, or Counter and UpDown for totals that are kept elsewhere. If there is an
  /// instrument of that name, of a second run in this process say, it stays, and `observer` is
  /// never asked.
  void add(Kind kind, Spec spec, Registry::Observer observer);

 private:
  Registry& registry_;
  const std::string scope_;
  std::vector<std::string> names_;
};

/// The registry of this process. Never destroyed, because something may be added until the very
/// end.
Registry& process_registry();

/// What code touches: a cheap handle. Made once and kept, because making one looks its name up;
/// `with` gives the handle of one set of label values, in the order of the keys.
///
///     telemetry::Counter restarts({.name = "job.restarts", .unit = "{restart}"});
///     restarts.add(1);
///
/// A constructor throws std::invalid_argument where Registry::series fails; use it where that is a
/// programming error. Number: std::int64_t for totals in whole numbers, else double.
template <Kind kKind, class Number = double>
class Instrument {
 public:
  explicit Instrument(Spec spec, Registry& registry = process_registry(),
                      std::source_location where = std::source_location::current())
      : registry_(&registry), where_(where), spec_(std::make_shared<const Spec>(std::move(spec))) {
    attach({});
  }
  [[nodiscard]] Instrument with(std::vector<std::string> values) const {
    Instrument other = *this;
    other.attach(std::move(values));
    return other;
  }
  /// False, and nothing is added, for what a counter does not take: values below zero.
  bool add(Number value = 1) const requires(kKind == Kind::Counter || kKind == Kind::UpDown) {
    return series_->count(value);
  }
  void add(double value) const requires(kKind == Kind::Stat || kKind == Kind::Histogram) {
    series_->add(value);
  }
  void set(double value) const requires(kKind == Kind::Gauge) { series_->set(value); }

 private:
  void attach(std::vector<std::string> labels) {
    constexpr bool kWhole = std::is_integral_v<Number>;
    auto made = registry_->series(kKind, kWhole, *spec_, std::move(labels), where_);
    if (!made) throw std::invalid_argument(made.error().text);
    series_ = std::move(*made);
  }
  Registry* registry_;
  std::source_location where_;
  std::shared_ptr<const Spec> spec_;
  std::shared_ptr<Series> series_;
};
using Counter = Instrument<Kind::Counter, std::int64_t>;
using UpDown = Instrument<Kind::UpDown, std::int64_t>;
using Gauge = Instrument<Kind::Gauge>;
using Stat = Instrument<Kind::Stat>;
using Histogram = Instrument<Kind::Histogram>;

}  // namespace elastrun::telemetry
