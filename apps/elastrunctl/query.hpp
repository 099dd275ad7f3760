// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"

#include <string>

namespace elastrun::ctl {

/// Asks a coordinator for the status or for stacks: a StatusText or StacksReport. Seals by the
/// secret, or as the coordinator asks: a cluster's login node has MUNGE, too. Fails with Timeout,
/// Io, Rendezvous or Protocol, and says what that means for the user.
Result<rendezvous::FromCoordinator> ask_coordinator(const net::Endpoint& endpoint,
                                                    const std::string& secret,
                                                    rendezvous::Hello question, Duration limit);

}  // namespace elastrun::ctl
