// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/gathering.hpp"

#include <algorithm>

namespace elastrun::rendezvous {
namespace {

// Everybody who can come back has: nothing is gained by a last call.
bool all_back(const Rules& rules, const Turnout& turnout) {
  if (turnout.previous_size == 0 || turnout.stopping > 0 || turnout.succession) return false;
  return turnout.returning >= rules.min_nodes ||
         candidates(rules, turnout) >= std::max(turnout.previous_size, rules.min_nodes);
}

// At the end of join_timeout: a last call that still runs is over, and whoever has not come back
// keeps no seat from those who are there.
bool enough_without_stopping(const Rules& rules, Turnout turnout) {
  turnout.stopping = 0;
  return candidates(rules, turnout) >= rules.min_nodes;
}

// After a change of coordinators nobody knows who is still on the way, but the old one's own node
// is the most likely to be gone: with all others there, a short wait is enough.
bool nearly_all_back(const Rules& rules, const Turnout& turnout) {
  return turnout.succession && turnout.returning >= turnout.previous_size - 1 &&
         turnout.returning >= rules.min_nodes;
}

}  // namespace

int candidates(const Rules& rules, const Turnout& turnout) {
  const int free_seats = rules.max_nodes - turnout.returning - turnout.stopping;
  return turnout.returning + std::clamp(turnout.fresh, 0, std::max(free_seats, 0));
}

void Gathering::begin(TimePoint now, TimePoint stopped_by) {
  since_ = now;
  stopped_by_ = stopped_by;
  enough_since_.reset();
}

void Gathering::update(const Rules& rules, const Turnout& turnout, TimePoint now) {
  if (candidates(rules, turnout) < rules.min_nodes) {
    enough_since_.reset();
  } else if (!enough_since_) {
    enough_since_ = now;  // later arrivals do not extend the last call, as in torchrun
  }
}

bool Gathering::may_close(const Rules& rules, const Turnout& turnout, TimePoint now) const {
  const int there = candidates(rules, turnout);
  if (!rules.fixed_ranks && timed_out(rules, turnout, now)) {
    return enough_without_stopping(rules, turnout);
  }
  if (turnout.stopping > 0) return false;
  if (there >= rules.max_nodes) return true;
  if (rules.fixed_ranks || there < rules.min_nodes) return false;
  if (all_back(rules, turnout)) return true;
  if (turnout.succession && turnout.returning >= turnout.previous_size) return true;
  return enough_since_ &&
         now >= *enough_since_ + (nearly_all_back(rules, turnout)
                                      ? std::min(rules.growth_delay, rules.last_call_timeout)
                                      : rules.last_call_timeout);
}

TimePoint Gathering::given_up(const Rules& rules, const Turnout& turnout) const {
  const TimePoint end = since_ + rules.join_timeout;
  return turnout.stopping > 0 ? std::max(end, stopped_by_) : end;
}

std::optional<TimePoint> Gathering::last_call(const Rules& rules) const {
  if (!enough_since_) return std::nullopt;
  return *enough_since_ + rules.last_call_timeout;
}

TimePoint Gathering::deadline(const Rules& rules, const Turnout& turnout) const {
  const TimePoint end = given_up(rules, turnout);
  if (!enough_since_ || turnout.stopping > 0 || rules.fixed_ranks) return end;
  const Duration wait = nearly_all_back(rules, turnout)
                            ? std::min(rules.growth_delay, rules.last_call_timeout)
                            : rules.last_call_timeout;
  // A wait that had begun long ago is over now, not in the past for ever: the caller asks again.
  return std::min(end, *enough_since_ + wait);
}

}  // namespace elastrun::rendezvous
