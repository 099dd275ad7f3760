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
  // Each cell has a single writer, its thread: this needs no atomic addition, which would lock the
  // bus.
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
  // Relaxed, because this thread alone writes it.
  Count* counts = octave.load(kRelaxed);
  // Octaves are allocated at their first value: most metrics stay within a few of the 512.
  if (counts == nullptr) [[unlikely]] {
    counts = new Count[1 << kSketchScale]();
    // A reader that sees the pointer must see the zeros behind it.
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

void StatCell::Tick::operator=(const Tick& other) noexcept {
  number.store(other.number.load(kRelaxed), kRelaxed);
  sequence_before.store(other.sequence_before.load(kRelaxed), kRelaxed);
  sum_before.store(other.sum_before.load(kRelaxed), kRelaxed);
  squares_before.store(other.squares_before.load(kRelaxed), kRelaxed);
  min.store(other.min.load(kRelaxed), kRelaxed);
  max.store(other.max.load(kRelaxed), kRelaxed);
}

StatReading::Tick StatCell::Tick::read() const {
  return {number.load(kRelaxed),     sequence_before.load(kRelaxed) / 2,
          sum_before.load(kRelaxed), squares_before.load(kRelaxed),
          min.load(kRelaxed),        max.load(kRelaxed)};
}

void StatCell::begin_tick(double value, std::uint64_t tick, std::atomic<double>& shift) noexcept {
  // The first value of any thread is the shift of all: squares of differences from it keep their
  // digits where the mean is large against the spread.
  double common = shift.load(kRelaxed);
  if (std::isnan(common) && shift.compare_exchange_strong(common, value, kRelaxed)) common = value;
  shift_.store(common, kRelaxed);
  // A harvest that meets a writer in the next tick still needs the range of the one before.
  previous_ = current_;
  current_.number.store(tick, kRelaxed);
  current_.sequence_before.store(sequence_.load(kRelaxed), kRelaxed);
  current_.sum_before.store(sum_.load(kRelaxed), kRelaxed);
  current_.squares_before.store(squares_.load(kRelaxed), kRelaxed);
  current_.min.store(value, kRelaxed);
  current_.max.store(value, kRelaxed);
}

StatReading StatCell::read() const {
  StatReading reading;
  for (int i = 0; i < kTries; ++i) {
    const auto before = sequence_.load(std::memory_order_acquire);
    reading = {before / 2,           not_finite_.load(kRelaxed),
               sum_.load(kRelaxed),  squares_.load(kRelaxed),
               last_.load(kRelaxed), current_.read(),
               previous_.read()};
    std::atomic_thread_fence(std::memory_order_acquire);
    // The sequence is odd while the writer is within add().
    if (before % 2 == 0 && sequence_.load(kRelaxed) == before) break;
    // The writer may have been preempted on this very processor: it has to run to get out of add().
    std::this_thread::yield();
  }
  return reading;
}

}  // namespace elastrun::telemetry
