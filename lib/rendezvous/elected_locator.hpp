// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/seal.hpp"
#include "rendezvous/ballot.hpp"
#include "rendezvous/coordinator.hpp"
#include "rendezvous/locator.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

struct ElectedLocatorSettings {
  Coordinator::Settings coordinator;
  std::string advertise;                        // address for others; empty: found out
  std::uint16_t first_port = 0, last_port = 0;  // to listen on; 0-0: any
};

/// Finds the coordinator in a ballot, or becomes it when nobody is (`etcd`, `file`).
///
/// The holder decides only while its term lasts by its own clock, counted from before it asked for
/// it: so when the ballot lets another one in, the old one has stopped deciding, even if it was
/// paused meanwhile. Epochs do the rest: agents refuse a coordinator older than one they know.
/// A holder whose ballot is out of reach keeps its agents and their running round, decides nothing
/// new, and goes on under a new epoch when it is elected again.
std::unique_ptr<Locator> make_elected_locator(boost::asio::io_context& loop, Clock& clock,
                                              std::shared_ptr<const net::Sealer> sealer,
                                              std::unique_ptr<Ballot> ballot,
                                              ElectedLocatorSettings settings);

}  // namespace elastrun::rendezvous
