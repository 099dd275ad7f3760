// SPDX-License-Identifier: Apache-2.0
// What an agent does in a preemption. The rest is in agent.cpp.
#include "agent/loop/agent.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <csignal>

namespace elastrun::agent {
namespace {

constexpr std::string_view kPreemptionArea = "agent";
// The coordinator answers at once, and tells the step when all nodes have answered it. A spot
// instance has 30 s.
constexpr Duration kTimeToHear = std::chrono::seconds(3);

}  // namespace

void Agent::perform(const TellPreempt& action) {
  log::warning(kPreemptionArea, "Preempted ({}): the workers are to save and end within {}",
               action.why, format_duration(action.deadline));
  parts_.session.report(rendezvous::AskPreempt{action.why, action.deadline});
  const auto until = parts_.clock.now() + action.deadline;
  unheard_->arm(std::min(parts_.clock.now() + kTimeToHear, until), [this, until] {
    const auto left = std::max(until - parts_.clock.now(), Duration::zero());
    // A script that never looks at its page hears of the save by a signal alone.
    const bool looks = parts_.saving != nullptr && parts_.saving->looks();
    post(PreemptUnheard{{.step = -1, .left = left, .by_signal = !looks}});
  });
}

void Agent::perform(const TellReached&) {
  if (parts_.saving != nullptr) return parts_.saving->answer();
  parts_.session.report(rendezvous::Reached{.round = round_ ? round_->number : 0});
}

void Agent::perform(const TellSaved&) {
  // Who ends behind its save has told that before.
  if (parts_.catch_up) parts_.catch_up();
  // Whatever they ended with, the coordinator waits for no more from them.
  parts_.session.report(rendezvous::Succeeded{round_->number});
}

void Agent::perform(const SaveGroup& action) {
  if (parts_.saving != nullptr) parts_.saving->order(action.order);
  leave_.begin(action.order.left);
  // The workers read the order from their pages.
  if (!action.order.by_signal) return;
  begin_stop();
  group_->stop(SIGTERM, action.order.left);
}

void Agent::perform(const ArmLeave&) {
  leave_.saved();
}

}  // namespace elastrun::agent
