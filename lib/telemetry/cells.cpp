// SPDX-License-Identifier: Apache-2.0
#include "telemetry/cells.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

namespace elastrun::telemetry {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kLowestOctave = -128;
// A writer that was preempted in the middle is waited for this often; then its numbers are taken as
// they are, and the sum may be one value ahead of the count.
constexpr int kTries = 1000;

template <class T>
void increase(std::atomic<T>& number, T by) {
  number.store(number.load(kRelaxed) + by, kRelaxed);
}

}  // namespace

SketchCell::~SketchCell() {
  for (const auto* octaves : {&positive_, &negative_}) {
    for (const auto& octave : *octaves) delete[] octave.load(kRelaxed);
  }
}

void SketchCell::add(double value) noexcept {
  if (value == 0) {
    increase(zeros_, std::uint64_t{1});
    return;
  }
  const int index = bucket_of(std::abs(value));
  const int place = std::clamp((index >> kSketchScale) - kLowestOctave, 0, 255);
  auto& octave = (value < 0 ? negative_ : positive_)[static_cast<std::size_t>(place)];
  Count* counts = octave.load(kRelaxed);
  if (counts == nullptr) [[unlikely]] {
    counts = new Count[1 << kSketchScale]();
    octave.store(counts, std::memory_order_release);
  }
  increase(counts[index & ((1 << kSketchScale) - 1)], std::uint64_t{1});
}

void SketchCell::read(Sketch& into) const {
  into.add_zeros(zeros_.load(kRelaxed));
  for (const auto* octaves : {&positive_, &negative_}) {
    for (int place = 0; place < 256; ++place) {
      const Count* counts =
          (*octaves)[static_cast<std::size_t>(place)].load(std::memory_order_acquire);
      if (counts == nullptr) continue;
      for (int i = 0; i < 1 << kSketchScale; ++i) {
        into.add_bucket(((place + kLowestOctave) << kSketchScale) + i, counts[i].load(kRelaxed),
                        octaves == &negative_);
      }
    }
  }
}

void StatCell::begin_tick(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept {
  double common = shift.load(kRelaxed);
  if (std::isnan(common) && shift.compare_exchange_strong(common, value, kRelaxed)) common = value;
  shift_.store(common, kRelaxed);
  Tick* const old = current_.load(kRelaxed);
  Tick* const next = old == &ticks_[0] ? &ticks_[1] : &ticks_[0];
  next->number.store(tick, kRelaxed);
  next->count_before.store(count_.load(kRelaxed), kRelaxed);
  next->sum_before.store(sum_.load(kRelaxed), kRelaxed);
  next->squares_before.store(squares_.load(kRelaxed), kRelaxed);
  next->min.store(value, kRelaxed);
  next->max.store(value, kRelaxed);
  current_.store(next, kRelaxed);
}

void StatCell::add(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept {
  if (!(value - value == 0)) [[unlikely]] {  // NaN or infinite
    increase(not_finite_, std::uint64_t{1});
    return;
  }
  const auto sequence = sequence_.load(kRelaxed);
  sequence_.store(sequence + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  Tick* now = current_.load(kRelaxed);
  if (now->number.load(kRelaxed) != tick) [[unlikely]] {
    begin_tick(value, tick, shift);
    now = current_.load(kRelaxed);
  } else {
    if (value < now->min.load(kRelaxed)) now->min.store(value, kRelaxed);
    if (value > now->max.load(kRelaxed)) now->max.store(value, kRelaxed);
  }
  const double apart = value - shift_.load(kRelaxed);
  increase(count_, std::uint64_t{1});
  increase(sum_, value);
  increase(squares_, apart * apart);
  last_.store(value, kRelaxed);
  if (SketchCell* const sketch = sketch_.load(std::memory_order_acquire)) sketch->add(value);
  sequence_.store(sequence + 2, std::memory_order_release);
}

StatReading::Tick StatCell::read(const Tick& tick) {
  return {tick.number.load(kRelaxed),     tick.count_before.load(kRelaxed),
          tick.sum_before.load(kRelaxed), tick.squares_before.load(kRelaxed),
          tick.min.load(kRelaxed),        tick.max.load(kRelaxed)};
}

StatReading StatCell::read() const {
  StatReading reading;
  for (int i = 0; i < kTries; ++i) {
    const auto before = sequence_.load(std::memory_order_acquire);
    const Tick* const current = current_.load(kRelaxed);
    const Tick* const previous = current == &ticks_[0] ? &ticks_[1] : &ticks_[0];
    reading = {count_.load(kRelaxed),   not_finite_.load(kRelaxed), sum_.load(kRelaxed),
               squares_.load(kRelaxed), last_.load(kRelaxed),       read(*current),
               read(*previous)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && sequence_.load(kRelaxed) == before) break;
    std::this_thread::yield();
  }
  return reading;
}

}  // namespace elastrun::telemetry
