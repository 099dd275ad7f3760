// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "packet.hpp"
#include "summary.hpp"
#include "written_page.hpp"

#include <atomic>
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

}  // namespace elastrun::worker
