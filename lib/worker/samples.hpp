// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "summary.hpp"
#include "written_page.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
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

namespace detail {
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
}  // namespace detail

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

}  // namespace elastrun::worker
