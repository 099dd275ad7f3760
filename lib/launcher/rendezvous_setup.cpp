// SPDX-License-Identifier: Apache-2.0
#include "launcher/rendezvous_setup.hpp"

#include "core/host.hpp"
#include "net/endpoint.hpp"
#include "process/process_table.hpp"
#include "rendezvous/session/make_session.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <string_view>
#include <unistd.h>

namespace elastrun::agent {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

/// `port`: that of the workers' store, where the caller fixes it; 0: the round announces one.
bool workers_serve_store(const spec::JobSpec& spec, std::uint16_t port) {
  // Our store is not at a port of the caller's. Torch's handler for etcd leaves the store to worker
  // 0 in any case; with the other back ends its workers expect the agent, or a server of the
  // caller's, there.
  if (port != 0 && spec.rdzv_backend == spec::backend::kEtcd) return true;
  const char* text = std::getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  return spec.rdzv_backend != spec::backend::kStatic && text != nullptr &&
         std::string_view(text) == "1";
}

/// Where to listen so that the workers reach `host`: there if it is a loopback address, otherwise
/// everywhere, because a name or an address of a bridge may not be one that we can bind.
std::string listening_address(const std::string& host) {
  if (!net::is_loopback_host(host)) return "";
  return host == "localhost" ? kLoopback : host;
}

/// Whether no other node can ever take part: then no socket is needed for a standalone rendezvous.
bool is_alone(const spec::JobSpec& spec) {
  if (spec.standalone) return true;
  return spec.max_nodes == 1 &&
         (spec.rdzv_backend == spec::backend::kStatic || spec.rendezvous.meets_in_file);
}

std::string own_id() {
  // The form of torch's node descriptors, address, pid and a number within the process, by which
  // ranks are ordered as torch orders them.
  return fmt::format("{}_{}_0", host_name(), ::getpid());
}

rendezvous::SessionSettings settings_of(const RunContext& run) {
  const auto& spec = run.spec;
  const char* secret = std::getenv("ELASTRUN_SECRET");
  return {.backend = spec.rdzv_backend,
          .endpoint = spec.rdzv_endpoint,
          .run_id = spec.run_id,
          .start = spec.job_start,
          .rules = rendezvous::rules_of(spec),
          .node_rank = spec.node_rank,
          // What a group that is told to stop takes at most: --shutdown-timeout, and then SIGKILL
          // with its bound. Others wait for it before they begin the next round.
          .grace = spec.shutdown_timeout + process::kKillBound,
          .local_addr = spec.local_addr,
          .config = spec.rendezvous,
          .secret = secret == nullptr ? "" : secret,
          .try_munge = std::getenv("SLURM_JOB_ID") != nullptr,
          .guardian = run.guardian.guardian_pid()};
}

Result<RendezvousSetup> make_standalone(RunContext& run, rendezvous::Node& self,
                                        const rendezvous::BootstrapStoreInfo& master) {
  const auto& spec = run.spec;
  auto settings = settings_of(run);
  settings.master_addr = spec.local_addr.empty() ? kLoopback : spec.local_addr;
  if (spec.rdzv_backend == spec::backend::kStatic) {
    const auto endpoint = net::parse_endpoint(spec.rdzv_endpoint, spec::kStaticPort);
    if (!endpoint) return std::unexpected(endpoint.error());
    settings.master_addr = endpoint->host;
    settings.master_port = endpoint->port;
  }
  self.address = settings.master_addr;
  self.id = own_id();
  rendezvous::StorePlan plan{.bind_address = listening_address(settings.master_addr),
                             .ports = {settings.master_port, settings.master_port}};
  RendezvousSetup place{.session = {}, .store = {}, .alone = true, .master = master};
  place.session = rendezvous::make_local_session(run.loop, run.clock, std::move(settings));
  place.store = workers_serve_store(spec, master.master_port)
                    ? make_workers_store()
                    : make_served_store(run.loop, run.clock, *place.session, std::move(plan));
  return place;
}

RendezvousSetup meet_by_handler(RunContext& run, rendezvous::Node& self, OwnRendezvous own) {
  const auto& spec = run.spec;
  rendezvous::HandlerSettings settings{.job = spec, .master = own.master};
  self.address = spec.local_addr;
  self.id = own_id();
  const auto& fixed = settings.master.master_addr;
  const auto reached = spec.local_addr.empty() ? fixed : spec.local_addr;
  rendezvous::StorePlan plan{
      .bind_address = reached.empty() ? kLoopback : listening_address(reached),
      .ports = {settings.master.master_port, settings.master.master_port}};
  auto session = rendezvous::make_handler_session(run.loop, run.clock, std::move(own.handler),
                                                  std::move(settings));
  RendezvousSetup place;
  place.store = make_served_store(run.loop, run.clock, *session, std::move(plan));
  place.session = std::move(session);
  return place;
}

}  // namespace

Result<RendezvousSetup> set_up_rendezvous(RunContext& run, rendezvous::Node& self,
                                          OwnRendezvous own) {
  const auto& spec = run.spec;
  if (!own.handler && !rendezvous::is_built_in(spec.rdzv_backend)) {
    auto made = rendezvous::get_rendezvous_handler({.backend = spec.rdzv_backend,
                                                    .endpoint = spec.rdzv_endpoint,
                                                    .run_id = spec.run_id,
                                                    .min_nodes = spec.min_nodes,
                                                    .max_nodes = spec.max_nodes,
                                                    .local_addr = spec.local_addr,
                                                    .node_rank = spec.node_rank,
                                                    .conf = spec.rdzv_conf});
    if (!made) return std::unexpected(made.error());
    own.handler = std::move(*made);
  }
  if (own.handler && !spec.role_restart.empty()) {
    return fail(Code::Usage,
                "a role that restarts alone (--role-restart) needs a built-in rendezvous: with a "
                "handler each node decides by itself");
  }
  if (own.handler) return meet_by_handler(run, self, std::move(own));
  if (is_alone(spec)) return make_standalone(run, self, own.master);
  auto session = rendezvous::make_session(run.loop, run.clock, settings_of(run));
  if (!session) return std::unexpected(session.error());
  RendezvousSetup place;
  place.session = std::move(*session);
  place.store = workers_serve_store(spec, own.master.master_port)
                    ? make_workers_store()
                    : make_served_store(run.loop, run.clock, *place.session, std::nullopt);
  place.master = std::move(own.master);
  return place;
}

void meet_at(const rendezvous::BootstrapStoreInfo& master, rendezvous::Round& round) {
  if (!master.master_addr.empty()) round.master_addr = master.master_addr;
  if (master.master_port != 0) round.master_port = master.master_port;
}

}  // namespace elastrun::agent
