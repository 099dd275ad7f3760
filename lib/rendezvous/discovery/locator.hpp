// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "net/endpoint.hpp"
#include "net/frame.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/election/election.hpp"
#include "spec/rendezvous_config.hpp"
#include "store/server.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace elastrun::rendezvous {

/// Where the coordinator of a job is.
struct Place {
  net::Endpoint endpoint;
  std::int64_t epoch = 0;  // of its election; 0 without an election
  bool here = false;       // in this process
};

/// How the agents of a job find, or become, its coordinator. The only thing in which the dynamic
/// back ends differ.
class Locator {
 public:
  virtual ~Locator() = default;

  /// Answers once on the loop, never inside this call. May make this process the host, if it is its
  /// turn. Fails with Usage or Rendezvous if a retry is useless, with another code if it may help.
  virtual void locate(Answer<Place> answer) = 0;
  /// The coordinator at that place has taken us in.
  virtual void accept(const Place&) {}
  /// That place does not answer: give another one as soon as possible; the same one only now and
  /// then, in case it comes back.
  virtual void reject(const Place&) {}
  /// What this node knows of its job: the highest epoch, which any later coordinator's must exceed,
  /// and the size of its world, for as many agents look for that one at the same time.
  virtual void learn(std::int64_t /*epoch*/, int /*nodes*/) {}
  /// Takes the answer away.
  virtual void cancel() = 0;
  /// Whether another coordinator takes the place of one that was lost.
  virtual bool elects() const = 0;
  /// Runs `moved` on the loop when a newer coordinator is known than the one located last.
  virtual void on_moved(Then) {}
  /// Workers of this node's store may come through the host's port.
  virtual void share_store(const store::Stores&) {}
  /// Whether this process is the host, and agents of other nodes are connected to it.
  virtual bool serves_others() const { return false; }
  /// Stops being the host, if it is one (Host::retire); `retired` runs on the loop.
  virtual void retire(const std::string& why, Duration limit, Then retired) = 0;
};

/// The coordinator of an endpoint that the user has given (`c10d`, `static`).
struct FixedLocatorSettings {
  net::Endpoint endpoint;
  /// Nothing: this process hosts if the endpoint is an address of this machine and its port is
  /// free; compared by interface addresses, never by names.
  std::optional<bool> is_host;
  CoordinatorSettings coordinator;
};

std::unique_ptr<Locator> make_fixed_locator(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            FixedLocatorSettings settings);

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
