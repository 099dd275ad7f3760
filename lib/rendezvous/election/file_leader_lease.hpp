// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/election/leader_lease.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace elastrun::rendezvous {

/// An entry in a file that all nodes share. Its leader counts a number in it up while it lives; who
/// sees the number stand still for a TTL and a half, by its own clock, may take it. So clocks of
/// machines are never compared. Changes are made under a lock on a second file (fcntl(2), which NFS
/// passes on to its server), and in place (LeaseFile): a full disk ends no lease.
/// All of that happens on a separate thread, so that a file system that hangs does not delay the
/// loop, and the logs' file system, which has another thread, does not delay the lease.
/// `file` is the entry; its directory must exist and be writable. A record in an entry that is
/// older than ten TTLs and `record_life`, by the clock of the file system, is forgotten.
std::unique_ptr<LeaderLease> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                             std::string file, Duration ttl,
                                             Duration record_life = std::chrono::seconds(250));

/// Where the entry of a job is, if `path` is a directory; `path` itself otherwise.
std::string lease_file(const std::string& path, std::string_view run_id);

}  // namespace elastrun::rendezvous
