// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/sketch.hpp"

#include <array>
#include <atomic>
#include <cstdint>

/// What threads add to; thread_cells.hpp tells which thread has which.
namespace elastrun::telemetry {

/// One writer at a time; anybody reads.
template <class T>
struct alignas(64) SumCell {
  std::atomic<T> sum{};

  void add(T value) noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    if constexpr (std::is_floating_point_v<T>) {
      sum.store(sum.load(relaxed) + value, relaxed);
    } else {  // wraps instead of being undefined; differences stay right
      using Bits = std::make_unsigned_t<T>;
      sum.store(static_cast<T>(static_cast<Bits>(sum.load(relaxed)) + static_cast<Bits>(value)),
                relaxed);
    }
  }
};

/// A sketch that one thread writes while others read. Takes 2^-128 to 2^128 and their negatives
/// with the sketch's bound; what is smaller or larger counts as in the outermost octave.
class SketchCell {
 public:
  ~SketchCell();
  void add(double value) noexcept;
  void read(Sketch& into) const;

 private:
  using Count = std::atomic<std::uint64_t>;
  using Octaves = std::array<std::atomic<Count*>, 256>;  // 32 counts each, made when needed
  Octaves positive_{}, negative_{};
  Count zeros_{0};
};

/// What a StatCell holds at one moment, and how its current and previous tick began.
struct StatReading {
  struct Tick {
    std::uint64_t number = 0, count_before = 0;
    double sum_before = 0, squares_before = 0, min = 0, max = 0;
  };
  std::uint64_t count = 0, not_finite = 0;
  double sum = 0, squares = 0, last = 0;
  Tick current, previous;
};

/// Count, sum, squares and last value since the start, smallest and largest of the current and the
/// previous tick. Whoever collects raises the tick; the writer never reads a clock.
class alignas(64) StatCell {
 public:
  /// `shift`: common to all cells of a series, NaN until one of them sets it to its first value:
  /// squares of distances from it keep their digits.
  void add(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept;
  StatReading read() const;
  void want_sketch(SketchCell* sketch) { sketch_.store(sketch, std::memory_order_release); }
  const SketchCell* sketch() const { return sketch_.load(std::memory_order_acquire); }

 private:
  struct Tick {
    std::atomic<std::uint64_t> number{0}, count_before{0};
    std::atomic<double> sum_before{0}, squares_before{0}, min{0}, max{0};
  };
  void begin_tick(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept;
  static StatReading::Tick read(const Tick& tick);

  std::atomic<std::uint64_t> sequence_{0}, count_{0};  // odd while it is written to
  std::atomic<double> sum_{0}, squares_{0}, last_{0}, shift_{0};
  std::atomic<Tick*> current_{&ticks_[0]};
  std::atomic<SketchCell*> sketch_{nullptr};
  std::array<Tick, 2> ticks_{};
  std::atomic<std::uint64_t> not_finite_{0};
};

}  // namespace elastrun::telemetry
