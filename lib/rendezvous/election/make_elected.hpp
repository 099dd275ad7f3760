// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/http_call.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::rendezvous {

/// The job's secret: the trimmed text of the file, or `given`. Fails with Usage if the file cannot
/// be read or is empty; warns in the log if others on this machine may read it.
Result<std::string> read_secret(const std::string& file, const std::string& given);

/// Where etcd is and who we are to it.
struct EtcdAccess {
  std::vector<net::Endpoint> endpoints;      // tried in this order, from the last one that answered
  std::shared_ptr<net::TlsClient> tls;       // null: http
  std::string user, password;                // empty: no login
  Duration limit = std::chrono::seconds(5);  // of one request at one endpoint
};

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

/// The leases of the back ends whose coordinator is elected, from what --rdzv-endpoint and
/// --rdzv-conf say. Fail with Usage. Records live twice as long as `isolation`, or as
/// isolation_timeout if that is more.

/// `endpoint`: one or several "[http[s]://]host[:port]", separated by commas. Keys: protocol,
/// ca_cert (cacert), ssl_cert (cert), ssl_cert_key (key), user (username), password or
/// password_file, etcd_prefix, lease_ttl, isolation_timeout.
Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const spec::RendezvousConfig& config,
                                                     Duration isolation = {});
/// `endpoint`: a directory, or a file of the job's own. Empty: a new temporary one (one node only).
Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const spec::RendezvousConfig& config,
                                                     Duration isolation = {});

}  // namespace elastrun::rendezvous
