// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/http_call.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
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

/// Requests to etcd's JSON gateway. Logs in when it must, goes to the next endpoint when one does
/// not answer. Destroying it takes all answers away.
class EtcdClient {
 public:
  using Answer = std::function<void(Result<std::string>)>;

  EtcdClient(boost::asio::io_context& loop, Clock& clock, EtcdAccess access);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// Posts `body` to e.g. "/v3/kv/range"; answers with the body of a 200.
  void ask(std::string target, std::string body, Answer answer);

  /// A watch on one key from a revision on. Survives lost connections, servers that stop and those
  /// that lose their leader: it goes on elsewhere, from the first revision not seen.
  void watch(std::string key, std::int64_t from_revision, std::function<void()> changed);
  void unwatch();

  /// This machine's address on the last connection; unspecified before.
  boost::asio::ip::address own_address() const { return own_; }

 private:
  struct Question;
  using Place = std::list<Question>::iterator;
  void send(Place question);
  void answered(Place question, Result<net::HttpResponse> response);
  void next_endpoint(Place question, Error error);
  void finish(Place question, Result<std::string> result);
  void log_in(Place question);
  net::HttpCall::Settings settings(std::size_t endpoint) const;

  void open_watch();
  void read_stream(std::string_view piece);
  void read_line(std::string_view line);
  void watch_ended(const std::string& why);

  boost::asio::io_context& loop_;
  Clock& clock_;
  const EtcdAccess access_;
  std::size_t good_ = 0;  // endpoint that answered last
  std::string token_;
  boost::asio::ip::address own_;
  const std::unique_ptr<net::KeptConnection> kept_;
  std::list<Question> questions_;

  // The watch
  std::string watched_;
  std::int64_t from_revision_ = 0;
  std::function<void()> changed_;
  std::unique_ptr<net::HttpCall> stream_;
  std::string unread_;
  std::unique_ptr<Alarm> reopening_;
  Duration pause_{};
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
