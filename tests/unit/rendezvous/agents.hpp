// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/system_clock.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/session/make_session.hpp"
#include "support/free_port.hpp"
#include "support/loop.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Agents of a job in one process, over real loopback sockets, on one loop.
namespace elastrun::rendezvous::test {

using elastrun::test::free_port;
using elastrun::test::run_until;
using namespace std::chrono_literals;

struct Network {
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
};

/// What one agent does with its session: it obeys, when the test says so.
struct TestAgent {
  TestAgent(Network& with, std::unique_ptr<Session> its) : network(with), session(std::move(its)) {
    session->open([this](Push push) {
      // Progress comes by time, and no test is about when.
      if (const auto* heard = std::get_if<Progress>(&push)) {
        progress = *heard;
      } else {
        told.push_back(std::move(push));
      }
    });
  }

  TestAgent& join(int workers = 1, const std::string& name = {}, int node_rank = -1) {
    Node self;
    if (!name.empty()) self.id = name + "_1_0";
    self.store_port = 29123;
    self.local_world_size = workers;
    self.node_rank = node_rank;
    self.grace = grace;
    session->join(std::move(self));
    return *this;
  }
  /// Waits for the next word, which must be of this kind.
  template <class T>
  T hear() {
    run_until(network.loop, [this] { return !told.empty(); });
    Push push = std::move(told.front());
    told.pop_front();
    if (const auto* lost = std::get_if<Lost>(&push)) CAPTURE(lost->why);
    REQUIRE_MESSAGE(std::holds_alternative<T>(push), "told something else: ", push.index());
    return std::get<T>(std::move(push));
  }
  Round round() {
    const Round found = hear<RoundReady>().round;
    number = found.number;
    return found;
  }
  void fail(int exit_code) {
    Cause cause;
    cause.node = "culprit";
    cause.exit_code = exit_code;
    session->report(Failed{number, cause});
  }
  void succeed() { session->report(Succeeded{number}); }
  void close() {
    bool closed = false;
    session->close([&closed] { closed = true; });
    run_until(network.loop, [&closed] { return closed; });
  }

  Network& network;
  std::deque<Push> told;
  Progress progress;
  std::int64_t number = 0;
  Duration grace{};
  std::unique_ptr<Session> session;
};

inline Rules rules_for(int min_nodes, int max_nodes, int max_restarts = 0) {
  Rules rules;
  rules.min_nodes = min_nodes;
  rules.max_nodes = max_nodes;
  rules.max_restarts = max_restarts;
  rules.growth_delay = std::chrono::milliseconds(1);
  return rules;
}

/// One that looks for its coordinator at that port of loopback.
inline std::unique_ptr<TestAgent> agent_at(
    Network& network, std::uint16_t port, SessionSettings settings,
    const std::shared_ptr<const net::Sealer>& sealer = net::make_sealer("")) {
  settings.config.is_host = false;
  auto locator =
      make_fixed_locator(network.loop, *network.clock, sealer, settings, {"127.0.0.1", port});
  return std::make_unique<TestAgent>(
      network, make_remote_session(network.loop, *network.clock, sealer, std::move(locator),
                                   std::move(settings)));
}

/// A coordinator by itself, and agents that know where it is.
struct Town {
  explicit Town(Rules rules, std::string run_id = "job", std::string secret = "s3cret")
      : job_rules(rules), secret_(secret) {
    CoordinatorSettings settings;
    settings.stand_alone = run_id.empty();
    settings.run_id = std::move(run_id);
    settings.rules = rules;
    auto opened =
        Coordinator::open(network.loop, *network.clock, net::make_sealer(secret), {}, settings);
    REQUIRE(opened.has_value());
    host = std::move(*opened);
  }
  std::unique_ptr<TestAgent> agent(std::string run_id = "job", std::string secret = "s3cret",
                                   std::string local_addr = {}) {
    SessionSettings settings;
    settings.run_id = run_id;
    settings.rules = job_rules;
    settings.local_addr = std::move(local_addr);
    return agent_at(network, host->port(), std::move(settings), net::make_sealer(secret));
  }

  /// Two, in the first round.
  std::pair<std::unique_ptr<TestAgent>, std::unique_ptr<TestAgent>> pair() {
    auto a = agent(), b = agent();
    a->join(), b->join();
    a->round(), b->round();
    return {std::move(a), std::move(b)};
  }

  Network network;
  Rules job_rules;
  std::string secret_;
  std::unique_ptr<Coordinator> host;
};

}  // namespace elastrun::rendezvous::test
