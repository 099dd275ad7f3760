// SPDX-License-Identifier: Apache-2.0

#include "agent/round/round_store.hpp"

#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "net/listener.hpp"

#include <cstdint>
#include <utility>

namespace elastrun::agent {

net::Endpoint meeting_place(const spec::JobSpec& spec, const rendezvous::Round& round) {
  // What node 0 was told is in the round, unless it means nothing to others.
  const bool told = spec.rdzv_backend == spec::backend::kStatic && round.group_rank != 0 &&
                    !spec.master_addr.empty();
  if (told) return {spec.master_addr, static_cast<std::uint16_t>(spec.master_port.value_or(0))};
  return {round.master_addr, round.master_port};
}

Result<Folders> make_folders(logs::Layout& layout, int attempt, int workers) {
  auto directory = layout.make_attempt(attempt);
  if (!directory) return std::unexpected(directory.error());
  Folders made{std::move(*directory), {}};
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    auto rank = layout.make_rank(made.attempt, local_rank);
    if (!rank) return std::unexpected(rank.error());
    made.ranks.push_back(std::move(*rank));
  }
  return made;
}

namespace {

// Workers that come meanwhile wait.
constexpr auto kLookUp = std::chrono::seconds(5);

class ServedStore final : public RoundStore {
 public:
  ServedStore(boost::asio::io_context& loop, Clock& clock, rendezvous::Session& session,
              std::optional<rendezvous::StorePlan> plan)
      : loop_(loop),
        clock_(clock),
        session_(session),
        plan_(std::move(plan)),
        resolver_(loop, clock) {}
  ~ServedStore() override { close(); }

  Result<std::uint16_t> prepare() override {
    // A look-up that still runs would open the gate for visitors of the last round.
    resolver_.cancel();
    drop_next();
    const auto plan = plan_.value_or(session_.store_plan());
    // A fixed port is kept, so that no other process takes it between two rounds.
    const bool only_port = plan.ports.first != 0 && plan.ports.first == plan.ports.last;
    if (server_ && only_port) return keep_port();
    auto server = listen(plan);
    // No other port is free: the old server has to do, whose workers may still save with it.
    if (!server && server_) return keep_port();
    if (!server) return std::unexpected(server.error());
    next_ = std::move(*server);
    share();
    return next_->port();
  }

  std::optional<rendezvous::StorePlan> needs() const override {
    auto plan = plan_.value_or(session_.store_plan());
    const bool held = server_ || next_ || !session_.agent_serves_store();
    if (held || plan.ports.first == 0) return std::nullopt;
    return plan;
  }

  void begin(const rendezvous::Round& round) override {
    const auto nodes = round.is_divided() ? round.store_nodes : round.group_world_size();
    // Where a user's handler has said where workers meet, nothing comes to our store any more.
    const bool serves = round.serves_store() && session_.agent_serves_store();
    shared_ = serves && nodes > 1;
    world_ = round.is_divided() ? round.store_workers : round.world_size;
    // Only now: until the round is known, members of the last one may save with the old store.
    if (!serves) return close();
    if (next_) {
      end_server();
      server_ = std::move(next_);
    } else if (server_) {
      // The port stays, the keys of the last round must not.
      server_->start_afresh();
    }
    share();
    // Only now is it known whose workers may come: until here no request was read.
    if (!server_) return;
    visitors_ = visitors_of(round);
    // Where no coordinator has seen the members, more than that is unknown.
    if (plan_ && (!shared_ || !visitors_.names.empty())) return server_->allow_peers({});
    look_up(clock_.now() + kLookUp);
  }

  void rounds_are_over() override {
    drop_next();
    // Workers of a machine that has vanished never hang up. Not before the end: during a job a
    // machine may be frozen for minutes, and go on.
    if (server_) server_->look_for_dead_peers();
  }

  // With a handler no message tells when the other nodes have ended, but their workers hang up.
  bool serves_others() const override { return shared_ && (!plan_ || visitors() > 0); }
  std::uint64_t requests() const override {
    return earlier_requests_ + (server_ ? server_->statistics().requests : 0);
  }
  TimePoint last_change() const override { return last_change_; }
  std::size_t visitors() const override { return server_ ? server_->statistics().connections : 0; }

  bool serves_workers() const override { return session_.workers_are_clients(); }
  void on_join(std::function<void(bool all)> heard) override { heard_ = std::move(heard); }

 private:
  using Server = std::unique_ptr<store::Server>;

  void joined(std::int64_t ranks) {
    if (heard_ && ranks == 1) heard_(false);
    if (heard_ && ranks == world_) heard_(true);
  }

  // A newcomer may be of the round that is still being formed, or of the last one.
  std::uint16_t keep_port() {
    server_->hold_newcomers();
    share();
    return server_->port();
  }

  void share() { session_.share_store({server_.get(), next_.get()}); }
  void drop_next() {
    next_.reset();
    share();
  }

  /// One name after the other; then the known addresses may come.
  void look_up(TimePoint until) {
    if (visitors_.names.empty()) return server_->allow_peers(visitors_.addresses);
    const std::string name = std::move(visitors_.names.back());
    visitors_.names.pop_back();
    const Duration left = std::max(until - clock_.now(), Duration::zero());
    resolver_.resolve(name, left, [this, name, until](const Result<net::Addresses>& found) {
      if (!found) {
        log::warning("agent", "connections from {} to the workers' store are refused: {}", name,
                     found.error().text);
      } else {
        visitors_.addresses.insert(visitors_.addresses.end(), found->begin(), found->end());
      }
      look_up(until);
    });
  }

  /// On the first port of the range that is free.
  Result<Server> listen(const rendezvous::StorePlan& plan) {
    for (int port = plan.ports.first; port < plan.ports.last; ++port) {
      auto server = try_port(plan.bind_address, port);
      if (server) return server;
    }
    return try_port(plan.bind_address, plan.ports.last);
  }
  Result<Server> try_port(const std::string& address, int port) {
    store::Server::Settings settings;
    // Until it is known whose workers may come: those of an earlier round must find it shut.
    settings.awaits_peers = true;
    settings.on_join = [this](std::int64_t ranks) { joined(ranks); };
    settings.on_change = [this] { last_change_ = clock_.now(); };
    return store::Server::listen(loop_, address, static_cast<std::uint16_t>(port), settings);
  }

  void close() {
    resolver_.cancel();
    session_.share_store({});
    next_.reset();
    end_server();
  }
  void end_server() {
    if (server_) earlier_requests_ += server_->statistics().requests;
    server_.reset();
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  rendezvous::Session& session_;
  const std::optional<rendezvous::StorePlan> plan_;
  net::Resolver resolver_;
  Visitors visitors_;
  Server server_;  // of the last round that has begun
  Server next_;    // of the one that is being formed; none: server_, on the same port
  std::uint64_t earlier_requests_ = 0;
  bool shared_ = false;
  int world_ = 0;
  std::function<void(bool all)> heard_;
  TimePoint last_change_ = TimePoint::min();
};

class WorkersStore final : public RoundStore {
 public:
  /// Held, so that there is no race between announcing the port and listening on it.
  Result<std::uint16_t> prepare() override {
    held_.reset();
    auto held = net::listen_on(boost::asio::ip::address_v6::any(), 0, -1);
    if (!held) {
      return std::unexpected(
          errno_error(Code::Store, "cannot find a free port for worker 0", held.error()));
    }
    held_ = std::move(*held);
    return net::bound_to(held_.get()).port();
  }
  void begin(const rendezvous::Round& round) override {
    // The rank that serves the store is on another node.
    if (!round.serves_store()) held_.reset();
  }
  bool serves_workers() const override { return false; }

 private:
  UniqueFd held_;
};

}  // namespace

std::unique_ptr<RoundStore> make_served_store(boost::asio::io_context& loop, Clock& clock,
                                              rendezvous::Session& session,
                                              std::optional<rendezvous::StorePlan> plan) {
  return std::make_unique<ServedStore>(loop, clock, session, std::move(plan));
}

std::unique_ptr<RoundStore> make_workers_store() {
  return std::make_unique<WorkersStore>();
}

Visitors visitors_of(const rendezvous::Round& round) {
  Visitors found;
  for (const auto& member : round.members) {
    bool known = false;
    auto texts = member.alternates;
    texts.push_back(member.address);
    for (const auto& text : texts) {
      const auto address = net::parse_address(text);
      if (address.is_unspecified()) continue;
      known = true;
      found.addresses.push_back(address);
    }
    if (!known) found.names.push_back(member.address);
  }
  // Own workers may come by loopback, whatever the address that others use.
  found.addresses.push_back(boost::asio::ip::make_address("127.0.0.1"));
  found.addresses.push_back(boost::asio::ip::make_address("::1"));
  return found;
}

}  // namespace elastrun::agent
