// SPDX-License-Identifier: Apache-2.0
#include "agent/web/health.hpp"

#include "core/text.hpp"

#include <fmt/format.h>

namespace elastrun::agent {
namespace {

// A small part of kHealthLimit, so that a single late beat does not make a node unhealthy.
constexpr Duration kBeat = std::chrono::seconds(5);

}  // namespace

std::vector<std::string> ailments(const Vitals& vitals) {
  std::vector<std::string> all;
  if (vitals.since_beat > kHealthLimit) {
    all.push_back(
        fmt::format("the agent's loop stood still for {}", format_duration(vitals.since_beat)));
  }
  if (vitals.overdue && *vitals.overdue > kHealthLimit) {
    all.push_back(fmt::format("a worker lives on {} after one of its timers expired",
                              format_duration(*vitals.overdue)));
  }
  return all;
}

json::object health_json(const Vitals& vitals) {
  const auto why = ailments(vitals);
  json::object text;
  text["status"] = why.empty() ? "ok" : "failing";
  text["why"] = json::array(why.begin(), why.end());
  text["phase"] = vitals.phase;
  text["since_beat_s"] = to_seconds(vitals.since_beat);
  text["timer_overdue_s"] = vitals.overdue ? json::value(to_seconds(*vitals.overdue)) : nullptr;
  text["limit_s"] = to_seconds(kHealthLimit);
  return text;
}

LoopBeat::LoopBeat(Clock& clock) : clock_(clock), last_(clock.now()), alarm_(clock.make_alarm()) {
  alarm_->arm(last_ + kBeat, [this] { beat(); });
}

// An alarm of the loop itself: one that hangs cannot say that it does, but misses its beat.
void LoopBeat::beat() {
  last_ = clock_.now();
  alarm_->arm(last_ + kBeat, [this] { beat(); });
}

}  // namespace elastrun::agent
