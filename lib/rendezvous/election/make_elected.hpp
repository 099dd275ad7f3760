// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/election/election.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// The job's secret: the trimmed text of the file, or `given`. Fails with Usage if the file cannot
/// be read or is empty; warns in the log if others on this machine may read it.
Result<std::string> read_secret(const std::string& file, const std::string& given);

/// The leases of the back ends whose coordinator is elected, from what --rdzv-endpoint and
/// --rdzv-conf say. Fail with Usage. Records live twice as long as `isolation`, or as
/// isolation_timeout if that is more. What waits for etcd or a file system happens on a separate
/// thread, so that one that hangs does not delay the loop; nor do the logs, which have another
/// thread, delay a lease.

/// An entry in etcd v3 under a lease. Its epoch is the key's create revision, which etcd itself
/// makes grow from leader to leader.
/// `endpoint`: one or several "[http[s]://]host[:port]", separated by commas. Keys: protocol,
/// ca_cert (cacert), ssl_cert (cert), ssl_cert_key (key), user (username), password or
/// password_file, etcd_prefix, lease_ttl, isolation_timeout.
Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const spec::RendezvousConfig& config,
                                                     Duration isolation = {});
/// An entry in a file that all nodes share.
/// `endpoint`: a directory, or a file of the job's own. Empty: a new temporary one (one node only).
Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const spec::RendezvousConfig& config,
                                                     Duration isolation = {});

}  // namespace elastrun::rendezvous
