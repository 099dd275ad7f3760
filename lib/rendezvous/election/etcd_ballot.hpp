// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/election/ballot.hpp"
#include "rendezvous/election/etcd_client.hpp"

#include <memory>
#include <string>

namespace elastrun::rendezvous {

struct EtcdBallotSettings {
  EtcdAccess access;
  std::string key;
  std::string note_key;
  Duration term = std::chrono::seconds(10);        // TTL of the lease; whole seconds
  Duration note_life = std::chrono::seconds(250);  // of that of notes, renewed with the other one
};

/// An entry in etcd v3 under a lease. Its epoch is the key's create revision, which etcd itself
/// makes grow from holder to holder.
std::unique_ptr<Ballot> make_etcd_ballot(boost::asio::io_context& loop, Clock& clock,
                                         EtcdBallotSettings settings);

}  // namespace elastrun::rendezvous
