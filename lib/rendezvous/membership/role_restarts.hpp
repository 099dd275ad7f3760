// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/text.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/membership/world.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::rendezvous {

/// Which roles restart alone when a worker of theirs fails (--role-restart NAME=own), and how far
/// those are that do. Their workers form no process group with others, so that the round goes on
/// around them: with the same members, ranks and number. Whatever ends the round ends these
/// restarts, too: a restart of all nodes always wins. Pure.
class RoleRestarts {
 public:
  /// A role that is starting again.
  struct Renewal {
    Cause cause;               // that was told
    RestartDecision decision;  // about it
    int missing = 0;           // nodes that have not come back
    TimePoint not_before, until;
  };
  enum class Step { Wait, Start, GiveUp };

  /// As AgreedRules::role_restart has them.
  explicit RoleRestarts(std::string_view names) {
    for (auto& name : split(names, ',')) {
      if (!name.empty()) own_.insert(std::move(name));
    }
  }

  bool are_any() const { return !own_.empty(); }
  const OwnRoles& own() const { return own_; }
  /// The name of those that start and stop together: of a role that restarts alone its own, and an
  /// empty one for all others.
  std::string_view unit_of(const std::string& role) const {
    return own_.contains(role) ? std::string_view(role) : std::string_view();
  }
  /// One of them that is not among the roles that are there.
  std::optional<std::string> missing_in(const std::set<std::string>& there) const {
    const auto missing =
        std::ranges::find_if(own_, [&](const auto& name) { return !there.contains(name); });
    return missing != own_.end() ? std::optional(*missing) : std::nullopt;
  }

  /// A round has been given out, or a role in it again.
  void formed(std::shared_ptr<const World> world) { world_ = std::move(world); }
  const std::shared_ptr<const World>& world() const { return world_; }
  /// It has broken up.
  void broken_up() { renewals_.clear(), world_.reset(); }

  /// Whether that role can restart alone now: `here` of its nodes are in the round still.
  bool can_restart(const std::string& role, int here) const {
    if (!world_) return false;
    const auto meeting = world_->own.find(role);
    // One that has finished and gone leaves a rank that nothing would start again.
    return meeting != world_->own.end() && meeting->second.nodes == here &&
           !renewals_.contains(role);
  }
  void begin(const std::string& role, Renewal renewal) { renewals_[role] = std::move(renewal); }
  const Renewal* find(const std::string& role) const {
    const auto found = renewals_.find(role);
    return found != renewals_.end() ? &found->second : nullptr;
  }
  /// A node of it has come back.
  void came_back(const std::string& role) {
    if (const auto found = renewals_.find(role); found != renewals_.end()) --found->second.missing;
  }
  /// A node of it takes until then to stop.
  void extend(const std::string& role, TimePoint until) {
    const auto found = renewals_.find(role);
    if (found != renewals_.end()) found->second.until = std::max(found->second.until, until);
  }
  /// Nothing could be done meanwhile, and nothing is late for that.
  void stand_still(Duration time) {
    for (auto& [role, renewal] : renewals_) renewal.until += time;
  }
  /// It runs again.
  void end(const std::string& role) { renewals_.erase(role); }

  /// What is due, and of which role; GiveUp first. `held`: nothing may be given out.
  std::pair<Step, std::string> next(TimePoint now, bool held) const {
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
  std::optional<TimePoint> deadline(bool held) const {  // of `next`
    std::optional<TimePoint> due;
    for (const auto& [role, renewal] : renewals_) {
      // While held, what is ready must not wake the caller again and again.
      const bool waits = renewal.missing > 0 || held;
      const TimePoint one = waits ? renewal.until : renewal.not_before;
      due = std::min(due.value_or(one), one);
    }
    return due;
  }

 private:
  OwnRoles own_;
  std::shared_ptr<const World> world_;
  std::map<std::string, Renewal> renewals_;
};

}  // namespace elastrun::rendezvous
