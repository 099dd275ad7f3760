// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/frame.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

struct ElectedLocatorSettings {
  CoordinatorSettings coordinator;
  spec::RendezvousConfig config;  // advertise, coordinator_port, isolation_timeout
  /// How long the group of a member may take to end once it is to stop (Node::grace), on any node.
  Duration grace{};
};

/// How long a world may be at work without an entitled coordinator, or without a register in reach,
/// and a new coordinator waits for a member of it: isolation_timeout, or as long as its members
/// need at least to notice that, and to stop.
Duration effective_isolation(const ElectedLocatorSettings& settings);

/// Finds the coordinator by its leader lease, or becomes it when there is none (`etcd`, `file`).
///
/// The leader decides only while its lease lasts by its own clock, counted from before it asked for
/// it: when another one can take the lease, the old leader has stopped deciding, even if it was
/// paused meanwhile. Epochs do the rest: agents refuse a coordinator older than one they know.
/// A leader that cannot reach etcd or the file keeps its agents and their running round for
/// isolation_timeout, decides nothing new, and goes on under a new epoch when it is elected again.
///
/// Each world is recorded beside the lease before it is given out. A new coordinator forms none
/// until a member of the recorded one has come back, or the process of its group rank 0 is found to
/// be gone, or it must have stopped by itself.
std::unique_ptr<Locator> make_elected_locator(boost::asio::io_context& loop, Clock& clock,
                                              std::shared_ptr<const net::Sealer> sealer,
                                              std::unique_ptr<LeaderLease> lease,
                                              ElectedLocatorSettings settings);

}  // namespace elastrun::rendezvous
