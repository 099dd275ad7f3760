// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/join_phase.hpp"

#include <algorithm>

namespace elastrun::rendezvous {
namespace {

// Everybody who can come back has: nothing is gained by a last call.
bool all_back(const Rules& rules, const Quorum& quorum) {
  if (quorum.previous_size == 0 || quorum.stopping > 0 || quorum.succession) return false;
  return quorum.returning >= rules.min_nodes ||
         candidates(rules, quorum) >= std::max(quorum.previous_size, rules.min_nodes);
}

// At the end of join_timeout: a last call that still runs is over, and members that have not come
// back keep no place from those that are there.
bool enough_without_stopping(const Rules& rules, Quorum quorum) {
  quorum.stopping = 0;
  return candidates(rules, quorum) >= rules.min_nodes;
}

// After a change of coordinators it is unknown who is still on the way, but the old one's node is
// the most likely to be gone: with all others there, a short wait is enough.
bool nearly_all_back(const Rules& rules, const Quorum& quorum) {
  return quorum.succession && quorum.returning >= quorum.previous_size - 1 &&
         quorum.returning >= rules.min_nodes;
}

}  // namespace

int candidates(const Rules& rules, const Quorum& quorum) {
  const int free_places = rules.max_nodes - quorum.returning - quorum.stopping;
  return quorum.returning + std::clamp(quorum.fresh, 0, std::max(free_places, 0));
}

void JoinPhase::begin(TimePoint now) {
  since_ = stopped_by_ = now;
  enough_since_.reset();
}

void JoinPhase::update(const Rules& rules, const Quorum& quorum, TimePoint now) {
  if (candidates(rules, quorum) < rules.min_nodes) {
    enough_since_.reset();
  } else if (!enough_since_) {
    enough_since_ = now;  // later arrivals do not extend the last call, as in torchrun
  }
}

bool JoinPhase::may_close(const Rules& rules, const Quorum& quorum, TimePoint now) const {
  const int there = candidates(rules, quorum);
  if (!rules.fixed_ranks && timed_out(rules, quorum, now)) {
    return enough_without_stopping(rules, quorum);
  }
  if (quorum.stopping > 0) return false;
  if (there >= rules.max_nodes) return true;
  if (rules.fixed_ranks || there < rules.min_nodes) return false;
  if (all_back(rules, quorum)) return true;
  if (quorum.succession && quorum.returning >= quorum.previous_size) return true;
  return enough_since_ &&
         now >= *enough_since_ + (nearly_all_back(rules, quorum)
                                      ? std::min(rules.growth_delay, rules.last_call_timeout)
                                      : rules.last_call_timeout);
}

TimePoint JoinPhase::given_up(const Rules& rules, const Quorum& quorum) const {
  const TimePoint end = since_ + rules.join_timeout;
  return quorum.stopping > 0 ? std::max(end, stopped_by_) : end;
}

std::optional<TimePoint> JoinPhase::last_call(const Rules& rules) const {
  if (!enough_since_) return std::nullopt;
  return *enough_since_ + rules.last_call_timeout;
}

TimePoint JoinPhase::deadline(const Rules& rules, const Quorum& quorum) const {
  const TimePoint end = given_up(rules, quorum);
  if (!enough_since_ || quorum.stopping > 0 || rules.fixed_ranks) return end;
  const Duration wait = nearly_all_back(rules, quorum)
                            ? std::min(rules.growth_delay, rules.last_call_timeout)
                            : rules.last_call_timeout;
  // A wait that had begun long ago is over now, not in the past for ever: the caller asks again.
  return std::min(end, *enough_since_ + wait);
}

}  // namespace elastrun::rendezvous
