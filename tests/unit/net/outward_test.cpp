// SPDX-License-Identifier: Apache-2.0

#include "net/endpoint.hpp"

#include <doctest/doctest.h>

namespace elastrun::net {
namespace {

OwnAddress one(const char* interface, const char* address) {
  return {interface, boost::asio::ip::make_address(address)};
}

}  // namespace

TEST_CASE("outward: the only interface's first address, IPv4 before IPv6") {
  CHECK(only_address({one("eth0", "fd00::7"), one("eth0", "10.0.0.7"), one("eth0", "10.0.0.8")})
            ->to_string() == "10.0.0.7");
  CHECK(only_address({one("eth0", "fd00::7")})->to_string() == "fd00::7");
}

TEST_CASE("outward: loopback only where there is nothing else") {
  CHECK(only_address({})->to_string() == "127.0.0.1");
}

TEST_CASE("outward: several interfaces are named, and what to do") {
  const auto own = only_address({one("eth0", "10.0.0.7"), one("ib0", "10.8.0.7")});
  REQUIRE(!own);
  CHECK(own.error().code == Code::Usage);
  CHECK(own.error().text.contains("10.0.0.7 (eth0), 10.8.0.7 (ib0); give --local-addr"));
}

TEST_CASE("outward: nothing that only this machine understands counts as reachable") {
  for (const auto& known : reachable_addresses()) {
    CAPTURE(known.interface);
    CHECK_FALSE(known.address.is_loopback());
    CHECK(is_own_address(known.address));
  }
}

TEST_CASE("outward: the way to a peer decides, where there is one") {
  for (const auto& known : reachable_addresses()) {
    const auto own = outward_address(known.address);
    REQUIRE(own.has_value());
    CHECK(*own == known.address);  // to an own address this machine speaks from that very one
  }
}

}  // namespace elastrun::net
