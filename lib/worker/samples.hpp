// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "summary.hpp"
#include "written_page.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// The last training step that has ended here, as a member of a metric's packet.
inline std::atomic<std::int64_t> last_step{-1};

inline std::string step_member(std::int64_t step) {
  if (step < 0) step = last_step.load(std::memory_order_relaxed);
  return step < 0 ? std::string() : R"(,"step":)" + std::to_string(step);
}
}  // namespace detail

/// Training step `number` has ended. Say it on rank 0 at least.
inline void step(std::int64_t number) {
  detail::last_step.store(number, std::memory_order_relaxed);
  tell([=] { return R"({"kind":"step","step":)" + std::to_string(number) + "}"; });
  Page::instance().step(number);
}

/// What tells series of one name apart (at most 16 labels, of one name always the same keys), and
/// what they are: a unit (UCUM: "s", "By", "{token}") and a sentence.
///
///     elastrun::worker::metric("norm", 0.5, "model", -1, {{{"layer", "3"}}, "1", "Gradients."});
struct About {
  std::vector<std::pair<std::string, std::string>> labels{};
  std::string unit{}, help{};
};

namespace detail {
inline std::string labels_object(const About& about) {
  std::string object = "{";
  for (const auto& [key, value] : about.labels) {
    if (object.size() > 1) object += ',';
    object += worker::quoted(cut(key, 256)) + ':' + worker::quoted(cut(value, 256));
  }
  return object + '}';
}

/// As members of a packet, with a comma before each.
inline std::string about_members(const About& about) {
  std::string members;
  if (!about.labels.empty()) members += R"(,"labels":)" + labels_object(about);
  if (!about.unit.empty()) members += R"(,"unit":)" + worker::quoted(cut(about.unit, 64));
  if (!about.help.empty()) members += R"(,"help":)" + worker::quoted(cut(about.help, 1024));
  return members;
}

/// Count, sum and extremes, as members of a packet with a comma before each.
inline std::string sums_of(const Summary& all) {
  return R"(,"count":)" + std::to_string(all.count) + R"(,"sum":)" + number(all.sum) +
         R"(,"min":)" + number(all.min) + R"(,"max":)" + number(all.max);
}

/// What this process is about, and until when it may be, if that was said: else max().
struct EnteredPhase {
  using Clock = std::chrono::steady_clock;
  std::string name = "train";
  Clock::time_point until = Clock::time_point::max();
};

/// As it last said.
struct LastPhase {
  Lock lock{};  // for what follows
  std::size_t size = 0;
  char name[256] = {};  // the agent takes no more
  EnteredPhase::Clock::time_point until{};
};
inline LastPhase last_phase;

/// Returns the one before.
inline EnteredPhase enter_phase(std::string_view name, EnteredPhase::Clock::time_point until) {
  const auto known = cut(name, sizeof last_phase.name);
  EnteredPhase before;
  // No turn: a signal has come within this very call.
  if (const Turn turn(last_phase.lock); turn) {
    auto& last = last_phase;
    if (last.size > 0 && !turn.stale()) before = {std::string(last.name, last.size), last.until};
    last.size = known.copy(last.name, sizeof last.name);
    last.until = until;
  }
  Page::instance().phase(name);
  if (!Channel::instance().configured()) return before;
  std::string packet = R"({"kind":"phase","phase":)" + worker::quoted(known);
  if (until != EnteredPhase::Clock::time_point::max()) {
    const std::chrono::duration<double> left = until - EnteredPhase::Clock::now();
    packet += R"(,"at_most":)" + number(left.count() > 0.001 ? left.count() : 0.001);
  }
  // One that is lost would make a hang of an evaluation, or hide one.
  Channel::instance().send_surely(packet + '}');
  return before;
}

/// 0, or an invalid time: not said.
inline EnteredPhase::Clock::time_point end_after(std::chrono::duration<double> at_most) {
  constexpr double kLongest = 1e9;  // seconds; more does not fit the clock's nanoseconds
  if (!(at_most.count() > 0)) return EnteredPhase::Clock::time_point::max();
  const std::chrono::duration<double> bounded(at_most.count() < kLongest ? at_most.count()
                                                                         : kLongest);
  return EnteredPhase::Clock::now() +
         std::chrono::duration_cast<EnteredPhase::Clock::duration>(bounded);
}

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

/// Whether the job is to save now, because it will be ended: asked after each step, with its
/// number, all ranks hear true at the same one. Save then, tell checkpoint_done(), and return.
inline bool should_save(std::int64_t step = -1) {
  return Page::instance().should_save(step);
}

/// Something countable (tokens, samples, retries) has grown by `amount`, which is not below 0: the
/// agent adds it up, over restarts, and Prometheus and others see a counter. A packet for each.
inline void count(std::string_view name, double amount = 1, std::string_view group = "worker",
                  const About& about = {}) {
  tell([&] {
    return R"({"kind":"metric","type":"counter","name":)" + worker::quoted(name) + R"(,"value":)" +
           number(amount) + R"(,"group":)" + worker::quoted(group) + detail::about_members(about) +
           "}";
  });
}

/// A checkpoint that holds everything up to `step` is safe on disk; -1: everything so far.
inline void checkpoint_done(std::int64_t step = -1) {
  tell([=] { return R"({"kind":"checkpoint","step":)" + std::to_string(step) + "}"; });
}

/// One sample of a number, in a metric group as in torchelastic's put_metric. A packet for each:
/// for many samples there is Metric. It is one of training step `step`; below 0: of the last one
/// that this process has told by step().
inline void metric(std::string_view name, double value, std::string_view group = "worker",
                   std::int64_t step = -1, const About& about = {}) {
  tell([&] {
    return R"({"kind":"metric","name":)" + worker::quoted(name) + R"(,"value":)" + number(value) +
           R"(,"group":)" + worker::quoted(group) + detail::step_member(step) +
           detail::about_members(about) + "}";
  });
  Page::instance().put(Page::instance().series(group, name), value);
}

/// From now on this process does something else than training steps ("eval"), and may take its
/// time for it: hang detection waits until it says "train". After `at_most` it waits no longer;
/// without it, after a time that it learns from earlier phases of that name (elastrun-timers(7)).
inline void phase(std::string_view name, std::chrono::duration<double> at_most = {}) {
  detail::enter_phase(name, detail::end_after(at_most));
}
/// The same until the end of a block, then what it was before, "train" mostly:
///
///     elastrun::worker::Phase eval("eval", std::chrono::minutes(30));
class Phase {
 public:
  explicit Phase(std::string_view name, std::chrono::duration<double> at_most = {})
      : before_(detail::enter_phase(name, detail::end_after(at_most))) {}
  ~Phase() { detail::enter_phase(before_.name, before_.until); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  const detail::EnteredPhase before_;
};

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
