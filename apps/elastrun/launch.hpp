// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/guardian.hpp"

namespace elastrun {

/// The program elastrun as a function, for a launcher that adds something to it. What main has
/// registered before (rendezvous::register_rendezvous_handler, telemetry::events::register_handler)
/// can be named in --rdzv-backend and --event-log-handler, in their variables and in the job file;
/// handlers of telemetry::metrics::configure get the agent's metrics.
///
/// Forks at once (guardian::split) and goes on in the child: so let main do nothing
/// but register before. The exit code.
int launch(int argc, char** argv);
/// Runs launch() in a process that has forked its guardian already.
int launch(guardian::Agent& guardian, int argc, char** argv);

}  // namespace elastrun
