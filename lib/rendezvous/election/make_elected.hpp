// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/election/election.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// What the file of a lease says. No value: it is free, but epochs go on from here.
struct LeaseRecord {
  std::string value;
  std::int64_t epoch = 0;
  std::int64_t heartbeat = 0;
  double renewed = 0;  // wall clock of the leader, for people
  std::string record{};
  bool operator==(const LeaseRecord&) const = default;
};

/// The file of a lease: two slots of one size, written in turn, in place, each with a version and a
/// checksum. A reader that holds no lock takes the newer one that is whole: one of them always is,
/// also when a writer has died within a write. And a file system without any space left still takes
/// what is written over blocks that are there, as long as it does not copy on write.
///
/// Each slot is one line of JSON, so people can read them. Calls wait for the file system.
class LeaseFile {
 public:
  explicit LeaseFile(std::string path) : path_(std::move(path)) {}

  /// A file that is not there or empty is a record without a value. Fails with Usage if it is
  /// something else.
  Result<LeaseRecord> read() const;
  /// The same, as it is at the file server, under the lock of the writers.
  Result<LeaseRecord> read_locked();
  /// After `read_locked`, under the same lock. Fails with Io.
  Status write(const LeaseRecord& record);
  /// Whether the latest `write` has failed for want of space.
  bool is_full() const { return full_; }
  const std::string& path() const { return path_; }

 private:
  Status failed(int number);
  Status write_in_place(const std::string& slot);
  Status replace(const std::string& slot);

  std::string path_;
  std::int64_t version_ = 0;   // of what was read or written last
  std::size_t slot_size_ = 0;  // of the file then; 0: there are none yet
  bool full_ = false;
};

/// An entry in a file that all nodes share. Its leader counts a number in it up while it lives; who
/// sees the number stand still for a TTL and a half, by its own clock, may take it. So clocks of
/// machines are never compared. Changes are made under a lock on a second file (fcntl(2), which NFS
/// passes on to its server), and in place (LeaseFile): a full disk ends no lease.
/// `file` is the entry; its directory must exist and be writable. A record in an entry that is
/// older than ten TTLs and `record_life`, by the clock of the file system, is forgotten.
std::unique_ptr<LeaseEntry> make_file_entry(std::string file, Duration ttl, Duration record_life);

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
/// `endpoint`: a directory, or a file of the job's own. Empty: a new temporary one (one node only).
Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const spec::RendezvousConfig& config,
                                                     Duration isolation = {});

}  // namespace elastrun::rendezvous
