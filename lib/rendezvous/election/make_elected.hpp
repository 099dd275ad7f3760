// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/membership/rules.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::rendezvous {

/// The job's secret: the trimmed text of the file, or `given`. Fails with Usage if the file cannot
/// be read or is empty; warns in the log if others on this machine may read it.
Result<std::string> read_secret(const std::string& file, const std::string& given);

/// The leases of the back ends whose coordinator is elected. Fail with Usage. Records live twice as
/// long as SessionSettings::isolation. What waits for etcd or a file system happens on a separate
/// thread, so that one that hangs does not delay the loop; nor do the logs, which have another
/// thread, delay a lease.

/// An entry in etcd v3 under a lease. Its epoch is the key's create revision, which etcd itself
/// makes grow from leader to leader.
/// `endpoint`: one or several "[http[s]://]host[:port]", separated by commas. Keys: protocol,
/// ca_cert (cacert), ssl_cert (cert), ssl_cert_key (key), user (username), password or
/// password_file, etcd_prefix, lease_ttl, isolation_timeout.
Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const SessionSettings& settings);
/// An entry in a file that all nodes share.
/// `endpoint`: a directory, or a file of the job's own. Empty: a new temporary one (one node only).
Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const SessionSettings& settings);

}  // namespace elastrun::rendezvous

/// What etcd's v3 JSON gateway answers (etcd.io, "gRPC gateway"; integers of 64 bits are texts
/// there, bytes are base64, zeros are left out). Pure. Answers are read as hostile: what is not
/// understood is Protocol, an error that the server reports is Io, or Usage if a retry is useless.
namespace elastrun::rendezvous::etcd {

struct Entry {
  std::string value;
  std::int64_t create_revision = 0;
  bool operator==(const Entry&) const = default;
};
struct LeaseAnswer {
  std::int64_t id = 0;
  std::int64_t ttl = 0;  // seconds; 0: the lease is gone
};

Result<std::optional<Entry>> read_range(std::string_view text);
/// The entry that is there after a transaction that creates it with that value if there is none.
/// Its create revision is the epoch.
Result<std::optional<Entry>> read_create(std::string_view text, std::string_view value);
/// Whether a transaction has found what it compares.
Result<bool> read_success(std::string_view text);
Result<LeaseAnswer> read_lease(std::string_view text);
Result<std::string> read_token(std::string_view text);
/// The error that a status other than 200 comes with. `bad_token`: log in again and repeat.
/// `unavailable`: this member cannot answer now, another one may.
struct Refused {
  Error error;
  bool bad_token = false;
  bool unavailable = false;
};
Refused read_refusal(int status, std::string_view text);

}  // namespace elastrun::rendezvous::etcd
