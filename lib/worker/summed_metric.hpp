// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "samples.hpp"
#include "summary.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// How many samples this process may still tell one by one in this second: ELASTRUN_SAMPLES, where
/// a sink shows them.
class Singles {
 public:
  bool wanted() const { return most_ > 0; }
  bool take(std::int64_t second) {
    if (second_.exchange(second, std::memory_order_relaxed) != second) {
      left_.store(most_, std::memory_order_relaxed);
    }
    return left_.fetch_sub(1, std::memory_order_relaxed) > 0;
  }
  static Singles& instance() {
    static Singles singles;
    return singles;
  }

 private:
  static std::int64_t given() {
    const char* const text = std::getenv("ELASTRUN_SAMPLES");
    return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  }
  const std::int64_t most_ = given();
  std::atomic<std::int64_t> second_{0}, left_{0};
};
}  // namespace detail

/// Samples of one series, summed up in this process and told to the agent once a second, and one by
/// one where a sink shows that; the last value is in the page at once. For all threads,
/// and cheap enough for an inner loop:
///
///     static elastrun::worker::Metric loss("loss", "model");
///     loss.put(0.5);
///
/// What was put since it was last told goes with the next value of a later second, or at the end of
/// the object. NaN and infinities count in no sum.
class Metric {
 public:
  explicit Metric(std::string name, std::string group = "torchelastic", About about = {})
      : Metric(std::move(name), std::move(group), std::move(about), false) {}
  ~Metric() { flush(); }
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  void put(double value) {
    Page::instance().put(place_, value);
    if (!Channel::instance().configured()) return;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const bool single = !is_histogram_ && detail::Singles::instance().wanted();
    Cell told;
    if (const detail::Turn turn(lock_); settle(turn)) {
      cell_.last = value;
      if (is_histogram_ && !cell_.all.sketch) cell_.all.sketch.emplace();
      cell_.all.add(value);
      if (single) cell_.keep(value, detail::Singles::instance().take(now.tv_sec));
      if (now.tv_sec != second_) told = take(now.tv_sec);
    } else {
      Channel::instance().count_lost();
    }
    tell(told);
  }
  /// Tells now what has not been told.
  void flush() {
    Cell told;
    if (const detail::Turn turn(lock_); settle(turn)) told = take(second_);
    tell(told);
  }

 protected:
  Metric(std::string name, std::string group, About about, bool is_histogram)
      : name_(std::move(name)),
        group_(std::move(group)),
        about_(std::move(about)),
        is_histogram_(is_histogram) {
    if (!is_histogram_) place_ = Page::instance().series(group_, name_);
  }

 private:
  struct Cell {
    double last = 0;  // also one that is not finite
    Summary all{};
    std::uint64_t suppressed = 0;
    std::vector<std::string> single{};  // "TIME,VALUE,STEP", as rows of a packet have them
    void keep(double value, bool there_is_room) {
      if (!there_is_room) {
        ++suppressed;
        return;
      }
      const auto step = detail::last_step.load(std::memory_order_relaxed);
      single.push_back(detail::time_now() + ',' + number(value) +
                       (step < 0 ? std::string() : ',' + std::to_string(step)));
    }
  };

  /// What the parent has not told is the parent's to tell. Its memory is left alone: another thread
  /// may have been changing it.
  bool settle(const detail::Turn& turn) {
    if (turn.stale()) new (&cell_) Cell;
    return static_cast<bool>(turn);
  }
  Cell take(std::int64_t second) {
    second_ = second;
    return std::exchange(cell_, {});
  }
  void tell(const Cell& cell) const {
    const auto& all = cell.all;
    if (all.count + all.not_finite == 0) return;
    // NaN alone makes no histogram, and would be told as another kind of metric of its name.
    if (is_histogram_ && all.count == 0) return Channel::instance().count_lost(all.not_finite);
    tell_single(cell);
    worker::tell([&] {
      std::string packet = R"({"kind":"metric","name":)" + worker::quoted(name_) + R"(,"value":)" +
                           number(cell.last) + R"(,"group":)" + worker::quoted(group_) +
                           detail::step_member(-1) + detail::about_members(about_);
      if (all.count > 1 || is_histogram_) packet += detail::sums_of(all);
      if (is_histogram_) packet += R"(,"type":"histogram")" + all.sketch->members();
      if (!cell.single.empty() || cell.suppressed > 0) packet += R"(,"each":true)";
      if (all.not_finite > 0) packet += R"(,"not_finite":)" + std::to_string(all.not_finite);
      return packet + '}';
    });
  }
  void tell_single(const Cell& cell) const {
    constexpr std::size_t kRows = 150;  // of a packet, which the agent takes up to 16 KiB
    const auto begin = R"({"kind":"samples","series":[[)" + worker::quoted(group_) + ',' +
                       worker::quoted(name_) + ',' + detail::labels_object(about_) + ',' +
                       worker::quoted(detail::cut(about_.unit, 64)) + ',' +
                       worker::quoted(detail::cut(about_.help, 1024)) + "]],\"samples\":[";
    for (std::size_t i = 0; i < cell.single.size() || (i == 0 && cell.suppressed > 0); i += kRows) {
      std::string packet = begin;
      for (std::size_t k = i; k < cell.single.size() && k < i + kRows; ++k) {
        packet += (k == i ? "[0," : ",[0,") + cell.single[k] + ']';
      }
      packet += ']';
      if (i == 0 && cell.suppressed > 0) {
        packet += R"(,"suppressed":{)" + worker::quoted(group_) + ':' +
                  std::to_string(cell.suppressed) + '}';
      }
      worker::tell([&] { return packet + '}'; });
    }
  }

  std::string name_, group_;
  About about_;
  bool is_histogram_;
  std::size_t place_ = 0;
  detail::Lock lock_;  // for what follows
  std::int64_t second_ = 0;
  Cell cell_;
};

/// Values of a histogram, such as the seconds of a step: Prometheus and OTLP see histograms, others
/// count, sum and quantiles within 1.09 %. Told as a Metric is.
class Histogram : public Metric {
 public:
  explicit Histogram(std::string name, std::string group = "torchelastic", About about = {})
      : Metric(std::move(name), std::move(group), std::move(about), true) {}
};

/// Measures from here to its end: BASE.success or, when an exception ends the scope, BASE.failure,
/// then BASE.duration.ms in whole milliseconds, as torchelastic's prof.
class Prof {
 public:
  explicit Prof(std::string base, std::string group = "torchelastic")
      : base_(std::move(base)), group_(std::move(group)) {}
  ~Prof() {
    using std::chrono::milliseconds;
    const auto took = std::chrono::steady_clock::now() - begin_;
    const bool failed = std::uncaught_exceptions() > exceptions_;
    metric(base_ + (failed ? ".failure" : ".success"), 1, group_);
    metric(base_ + ".duration.ms",
           static_cast<double>(std::chrono::duration_cast<milliseconds>(took).count()), group_);
  }
  Prof(const Prof&) = delete;
  Prof& operator=(const Prof&) = delete;

 private:
  std::string base_, group_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace elastrun::worker
