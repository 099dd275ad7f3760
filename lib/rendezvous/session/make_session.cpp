// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/session/make_session.hpp"

#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/election/make_elected.hpp"
#include "rendezvous/membership/job_decider.hpp"
#include "rendezvous/session/munge.hpp"
#include "rendezvous/session/remote_session.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr Peer kSelf = 1;

/// No other node is waited for, whatever its node rank.
Rules for_one_node(Rules rules) {
  rules.min_nodes = 1;
  rules.fixed_ranks = false;
  return rules;
}

class LocalSession final : public Session {
 public:
  LocalSession(boost::asio::io_context& loop, Clock& clock, LocalSettings settings)
      : loop_(loop),
        clock_(clock),
        settings_(std::move(settings)),
        decider_(for_one_node(settings_.rules), settings_.run_id, settings_.master_addr,
                 settings_.master_port) {}
  ~LocalSession() override { lifetime_.end(); }

  void open(OnPush on_push) override { on_push_ = std::move(on_push); }

  void join(Node self) override {
    // Without a previous world: no other coordinator can have formed one, so nothing has to be
    // fenced.
    decider_.state.join(kSelf, std::move(self), PreviousWorld{}, clock_.now());
    deliver();
  }

  void report(Report report) override {
    if (auto* leaving = std::get_if<Leaving>(&report)) {
      // No other node has to wait for this group, or to be told.
      leaving->grace = {}, leaving->unable = leaving->killed = false;
    }
    decider_.report(kSelf, std::move(report), clock_.now());
    deliver();
  }

  void close(Then on_closed) override {
    closed_ = true;
    if (alarm_) alarm_->disarm();
    // Posted, because what it calls may destroy this session, from which we have yet to return.
    boost::asio::post(loop_, std::move(on_closed));
  }

  std::string backend() const override { return settings_.backend; }
  std::string run_id() const override { return settings_.run_id; }

 private:
  void deliver() {
    for (const Delivery& delivery : decider_.take(clock_.now())) push(to_push(delivery.notice));
    const auto due = decider_.deadline();
    if (!due) {
      if (alarm_) alarm_->disarm();
      return;
    }
    // Made when there is something to wait for: most jobs of one node never have a deadline.
    if (!alarm_) alarm_ = clock_.make_alarm();
    alarm_->arm(*due, [this] {
      decider_.tick(clock_.now());
      deliver();
    });
  }

  void push(Push told) {
    boost::asio::post(loop_, [this, alive = lifetime_.token(), told = std::move(told)]() mutable {
      if (alive && !closed_) on_push_(std::move(told));
    });
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const LocalSettings settings_;
  JobDecider decider_;
  OnPush on_push_;
  std::unique_ptr<Alarm> alarm_;
  bool closed_ = false;
  // Posted pushes outlive the session; this tells them that it has gone.
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Session> make_local_session(boost::asio::io_context& loop, Clock& clock,
                                            LocalSettings settings) {
  return std::make_unique<LocalSession>(loop, clock, std::move(settings));
}

namespace {

using net::is_loopback_host;
using spec::RendezvousConfig;

/// Where no other machine can connect: the address of this machine by which it is announced.
/// Without --local-addr that is where its connection to the coordinator at `host` comes from.
std::string loopback_of(const std::string& host, const std::string& local_addr) {
  const auto own = net::parse_address(local_addr);
  if (own.is_loopback()) return own.to_string();
  const auto address = net::parse_address(local_addr.empty() ? host : local_addr);
  // A socket that is bound to ::1 takes no connection to 127.0.0.1, nor the other way round
  // (ipv6(7)); what connects to 127.0.0.2 comes from 127.0.0.1 all the same.
  return address.is_v6() && address.is_loopback() ? address.to_string() : "127.0.0.1";
}

/// What all back ends share, worked out once.
struct Plan {
  boost::asio::io_context& loop;
  Clock& clock;
  const SessionSettings& settings;
  std::shared_ptr<const net::Sealer> sealer;
  CoordinatorSettings coordinator;

  std::unique_ptr<Session> session(std::unique_ptr<Locator> locator, StorePlan store) {
    SessionSettings own = settings;
    own.rules = coordinator.rules;
    return make_remote_session(loop, clock, sealer, std::move(locator), std::move(own),
                               std::move(store));
  }
};

/// Null where MUNGE is not to be had: then the job is as open as anywhere else.
std::shared_ptr<const net::Sealer> munge_sealer(boost::asio::io_context& loop,
                                                const SessionSettings& settings) {
  auto munge = load_munge();
  if (!munge) {
    log::debug("rendezvous", "agents are not authenticated by MUNGE: {}", munge.error().text);
    return nullptr;
  }
  log::debug("rendezvous", "agents of the job \"{}\" are authenticated by MUNGE", settings.run_id);
  // Where the scheduler has said who hosts, that is a node like this one. An endpoint that a user
  // has given may be a coordinator outside the cluster.
  return net::make_exchanging_sealer(
      make_munge_exchange(loop, std::move(*munge), !settings.start.empty()));
}

void warn_of_openness(const SessionSettings& settings, const std::string& place) {
  log::warning("rendezvous",
               "the job \"{}\" has no secret: anyone who reaches {} can join or stop it. Set "
               "ELASTRUN_SECRET, or secret_file in --rdzv-conf, to the same text on all nodes",
               settings.run_id, place);
}

StorePlan store_plan(const Plan& plan, std::string bind_address) {
  return {.bind_address = std::move(bind_address), .ports = plan.settings.config.store_port};
}

Result<std::unique_ptr<Session>> make_fixed(Plan& plan, std::uint16_t default_port) {
  const auto endpoint = net::parse_endpoint(plan.settings.endpoint, default_port);
  if (!endpoint) return std::unexpected(endpoint.error());
  const bool fixed_ranks = plan.settings.backend == spec::backend::kStatic;
  // Only where both ends are loopback, and no other node can come: then the store listens for this
  // machine alone.
  const bool alone =
      plan.settings.rules.max_nodes == 1 && is_loopback_host(endpoint->host) &&
      (plan.settings.local_addr.empty() || is_loopback_host(plan.settings.local_addr));
  StorePlan store =
      store_plan(plan, alone ? loopback_of(endpoint->host, plan.settings.local_addr) : "");
  FixedLocatorSettings locator{*endpoint, plan.settings.config.is_host, plan.coordinator};
  if (fixed_ranks) {
    // As in torchrun's static rendezvous, where the node of rank 0 opens the store and nothing is
    // voted on.
    locator.is_host = plan.settings.node_rank == 0;
    locator.coordinator.master_addr = net::is_wildcard(endpoint->host) ? "" : endpoint->host;
    locator.coordinator.master_port = endpoint->port;
    // Agents and workers all come to MASTER_PORT of node 0.
    store = {.bind_address = "127.0.0.1", .lent_port = plan.settings.node_rank == 0};
  }
  return plan.session(make_fixed_locator(plan.loop, plan.clock, plan.sealer, std::move(locator)),
                      std::move(store));
}

ElectedLocatorSettings elected_settings(const Plan& plan) {
  ElectedLocatorSettings locator{plan.coordinator, plan.settings.config, plan.settings.grace};
  if (locator.config.advertise.empty()) locator.config.advertise = plan.settings.local_addr;
  return locator;
}

Result<std::unique_ptr<Session>> make_elected(Plan& plan,
                                              Result<std::unique_ptr<LeaderLease>> lease) {
  if (!lease) return std::unexpected(lease.error());
  return plan.session(make_elected_locator(plan.loop, plan.clock, plan.sealer, std::move(*lease),
                                           elected_settings(plan)),
                      store_plan(plan, ""));
}

}  // namespace

// A secret wins over MUNGE: a user has chosen it, and it also admits nodes outside the cluster and
// a colleague's, whose credentials are another user's.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              const SessionSettings& settings) {
  const RendezvousConfig& config = settings.config;
  const auto secret = read_secret(config.secret_file, settings.secret);
  if (!secret) return std::unexpected(secret.error());
  auto sealer = secret->empty() && settings.try_munge ? munge_sealer(loop, settings) : nullptr;
  const bool open = secret->empty() && !sealer;
  if (!sealer) sealer = net::make_sealer(*secret);
  Plan plan{loop, clock, settings, std::move(sealer), {}};
  plan.coordinator.run_id = settings.run_id;
  plan.coordinator.start = settings.start;
  plan.coordinator.rules = settings.rules;
  if (settings.backend == spec::backend::kStatic) plan.coordinator.rules.fixed_ranks = true;
  plan.coordinator.heartbeat = config.keep_alive_interval;
  plan.coordinator.heartbeats_missed = config.keep_alive_max_attempt;
  const std::string& where = settings.endpoint;
  const bool by_file = settings.backend == spec::backend::kFile || config.meets_in_file;
  if (settings.backend == spec::backend::kEtcd || settings.backend == spec::backend::kEtcdV2) {
    if (open) warn_of_openness(settings, "the coordinator");
    return make_elected(plan, make_etcd_lease(loop, clock, where, settings.run_id, config,
                                              effective_isolation(elected_settings(plan))));
  }
  if (by_file) {
    if (open) warn_of_openness(settings, "the coordinator");
    return make_elected(plan, make_file_lease(loop, clock, where, settings.run_id, config,
                                              effective_isolation(elected_settings(plan))));
  }
  const auto endpoint = net::parse_endpoint(where, spec::kC10dPort);
  if (open && endpoint) {
    const bool loopback = is_loopback_host(endpoint->host);
    const auto port = fmt::format("port {} of this machine", endpoint->port);
    if (!loopback || settings.rules.max_nodes > 1)
      warn_of_openness(settings,
                       loopback || net::is_wildcard(endpoint->host) ? port : endpoint->host);
  }
  if (settings.backend == spec::backend::kStatic) return make_fixed(plan, spec::kStaticPort);
  if (settings.backend == spec::backend::kC10d) return make_fixed(plan, spec::kC10dPort);
  return fail(Code::Usage,
              fmt::format("the rendezvous backend \"{}\" is not known; the backends are "
                          "static, c10d, etcd, etcd-v2 and file",
                          settings.backend));
}

}  // namespace elastrun::rendezvous
