// SPDX-License-Identifier: Apache-2.0
// What proves that the world of an earlier coordinator is no more, and what does not.
#include "core/unique_fd.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "support/fake_clock.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <doctest/doctest.h>
#include <optional>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;
using boost::asio::ip::tcp;

namespace {

/// The agent of group rank 0, as far as it holds a port.
struct ProbedAgent {
  boost::asio::io_context loop;
  std::optional<tcp::acceptor> port;

  explicit ProbedAgent(bool listens) : port(loop) {
    port->open(tcp::v6());
    port->set_option(tcp::acceptor::reuse_address(true));
    port->bind({boost::asio::ip::address_v6::any(), 0});
    if (listens) port->listen();
  }
  RecordedWorld record(std::string address = "127.0.0.1") const {
    RecordedWorld recorded{
        {{1, 7}, 2, std::move(address), port->local_endpoint().port()}, "x", {}, {}};
    recorded.network = PreviousWorldProbe::own_network();
    return recorded;
  }
};

struct Question {
  elastrun::test::FakeClock clock;
  PreviousWorldProbe probe{clock};
  bool gone = false;
  void ask(const RecordedWorld& recorded) {
    probe.probe(recorded, [this] { gone = true; });
    CHECK(!gone);  // never inside the call
    clock.advance(0ms);
  }
};

}  // namespace

TEST_CASE(
    "previous world: on this machine a port that nobody holds proves that its agent is gone") {
  for (const bool listens : {true, false}) {
    CAPTURE(listens);  // TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: held, and every connection refused
    ProbedAgent agent(listens);
    Question question;
    question.ask(agent.record());
    CHECK(!question.gone);
    question.clock.advance(60s);
    CHECK(!question.gone);
    agent.port.reset();
    question.clock.advance(2s);
    CHECK(question.gone);
    CHECK(question.clock.armed() == 0);
  }
}

TEST_CASE("previous world: of another machine nothing is proved by a port that refuses") {
  ProbedAgent agent(false);
  Question question;
  RecordedWorld recorded = agent.record();
  agent.port.reset();
  SUBCASE("loopback is every machine's own") {
    recorded.network = "another";
  }
  SUBCASE("so are the addresses of containers") {
    recorded.network = "another";
    recorded.world.address = "172.17.0.2";
  }
  SUBCASE("an address elsewhere: a firewall refuses as well") {
    recorded.world.address = "203.0.113.7";
  }
  SUBCASE("a name") {
    recorded.world.address = "localhost.invalid";
  }
  SUBCASE("nothing that is known") {
    recorded.world.port = 0;
  }
  question.ask(recorded);
  question.clock.advance(600s);
  CHECK(!question.gone);
}

TEST_CASE("previous world: a question that is taken back is not answered") {
  ProbedAgent agent(true);
  Question question;
  question.ask(agent.record());
  question.probe.stop();
  agent.port.reset();
  question.clock.advance(60s);
  CHECK(!question.gone);
}
