// SPDX-License-Identifier: Apache-2.0
// What an agent tells and keeps of restarts; what it does, NodePolicy says.
#include "agent/loop/agent.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <string>
#include <string_view>

namespace elastrun::agent {
namespace {

constexpr std::string_view kLogArea = "agent";

std::string cost_text(const rendezvous::Restart& restart) {
  if (!restart.attempt_spent) return " (this spends no restart)";
  const int left = restart.restarts_left;
  auto text = fmt::format(", {} restart{} left", left, left == 1 ? "" : "s");
  if (restart.delay <= Duration::zero()) return text;
  return text + ", the next start in " + format_duration(restart.delay);
}

}  // namespace

void Agent::observe(const rendezvous::Restart& restart) {
  // While it joins, a round that this node never started has ended.
  const bool joining = policy_.phase() == Phase::Joining;
  // By the round's attempt, not by counting: a node that came later has missed restarts. But where
  // roles restart alone more may have been spent than when this round began.
  const bool as_told = !joining && round_ && !round_->is_divided();
  if (restart.attempt_spent) result_.restarts = (as_told ? round_->attempt : result_.restarts) + 1;
  result_.restarts_left = restart.restarts_left;
  const bool ours = restart.is_for(settings_.self.role);
  // Not "restarting": where a scheduler ends the whole job, our own signal is on its way.
  const auto doing = !ours ? "Going on; stopping" : joining ? "Not starting" : "Stopping";
  const auto whose = restart.role.empty() ? "" : " of the role " + printable(restart.role);
  log::warning(kLogArea, "{} the workers{}{}: {}", doing, whose, cost_text(restart),
               restart.cause.text);
  if (!restart.cause.rule.empty()) log::info(kLogArea, "By {}", restart.cause.rule);
  if (ours) {
    note_cause(restart);
    return parts_.observer.restarting(restart);
  }
  memory_.keep(restart.memory, parts_.clock.now());
  result_.note_role_restart({restart.role, parts_.clock.wall(), restart.cause});
  parts_.observer.role_restarting(restart);
}

/// The first one counts: what comes later follows from it.
void Agent::note_cause(const rendezvous::Restart& restart) {
  memory_.keep(restart.memory, parts_.clock.now());
  if (!result_.attempts.empty() && !result_.attempts.back().cause) {
    result_.attempts.back().cause = restart.cause;
    result_.attempts.back().delay = restart.delay;
  }
}

}  // namespace elastrun::agent
