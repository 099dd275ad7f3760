// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/election/etcd_client.hpp"
#include "rendezvous/election/leader_lease.hpp"

#include <memory>
#include <string>

namespace elastrun::rendezvous {

struct EtcdLeaseSettings {
  EtcdAccess access;
  std::string key;
  std::string record_key;
  Duration ttl = std::chrono::seconds(10);  // TTL of the lease; whole seconds
  Duration record_life =
      std::chrono::seconds(250);  // of that of records, renewed with the other one
};

/// An entry in etcd v3 under a lease. Its epoch is the key's create revision, which etcd itself
/// makes grow from leader to leader.
std::unique_ptr<LeaderLease> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                             EtcdLeaseSettings settings);

}  // namespace elastrun::rendezvous
