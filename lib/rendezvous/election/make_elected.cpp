// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/make_elected.hpp"

#include "core/temporary_places.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "rendezvous/election/etcd_leader_lease.hpp"
#include "rendezvous/election/file_leader_lease.hpp"
#include "rendezvous/election/secret_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

using spec::RendezvousConfig;

struct Servers {
  std::vector<net::Endpoint> endpoints;
  bool tls = false;
};

Result<Servers> read_servers(const std::string& text, bool tls) {
  Servers servers{{}, tls};
  for (const std::string& part : split(text, ',')) {
    std::string_view rest = trim(part);
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!starts_with_ignoring_case(rest, scheme)) continue;
      rest.remove_prefix(scheme.size());
      // One of them with TLS means all, since a request may go to each.
      servers.tls = servers.tls || scheme == "https://";
    }
    if (rest.ends_with('/')) rest.remove_suffix(1);
    auto endpoint = net::parse_endpoint(rest, spec::kEtcdPort);
    if (!endpoint) return std::unexpected(endpoint.error());
    servers.endpoints.push_back(std::move(*endpoint));
  }
  return servers;
}

Status read_tls(const RendezvousConfig& config, EtcdAccess& access) {
  const net::TlsClient::Files files{config.ca_cert, config.ssl_cert, config.ssl_cert_key};
  if (files.cert.empty() != files.key.empty()) {
    return fail(Code::Usage, "a client certificate for etcd needs both ssl_cert and ssl_cert_key");
  }
  auto tls = net::TlsClient::make(files);
  if (!tls) return std::unexpected(tls.error());
  access.tls = std::move(*tls);
  return {};
}

Status read_login(const RendezvousConfig& config, EtcdAccess& access) {
  access.user = config.user;
  access.password = config.password;
  if (access.user.empty() || !access.password.empty()) return {};
  auto password = read_secret(config.password_file, "");
  if (!password) return std::unexpected(password.error());
  if (password->empty()) {
    return fail(Code::Usage, fmt::format("etcd's user {} needs password or password_file in "
                                         "--rdzv-conf",
                                         access.user));
  }
  access.password = std::move(*password);
  return {};
}

// Twice as long as anybody waits because of one.
Duration record_life(const RendezvousConfig& config, Duration isolation) {
  return 2 * std::max(config.isolation_timeout, isolation) + config.lease_ttl;
}

}  // namespace

Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const RendezvousConfig& config,
                                                     Duration isolation) {
  auto servers = read_servers(endpoint, to_lower(config.protocol) == "https");
  if (!servers) return std::unexpected(servers.error());
  EtcdLeaseSettings settings;
  settings.access.endpoints = std::move(servers->endpoints);
  if (servers->tls) {
    if (auto read = read_tls(config, settings.access); !read) return std::unexpected(read.error());
  }
  if (auto read = read_login(config, settings.access); !read) return std::unexpected(read.error());
  std::string prefix = config.etcd_prefix;
  // A part without a name would make another key than that of nodes without the slash.
  while (prefix.ends_with('/')) prefix.pop_back();
  settings.key = fmt::format("{}/{}/coordinator", prefix, run_id);
  settings.record_key = fmt::format("{}/{}/world", prefix, run_id);
  settings.ttl = config.lease_ttl;
  settings.record_life = record_life(config, isolation);
  // One that does not answer must leave time for the others before the TTL is over.
  settings.access.limit = std::clamp<Duration>(settings.ttl / 4, std::chrono::milliseconds(500),
                                               std::chrono::seconds(5));
  return make_etcd_lease(loop, clock, std::move(settings));
}

Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const RendezvousConfig& config,
                                                     Duration isolation) {
  std::string path(trim(endpoint));
  if (path.empty()) {
    // As torchrun: a new, unknown file. Only one node can meet there.
    UniqueFd created;
    for (const auto& place : temporary_places()) {
      path = place + "/elastrun.XXXXXX";
      if (created.reset(::mkstemp(path.data())); created) break;
    }
    if (!created)
      return std::unexpected(errno_error(Code::Usage, fmt::format("cannot make {}", path), errno));
  }
  const std::string file = lease_file(path, run_id);
  const auto parent = std::filesystem::path(file).parent_path();
  struct stat status {};
  // Said now: later it would pass for a register that does not answer.
  if (!parent.empty() && (::stat(parent.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))) {
    return fail(Code::Usage,
                fmt::format("the rendezvous file {} cannot exist: {} is not a directory that "
                            "this node can see",
                            file, parent.string()));
  }
  return make_file_lease(loop, clock, file, config.lease_ttl, record_life(config, isolation));
}

}  // namespace elastrun::rendezvous
