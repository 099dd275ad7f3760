// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/agent.hpp"
#include "core/clock.hpp"
#include "logs/layout.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/events.hpp"

#include <string>

namespace elastrun::agent {

/// Marks all that this agent starts: ELASTRUN_AGENT_ID.
std::string mark_of_this_agent();
/// TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; zero when unset, not above 0 or no number.
Duration stuck_limit();
telemetry::events::AgentFacts event_facts(const spec::JobSpec& spec,
                                          const rendezvous::Session& session);
/// What this node tells the others of itself.
rendezvous::Node own_node(const spec::JobSpec& spec);
/// `alone`: no other node can take part.
Agent::Settings agent_settings(const spec::JobSpec& spec, const rendezvous::Node& self, bool alone);
/// Whether people see a line that tells how the job stands.
bool shows_status(const spec::JobSpec& spec);
/// Whether output of workers goes to files.
bool keeps_output(const spec::JobSpec& spec);
/// The file with the result that is there after the run; empty if none is.
std::string lasting_report(const spec::JobSpec& spec, const logs::Layout& layout);
/// Whether all output of workers is to pass through the agent: the page shows it, and the watch for
/// hangs takes it for progress.
bool needs_all_output(const spec::JobSpec& spec);

}  // namespace elastrun::agent
