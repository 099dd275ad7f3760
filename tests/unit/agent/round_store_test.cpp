// SPDX-License-Identifier: Apache-2.0
#include "agent/round_store.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::agent;

namespace {

rendezvous::Node node_at(std::string address, std::vector<std::string> alternates = {}) {
  rendezvous::Node node;
  node.address = std::move(address);
  node.alternates = std::move(alternates);
  return node;
}

bool admits(const Visitors& visitors, const std::string& address) {
  return std::ranges::count(visitors.addresses, boost::asio::ip::make_address(address)) > 0;
}

}  // namespace

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
