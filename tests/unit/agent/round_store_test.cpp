// SPDX-License-Identifier: Apache-2.0
#include "agent/round/round_store.hpp"

#include "net/listener.hpp"
#include "rendezvous/session/make_session.hpp"
#include "store/server.hpp"
#include "support/fake_clock.hpp"
#include "support/free_port.hpp"
#include "unit/store/raw_client.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::agent;

namespace {

/// As torch's client says that it has connected.
void join(test::RawClient& client) {
  using namespace std::string_literals;
  CHECK(client.send("\x04\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0"s));
  CHECK(client.receive(8).size() == 8);
}

rendezvous::Node node_at(std::string address, std::vector<std::string> alternates = {}) {
  rendezvous::Node node;
  node.address = std::move(address);
  node.alternates = std::move(alternates);
  return node;
}

rendezvous::Round round_of_two(int group_rank) {
  rendezvous::Round round;
  round.members = {node_at("127.0.0.1"), node_at("127.0.0.1")};
  round.group_rank = group_rank;
  return round;
}

/// The store of a node whose session says nothing of it.
struct StorePlace {
  explicit StorePlace(std::uint16_t first_port = 0, std::uint16_t last_port = 0)
      : session(rendezvous::make_local_session(loop, clock, {})),
        store(make_served_store(loop, clock, *session,
                                rendezvous::StorePlan{.ports = {first_port, last_port}})) {}
  std::uint16_t prepare() {
    const auto port = store->prepare();
    REQUIRE_MESSAGE(port, (port ? "" : port.error().text));
    return *port;
  }

  boost::asio::io_context loop;
  test::FakeClock clock;
  std::unique_ptr<rendezvous::Session> session;
  std::unique_ptr<RoundStore> store;
};

/// Counts in the store; how far it is, 0 if nobody answers.
int count(test::RawClient& client) {
  using namespace std::string_literals;
  if (!client.send("\x04\x03\0\0\0\0\0\0\0key\x01\0\0\0\0\0\0\0"s)) return 0;
  const auto answer = client.receive(8);
  return answer.size() == 8 ? answer.front() : 0;
}

test::RawClient visitor(StorePlace& at, std::uint16_t port) {
  using namespace std::string_literals;
  test::RawClient client(at.loop, port);
  CHECK(client.send("\0\xCE\xF7\x85\x3C"s));
  return client;
}

bool admits(const Visitors& visitors, const std::string& address) {
  return std::ranges::count(visitors.addresses, boost::asio::ip::make_address(address)) > 0;
}

}  // namespace

TEST_CASE("round store: where worker 0 serves, its port is held, and it can listen on it") {
  const auto store = make_workers_store(), other = make_workers_store();
  const auto port = store->prepare(), another = other->prepare();
  REQUIRE(port.has_value());
  REQUIRE(another.has_value());
  CHECK_MESSAGE(*port != *another, "nobody who asks for any port gets it");
  for (const auto* any : {"0.0.0.0", "::"}) {
    CAPTURE(any);
    CHECK(net::listen_on(net::parse_address(any), *port, 1));
  }
}

TEST_CASE("round store: workers come from the addresses of the members, and from this machine") {
  rendezvous::Round round;
  round.members = {node_at("10.0.0.1", {"fd00::1"}), node_at("10.0.0.2")};
  const Visitors visitors = visitors_of(round);
  for (const char* address : {"10.0.0.1", "fd00::1", "10.0.0.2", "127.0.0.1", "::1"}) {
    CAPTURE(address);
    CHECK(admits(visitors, address));
  }
  CHECK(visitors.addresses.size() == 5);
  CHECK(visitors.names.empty());
}

TEST_CASE("round store: a world of one is served to its own machine") {
  rendezvous::Round round;
  round.members = {node_at("10.0.0.1")};
  const Visitors visitors = visitors_of(round);
  CHECK(visitors.addresses.size() == 3);
  CHECK(!admits(visitors, "10.0.0.2"));
}

TEST_CASE("round store: a name counts only where no address is known") {
  rendezvous::Round round;
  round.members = {node_at("node-1", {"10.0.0.1"}), node_at("node-2")};
  const Visitors visitors = visitors_of(round);
  CHECK(admits(visitors, "10.0.0.1"));
  CHECK(visitors.addresses.size() == 3);
  CHECK(visitors.names == std::vector<std::string>{"node-2"});
}

TEST_CASE("round store: it says when the first rank has connected, and when all have") {
  StorePlace at;
  std::vector<bool> heard;
  at.store->on_join([&](bool all) { heard.push_back(all); });
  for (int round = 0; round < 2; ++round) {
    heard.clear();
    const auto port = at.prepare();
    auto of_three = round_of_two(0);
    of_three.world_size = 3;
    at.store->begin(of_three);
    auto first = visitor(at, port), second = visitor(at, port), third = visitor(at, port);
    CHECK(count(first) == 1);
    CHECK(heard.empty());
    join(second);
    CHECK(heard == std::vector<bool>{false});
    join(first);
    CHECK(heard.size() == 1);
    join(third);
    join(third);
    CHECK(heard == std::vector<bool>{false, true});
  }
}

TEST_CASE("round store: it serves those who save until the next round begins") {
  StorePlace at;
  const auto port = at.prepare();
  at.store->begin(round_of_two(0));
  auto worker = visitor(at, port);
  CHECK(count(worker) == 1);

  const auto next = at.prepare();
  CHECK(next != port);
  CHECK(count(worker) == 2);
  auto late = visitor(at, port);
  CHECK(count(late) == 3);
  CHECK(at.store->visitors() == 2);
  const auto asked = at.store->requests();
  CHECK(asked >= 3);

  SUBCASE("here") {
    at.store->begin(round_of_two(0));
    auto newcomer = visitor(at, next);
    CHECK(count(newcomer) == 1);
  }
  SUBCASE("on another node") {
    at.store->begin(round_of_two(1));
  }
  CHECK(count(worker) == 0);
  CHECK(at.store->requests() >= asked);  // of all rounds
}

TEST_CASE("round store: on its only port, it serves those who are there until the next round") {
  const auto port = elastrun::test::free_port();
  StorePlace at(port, port);
  CHECK(at.prepare() == port);
  at.store->begin(round_of_two(0));
  auto worker = visitor(at, port);
  CHECK(count(worker) == 1);

  CHECK(at.prepare() == port);
  auto early = visitor(at, port);
  CHECK(count(worker) == 2);
  at.store->begin(round_of_two(0));
  CHECK(count(worker) == 0);
  CHECK_MESSAGE(count(early) == 1, "it is of the new round, and has waited for it");
}

TEST_CASE("round store: where all ports of its range are taken, it keeps the one that it has") {
  for (int attempt = 0; attempt < 100; ++attempt) {
    StorePlace first;
    const auto port = first.prepare();
    const auto next = static_cast<std::uint16_t>(port + 1);
    StorePlace at(port, next);
    if (next == 0 || !at.store->prepare()) continue;  // somebody else has that one
    at.store->begin(round_of_two(0));
    auto worker = visitor(at, next);
    CHECK(count(worker) == 1);
    CHECK(at.prepare() == next);
    CHECK(count(worker) == 2);
    return;
  }
  FAIL("no two ports are free that follow each other");
}

TEST_CASE("round store: a port is needed where fixed ones are given and none is held") {
  StorePlace any;
  CHECK(!any.store->needs());
  const auto port = elastrun::test::free_port();
  StorePlace fixed(port, port);
  REQUIRE(fixed.store->needs().has_value());
  CHECK(fixed.store->needs()->ports == spec::PortRange{port, port});
  fixed.prepare();
  CHECK(!fixed.store->needs());
  fixed.store->begin(round_of_two(0));
  CHECK(!fixed.store->needs());  // serves, and keeps it
  fixed.store->begin(round_of_two(1));
  CHECK(fixed.store->needs());  // another node serves
}
