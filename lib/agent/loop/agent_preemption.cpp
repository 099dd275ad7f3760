// SPDX-License-Identifier: Apache-2.0
// What an agent does in a preemption. The rest is in agent.cpp.
#include "agent/loop/agent.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <csignal>

namespace elastrun::agent {
namespace {

constexpr std::string_view kPreemptionArea = "agent";

}  // namespace

void Agent::perform(const TellPreempt& action) {
  log::warning(kPreemptionArea, "Preempted ({}): the workers are to save and end within {}",
               action.why, format_duration(action.deadline));
  parts_.session.report(rendezvous::AskPreempt{action.why, action.deadline});
}

void Agent::perform(const TellReached&) {
  if (parts_.saving != nullptr) return parts_.saving->answer();
  parts_.session.report(rendezvous::Reached{.round = round_ ? round_->number : 0});
}

void Agent::perform(const TellSaved&) {
  // Whatever they ended with, the coordinator waits for no more from them.
  parts_.session.report(rendezvous::Succeeded{round_->number});
}

void Agent::perform(const SaveGroup& action) {
  if (parts_.saving != nullptr) parts_.saving->order(action.order);
  if (!action.order.by_signal) return;
  begin_stop();
  group_->stop(SIGTERM, action.order.left);
}

}  // namespace elastrun::agent
