// SPDX-License-Identifier: Apache-2.0
#include "net/endpoint.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::net;

TEST_CASE("endpoint: a port that is not given is the default, what is wrong is told") {
  CHECK(parse_endpoint("", 29400) == Endpoint{"localhost", 29400});
  CHECK(parse_endpoint("[::]", 29400) == Endpoint{"::", 29400});
  CHECK(parse_endpoint("[fe80::1%eth0]:0", 29400) == Endpoint{"fe80::1%eth0", 0});
  CHECK(parse_endpoint(" a:65536 ", 1).error().text.starts_with("'a:65536' has no valid port: "));
  CHECK(parse_endpoint("a b", 1).error().text.starts_with("'a b' has no valid host: "));
}

TEST_CASE("endpoint: IPv6 addresses are written with brackets") {
  CHECK(format_endpoint("10.0.0.1", 5) == "10.0.0.1:5");
  CHECK(format_endpoint("::1", 5) == "[::1]:5");
}

TEST_CASE("endpoint: loopback and interface addresses are this machine's, others are not") {
  CHECK(is_own_address(parse_address("127.0.0.1")));
  CHECK(is_own_address(parse_address("127.9.9.9")));
  CHECK(is_own_address(parse_address("::1")));
  CHECK(is_own_address(parse_address("::ffff:127.0.0.1")));
  for (const auto& own : own_addresses()) CHECK(is_own_address(own));
  CHECK(!is_own_address(parse_address("192.0.2.77")));  // TEST-NET-1, RFC 5737
  CHECK(!is_own_address(parse_address("2001:db8::77")));
}

TEST_CASE("endpoint: the own address towards loopback is loopback") {
  const auto own = own_address_towards(parse_address("127.0.0.1"));
  REQUIRE(own.has_value());
  CHECK(own->is_loopback());
}

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
