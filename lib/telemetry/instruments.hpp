// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <exception>
#include <stdexcept>
#include <type_traits>
#include <utility>

/// What code touches: cheap handles that may be copied and used by all threads. Made once and kept,
/// because making one looks its name up; `with` gives the handle of one set of label values.
///
///     telemetry::Counter<std::int64_t> restarts({.name = "job.restarts", .unit = "{restart}"});
///     restarts.add();
///
/// A constructor throws std::invalid_argument where Registry::series fails; use it where that is a
/// programming error.
namespace elastrun::telemetry {

template <class SeriesType>
class Instrument {
 public:
  using Labels = std::vector<std::string>;

 protected:
  using Make = std::shared_ptr<Series> (*)();
  Instrument(Kind kind, const char* type, Make make, Registry& registry, Spec spec, Labels labels,
             std::source_location where)
      : registry_(&registry), kind_(kind), type_(type), make_(make), where_(where) {
    spec_ = std::make_shared<const Spec>(std::move(spec));
    attach(std::move(labels));
  }
  void attach(Labels labels) {
    auto made = registry_->series(kind_, type_, *spec_, std::move(labels), make_, where_);
    if (!made) throw std::invalid_argument(made.error().text);
    series_ = std::static_pointer_cast<SeriesType>(std::move(*made));
  }
  SeriesType* series() const { return series_.get(); }

 private:
  Registry* registry_;
  Kind kind_;
  const char* type_;
  Make make_;
  std::source_location where_;
  std::shared_ptr<const Spec> spec_;
  std::shared_ptr<SeriesType> series_;
};

/// Adds `with` to an instrument of type Self.
template <class Self, class SeriesType>
class Labelled : public Instrument<SeriesType> {
 public:
  using typename Instrument<SeriesType>::Labels;
  /// The same instrument under these label values, in the order of the keys.
  [[nodiscard]] Self with(Labels values) const {
    Self other = static_cast<const Self&>(*this);
    other.attach(std::move(values));
    return other;
  }

 protected:
  using Instrument<SeriesType>::Instrument;
};

/// A total. T: std::int64_t or double. A value below zero is not taken unless `Falls`.
template <class T, bool Falls = false>
class Counter : public Labelled<Counter<T, Falls>, CounterSeries<T>> {
 public:
  explicit Counter(Spec spec, Registry& registry = process_registry(),
                   std::source_location where = std::source_location::current())
      : Labelled<Counter, CounterSeries<T>>(
            Falls ? Kind::UpDown : Kind::Counter, std::is_integral_v<T> ? "whole" : "real",
            []() -> std::shared_ptr<Series> { return std::make_shared<CounterSeries<T>>(); },
            registry, std::move(spec), {}, where) {}
  /// False, and nothing is added, for a value that is not taken.
  bool add(T value = 1) const noexcept { return this->series()->add(value, Falls); }
};
template <class T>
using UpDown = Counter<T, true>;

/// What holds at the moment.
class Gauge : public Labelled<Gauge, GaugeSeries> {
 public:
  explicit Gauge(Spec spec, Registry& registry = process_registry(),
                 std::source_location where = std::source_location::current())
      : Labelled(
            Kind::Gauge, "set",
            []() -> std::shared_ptr<Series> { return std::make_shared<GaugeSeries>(); }, registry,
            std::move(spec), {}, where) {}
  void set(double value) const noexcept { series()->set(value); }
  void add(double value) const noexcept { series()->add(value); }
};

class Timing;

/// Values that are summarised.
template <Kind kKind>
class Summarised : public Labelled<Summarised<kKind>, StatSeries> {
 public:
  explicit Summarised(Spec spec, Registry& registry = process_registry(),
                      std::source_location where = std::source_location::current())
      : Labelled<Summarised, StatSeries>(
            kKind, "values",
            []() -> std::shared_ptr<Series> { return std::make_shared<StatSeries>(); }, registry,
            std::move(spec), {}, where) {}
  /// NaN and infinities are counted apart.
  void add(double value) const noexcept { this->series()->add(value); }
  /// Adds the seconds from here to the end of the object, however that comes.
  [[nodiscard]] Timing add_time() const;
};
using Stat = Summarised<Kind::Stat>;
using Histogram = Summarised<Kind::Histogram>;

class Timing {
 public:
  explicit Timing(StatSeries& series)
      : series_(&series), begin_(std::chrono::steady_clock::now()) {}
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
  ~Timing() {
    if (series_ == nullptr) return;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    series_->add(took.count());
  }
  /// Adds nothing after all.
  void cancel() { series_ = nullptr; }

 private:
  StatSeries* series_;
  std::chrono::steady_clock::time_point begin_;
};

template <Kind kKind>
Timing Summarised<kKind>::add_time() const {
  return Timing(*this->series());
}

}  // namespace elastrun::telemetry
