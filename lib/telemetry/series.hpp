// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/cells.hpp"
#include "telemetry/descriptor.hpp"
#include "telemetry/exact_windows.hpp"
#include "telemetry/thread_cells.hpp"

#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

namespace elastrun::telemetry {

/// Numbers that only grow, so that who collects takes differences.
struct Totals {
  std::uint64_t count = 0, not_finite = 0;
  double sum = 0, squares = 0;  // of the distances from the series' shift
  std::int64_t whole = 0;       // the sum of a counter of whole numbers
  std::optional<Sketch> sketch{};
};
/// Of a stretch; nothing if `count` is 0.
struct Range {
  std::uint64_t count = 0;
  double min = 0, max = 0, last = 0;
  void merge(const Range& later);
};

/// The values of one instrument under one set of labels. Adding is for all threads; everything else
/// for one at a time: the registry's lock.
class Series {
 public:
  /// What one collector has not had yet.
  struct Cursor {
    Totals base{};
    Range range{};
  };
  virtual ~Series() = default;
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void enable(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  virtual void want_sketch() {}

  /// Ends a tick: totals and range up to now.
  virtual Totals harvest(Range& range) = 0;
  /// What lies between the cursor and `totals`; ranges have been merged into it meanwhile.
  virtual Summary<double> since(const Cursor& cursor, const Totals& totals) const;
  /// Whether its sum is a whole number.
  virtual bool is_whole() const { return false; }

 protected:
  virtual double shift() const { return 0; }
  std::atomic<std::uint64_t> tick_{1};

 private:
  std::atomic<bool> enabled_{true};
};

template <class T>
class CounterSeries final : public Series {
 public:
  /// Returns false for a value below zero, which a counter that only rises does not take.
  bool add(T value, bool may_fall) noexcept {
    if (!enabled()) return true;
    if (!(value >= 0) && !may_fall) [[unlikely]]
      return false;
    cells_->mine().add(value);
    return true;
  }
  Totals harvest(Range& range) override {
    Totals totals;
    T sum{};
    cells_->each([&](const SumCell<T>& cell, std::size_t) {
      const T part = cell.sum.load(std::memory_order_relaxed);
      if constexpr (std::is_integral_v<T>) {
        sum = static_cast<T>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(part));
      } else {
        sum += part;
      }
    });
    if constexpr (std::is_integral_v<T>) totals.whole = sum;
    totals.sum = static_cast<double>(sum);
    range = {};
    return totals;
  }
  /// One value, the increase, or none if there was no increase.
  Summary<double> since(const Cursor& cursor, const Totals& totals) const override {
    Summary<double> summary;
    const double more = is_whole() ? static_cast<double>(rise(cursor.base.whole, totals.whole))
                                   : totals.sum - cursor.base.sum;
    if (more != 0) summary.add(more);
    return summary;
  }
  bool is_whole() const override { return std::is_integral_v<T>; }

 private:
  std::shared_ptr<Cells<SumCell<T>>> cells_ = std::make_shared<Cells<SumCell<T>>>();
};

/// The value that was set last, by whichever thread, or that a passive observer said.
class GaugeSeries final : public Series {
 public:
  /// `is_sum`: the values are totals, as of a counter that is kept elsewhere.
  explicit GaugeSeries(bool is_sum = false) : is_sum_(is_sum) {}
  void set(double value) noexcept {
    if (!enabled()) return;
    value_.store(value, std::memory_order_relaxed);
    if (!known_.load(std::memory_order_relaxed)) known_.store(true, std::memory_order_relaxed);
  }
  void add(double value) noexcept {
    if (!enabled()) return;
    value_.fetch_add(value, std::memory_order_relaxed);
    known_.store(true, std::memory_order_relaxed);
  }
  void forget() noexcept { known_.store(false, std::memory_order_relaxed); }
  Totals harvest(Range& range) override;
  Summary<double> since(const Cursor& cursor, const Totals& totals) const override;

 private:
  const bool is_sum_;
  std::atomic<double> value_{0};
  std::atomic<bool> known_{false};
  std::uint64_t times_ = 0;
  double sum_ = 0;
};

class StatSeries final : public Series {
 public:
  void add(double value) noexcept {
    if (!enabled()) return;
    cells_->mine().add(value, tick_.load(std::memory_order_relaxed), shift_);
    if (auto* const exact = exact_.load(std::memory_order_acquire)) exact->add(value);
  }
  /// From now on each value goes to these windows, too.
  void feed(ExactWindows* exact) { exact_.store(exact, std::memory_order_release); }
  void want_sketch() override;
  Totals harvest(Range& range) override;

 protected:
  double shift() const override;

 private:
  std::shared_ptr<Cells<StatCell>> cells_ = std::make_shared<Cells<StatCell>>();
  std::atomic<double> shift_{std::numeric_limits<double>::quiet_NaN()};
  std::vector<std::uint64_t> seen_;                    // values of each cell that a range covers
  std::vector<std::unique_ptr<SketchCell>> sketches_;  // one for each cell, once wanted
  std::atomic<ExactWindows*> exact_{nullptr};
};

}  // namespace elastrun::telemetry
