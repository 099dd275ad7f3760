// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/link.hpp"
#include "rendezvous/wire/messages.hpp"
#include "support/fake_clock.hpp"
#include "unit/rendezvous/agents.hpp"

#include <memory>
#include <optional>
#include <utility>

namespace elastrun::rendezvous::test {

struct CountsCutOffs final : CoordinatorOwner {
  void cut_off() override { ++count; }
  int count = 0;
};

/// Real sockets, for which time passes only when a test says so.
struct TimelessNetwork : Network {
  TimelessNetwork() : fake(*new elastrun::test::FakeClock) { clock.reset(&fake); }
  /// In so many steps, in each of which all that is on its way arrives.
  void pass(Duration time, int steps) {
    for (int step = 0; step < steps; ++step) {
      loop.restart();
      loop.run_for(std::chrono::milliseconds(5));
      fake.advance(time / steps);
    }
  }
  elastrun::test::FakeClock& fake;
};

/// A coordinator and one agent over these.
struct Timeless {
  explicit Timeless(const Rules& rules, CoordinatorOwner* owner = nullptr) : job_rules(rules) {
    CoordinatorSettings settings;
    settings.run_id = "job";
    settings.rules = rules;
    settings.owner = owner;
    auto opened = Coordinator::open(network.loop, *network.clock, sealer, {}, settings);
    REQUIRE(opened.has_value());
    host = std::move(*opened);
    SessionSettings remote;
    remote.run_id = "job";
    remote.rules = rules;
    agent = agent_at(network, host->port(), std::move(remote), sealer);
  }

  void pass(Duration time, int steps) { network.pass(time, steps); }
  /// Whether the agent is told anything within 0.2 s, less than kTimeToReturn.
  bool is_told() {
    for (int step = 0; agent->told.empty() && step < 100; ++step) pass(2ms, 1);
    return !agent->told.empty();
  }

  TimelessNetwork network;
  Rules job_rules;
  std::shared_ptr<const net::Sealer> sealer = net::make_sealer("");
  std::unique_ptr<Coordinator> host;
  std::unique_ptr<TestAgent> agent;
};

/// Another agent, which a test speaks for. It never sends a heartbeat.
struct Spoken {
  explicit Spoken(Timeless& town, std::optional<AgentProcesses> processes = {},
                  std::string name = "spoken") {
    boost::asio::ip::tcp::socket socket(town.network.loop);
    socket.connect({boost::asio::ip::address_v4::loopback(), town.host->port()});
    link = std::make_shared<net::Link>(std::move(socket), town.sealer, net::Link::Side::Connector);
    link->start({[this](const std::string& text) { heard += text; }, [](const Error&) {}});
    Hello hello{"job"};
    hello.processes = std::move(processes);
    link->send(encode(FromAgent(hello)));
    Join join;
    join.node.id = std::move(name);
    join.node.grace = 30s;
    join.rules = town.job_rules;
    link->send(encode(FromAgent(join)));
  }
  Spoken(const Spoken&) = delete;
  ~Spoken() { link->close(); }

  std::string heard;
  std::shared_ptr<net::Link> link;
};

}  // namespace elastrun::rendezvous::test
