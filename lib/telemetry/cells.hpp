// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/sketch.hpp"

#include <array>
#include <atomic>
#include <cstdint>

/// What threads add to; thread_cells.hpp tells which thread has which.
namespace elastrun::telemetry {

/// What was added between two readings of a sum of whole numbers, though it may have wrapped.
inline std::int64_t rise(std::int64_t from, std::int64_t to) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(to) -
                                   static_cast<std::uint64_t>(from));
}

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
/// previous tick. The collector raises the tick; the writer never reads a clock.
class alignas(64) StatCell {
 public:
  /// `shift`: common to all cells of a series, NaN until one of them sets it to its first value:
  /// squares of distances from it keep their digits.
  void add(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    if (!(value - value == 0)) [[unlikely]] {  // NaN or infinite
      not_finite_.store(not_finite_.load(relaxed) + 1, relaxed);
      return;
    }
    const auto sequence = sequence_.load(relaxed);
    sequence_.store(sequence + 1, relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    if (current_.number.load(relaxed) != tick) [[unlikely]]
      begin_tick(value, tick, shift);
    if (value < current_.min.load(relaxed)) current_.min.store(value, relaxed);
    if (value > current_.max.load(relaxed)) current_.max.store(value, relaxed);
    const double apart = value - shift_.load(relaxed);
    sum_.store(sum_.load(relaxed) + value, relaxed);
    squares_.store(squares_.load(relaxed) + apart * apart, relaxed);
    last_.store(value, relaxed);
    if (SketchCell* const sketch = sketch_.load(std::memory_order_acquire)) sketch->add(value);
    sequence_.store(sequence + 2, std::memory_order_release);
  }
  StatReading read() const;
  void want_sketch(SketchCell* sketch) { sketch_.store(sketch, std::memory_order_release); }
  const SketchCell* sketch() const { return sketch_.load(std::memory_order_acquire); }

 private:
  struct Tick {
    std::atomic<std::uint64_t> number{0}, sequence_before{0};
    std::atomic<double> sum_before{0}, squares_before{0}, min{0}, max{0};
    void operator=(const Tick& other) noexcept;
    StatReading::Tick read() const;
  };
  void begin_tick(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept;

  std::atomic<std::uint64_t> sequence_{0};  // twice the count, odd while it is written to
  std::atomic<double> sum_{0}, squares_{0}, last_{0}, shift_{0};
  std::atomic<SketchCell*> sketch_{nullptr};
  Tick current_;
  std::atomic<std::uint64_t> not_finite_{0};
  Tick previous_;
};

}  // namespace elastrun::telemetry
