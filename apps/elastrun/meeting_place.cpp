// SPDX-License-Identifier: Apache-2.0
#include "meeting_place.hpp"

#include "net/endpoint.hpp"
#include "rendezvous/local_session.hpp"

#include <cstdlib>
#include <string_view>

namespace elastrun {
namespace {

constexpr std::uint16_t kStaticPort = 29500;  // torchrun's
constexpr const char* kLoopback = "127.0.0.1";

bool workers_serve_store(const spec::JobSpec& spec) {
  const char* text = std::getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  return spec.rdzv_backend != "static" && text != nullptr && std::string_view(text) == "1";
}

/// Where to listen so that the workers reach `host`: there if it is a loopback address, otherwise
/// everywhere, because a name or an address of a bridge may not be one that we can bind.
std::string listening_address(const std::string& host) {
  if (host == "localhost") return kLoopback;
  return net::parse_address(host).is_loopback() ? host : "";
}

}  // namespace

Result<MeetingPlace> open_meeting_place(boost::asio::io_context& loop, Clock& clock,
                                        const spec::JobSpec& spec, rendezvous::Node& self) {
  rendezvous::LocalSettings settings;
  settings.run_id = spec.run_id;
  settings.backend = spec.rdzv_backend;
  settings.max_restarts = spec.max_restarts;
  settings.rules.max_nodes = spec.max_nodes;
  settings.master_addr = spec.local_addr.empty() ? kLoopback : spec.local_addr;
  if (spec.rdzv_backend == "static") {
    const auto endpoint = net::parse_endpoint(spec.rdzv_endpoint, kStaticPort);
    if (!endpoint) return std::unexpected(endpoint.error());
    settings.master_addr = endpoint->host;
    settings.master_port = endpoint->port;
  }
  self.address = settings.master_addr;
  MeetingPlace place;
  place.store = agent::make_round_store(loop, {.address = listening_address(settings.master_addr),
                                               .port = settings.master_port,
                                               .serves_workers = !workers_serve_store(spec)});
  place.session = rendezvous::make_local_session(loop, clock, std::move(settings));
  return place;
}

}  // namespace elastrun
