// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/role_restarts.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {

RoleRestarts::RoleRestarts(std::string_view names) {
  for (auto& name : split(names, ',')) {
    if (!name.empty()) own_.insert(std::move(name));
  }
}

std::optional<std::string> RoleRestarts::missing_in(const std::set<std::string>& there) const {
  const auto missing =
      std::ranges::find_if(own_, [&](const auto& name) { return !there.contains(name); });
  return missing != own_.end() ? std::optional(*missing) : std::nullopt;
}

bool RoleRestarts::can_restart(const std::string& role, int here) const {
  if (!world_) return false;
  const auto meeting = world_->own.find(role);
  // One that has finished and gone leaves a rank that nothing would start again.
  return meeting != world_->own.end() && meeting->second.nodes == here && !renewals_.contains(role);
}

const RoleRestarts::Renewal* RoleRestarts::find(const std::string& role) const {
  const auto found = renewals_.find(role);
  return found != renewals_.end() ? &found->second : nullptr;
}

void RoleRestarts::came_back(const std::string& role) {
  if (const auto found = renewals_.find(role); found != renewals_.end()) --found->second.missing;
}

void RoleRestarts::extend(const std::string& role, TimePoint until) {
  const auto found = renewals_.find(role);
  if (found != renewals_.end()) found->second.until = std::max(found->second.until, until);
}

void RoleRestarts::stand_still(Duration time) {
  for (auto& [role, renewal] : renewals_) renewal.until += time;
}

std::pair<RoleRestarts::Step, std::string> RoleRestarts::next(TimePoint now, bool held) const {
  std::pair<Step, std::string> due{Step::Wait, {}};
  for (const auto& [role, renewal] : renewals_) {
    const bool ready = renewal.missing <= 0 && now >= renewal.not_before && !held;
    if (ready) {
      due = {Step::Start, role};
    } else if (now >= renewal.until) {
      return {Step::GiveUp, role};
    }
  }
  return due;
}

std::optional<TimePoint> RoleRestarts::deadline(bool held) const {
  std::optional<TimePoint> due;
  for (const auto& [role, renewal] : renewals_) {
    // While held, what is ready must not wake the caller again and again.
    const bool waits = renewal.missing > 0 || held;
    const TimePoint one = waits ? renewal.until : renewal.not_before;
    due = std::min(due.value_or(one), one);
  }
  return due;
}

}  // namespace elastrun::rendezvous
