// SPDX-License-Identifier: Apache-2.0
#include "net/endpoint.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::net;

TEST_CASE("endpoint: host, port and brackets are read as torchrun reads them") {
  struct Row {
    const char* text;
    Endpoint expected;
  };
  for (const Row& row :
       {Row{"", {"localhost", 29400}}, Row{" node7 ", {"node7", 29400}},
        Row{"node7.cluster:1", {"node7.cluster", 1}}, Row{"10.0.0.1:65535", {"10.0.0.1", 65535}},
        Row{"[::1]", {"::1", 29400}}, Row{"[fe80::1%eth0]:29500", {"fe80::1%eth0", 29500}},
        Row{"fe80::12", {"fe80::12", 29400}}, Row{"localhost:0", {"localhost", 0}},
        Row{"[::]:29500", {"::", 29500}}, Row{"[::]", {"::", 29400}}, Row{"::", {"::", 29400}}}) {
    CAPTURE(row.text);
    const auto endpoint = parse_endpoint(row.text, 29400);
    REQUIRE(endpoint.has_value());
    CHECK(*endpoint == row.expected);
  }
}

TEST_CASE("endpoint: bad ports and hosts are refused, each with a sentence") {
  for (const char* text : {"a:65536", "a:", "a:x", "a:-1", "[::1]:", "[::1]x", "a:123456"}) {
    CAPTURE(text);
    const auto endpoint = parse_endpoint(text, 1);
    REQUIRE(!endpoint.has_value());
    CHECK(endpoint.error().text.contains("' has no valid port: "));
  }
  for (const char* text :
       {":29500", "a b", "a/b:1", "[]:1", "a:b:29500", "1:2:3", "[:]:1", "[:::]:1"}) {
    CAPTURE(text);
    const auto endpoint = parse_endpoint(text, 1);
    REQUIRE(!endpoint.has_value());
    CHECK(endpoint.error().text.contains("' has no valid host: "));
  }
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
