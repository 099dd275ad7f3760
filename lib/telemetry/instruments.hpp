// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

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

template <class Self>
class Instrument {
 public:
  using Labels = std::vector<std::string>;
  /// The same instrument under these label values, in the order of the keys.
  [[nodiscard]] Self with(Labels values) const {
    Self other = static_cast<const Self&>(*this);
    other.attach(std::move(values));
    return other;
  }

 protected:
  Instrument(Kind kind, bool whole, Spec spec, Registry& registry, std::source_location where)
      : registry_(&registry), kind_(kind), whole_(whole), where_(where) {
    spec_ = std::make_shared<const Spec>(std::move(spec));
    attach({});
  }
  Series& series() const { return *series_; }

 private:
  void attach(Labels labels) {
    auto made = registry_->series(kind_, whole_, *spec_, std::move(labels), where_);
    if (!made) throw std::invalid_argument(made.error().text);
    series_ = std::move(*made);
  }

  Registry* registry_;
  Kind kind_;
  bool whole_;
  std::source_location where_;
  std::shared_ptr<const Spec> spec_;
  std::shared_ptr<Series> series_;
};

/// A total. T: std::int64_t or double. A value below zero is not taken unless `Falls`.
template <class T, bool Falls = false>
class Counter : public Instrument<Counter<T, Falls>> {
 public:
  explicit Counter(Spec spec, Registry& registry = process_registry(),
                   std::source_location where = std::source_location::current())
      : Instrument<Counter>(Falls ? Kind::UpDown : Kind::Counter, std::is_integral_v<T>,
                            std::move(spec), registry, where) {}
  /// False, and nothing is added, for a value that is not taken.
  bool add(T value = 1) const { return this->series().count(value); }
};
template <class T>
using UpDown = Counter<T, true>;

/// What holds at the moment.
class Gauge : public Instrument<Gauge> {
 public:
  explicit Gauge(Spec spec, Registry& registry = process_registry(),
                 std::source_location where = std::source_location::current())
      : Instrument(Kind::Gauge, false, std::move(spec), registry, where) {}
  void set(double value) const { series().set(value); }
  void add(double value) const { series().raise(value); }
};

/// Adds the seconds from its construction to its end.
class Timing {
 public:
  explicit Timing(Series& series) : series_(&series), begin_(std::chrono::steady_clock::now()) {}
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
  Series* series_;
  std::chrono::steady_clock::time_point begin_;
};

/// Values that are summarised.
template <Kind kKind>
class Summarised : public Instrument<Summarised<kKind>> {
 public:
  explicit Summarised(Spec spec, Registry& registry = process_registry(),
                      std::source_location where = std::source_location::current())
      : Instrument<Summarised>(kKind, false, std::move(spec), registry, where) {}
  /// NaN and infinities are counted apart.
  void add(double value) const { this->series().add(value); }
  /// Adds the seconds from here to the end of the object, however that comes.
  [[nodiscard]] Timing add_time() const { return Timing(this->series()); }
};
using Stat = Summarised<Kind::Stat>;
using Histogram = Summarised<Kind::Histogram>;

}  // namespace elastrun::telemetry
