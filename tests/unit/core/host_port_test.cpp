// SPDX-License-Identifier: Apache-2.0
#include "core/host.hpp"

#include <doctest/doctest.h>

using namespace elastrun;

TEST_CASE("host and port: as torchrun reads them, with IPv6 with and without brackets") {
  struct Row {
    const char* text;
    HostPort expected;
  };
  for (const Row& row :
       {Row{"", {"localhost", {}}}, Row{" node7:29400 ", {"node7", 29400}},
        Row{"node-1.example_x", {"node-1.example_x", {}}}, Row{"n:0", {"n", 0}},
        Row{"m\xc3\xbcnchen:1", {"m\xc3\xbcnchen", 1}}, Row{"10.0.0.1:65535", {"10.0.0.1", 65535}},
        Row{"[::1]:29776", {"::1", 29776}}, Row{"[fe80::1]", {"fe80::1", {}}},
        Row{"[fe80::1%eth0]:29500", {"fe80::1%eth0", 29500}}, Row{"fe80::12", {"fe80::12", {}}},
        Row{"::", {"::", {}}}, Row{"::1:29500", {"::1", 29500}},
        Row{"2001:db8:1:2:3:4:5:6:80", {"2001:db8:1:2:3:4:5:6", 80}}}) {
    CAPTURE(row.text);
    const auto found = parse_host_port(row.text);
    REQUIRE(found.has_value());
    CHECK(*found == row.expected);
  }
}

TEST_CASE("host and port: what is wrong is told, the port first") {
  for (const char* text :
       {"a:65536", "a:", "a:x", "a:-1", "a: 1", "[::1]:", "[::1]x", "a$:123456"}) {
    CAPTURE(text);
    CHECK(parse_host_port(text).error() == HostPortFault::Port);
  }
  for (const char* text : {":29500", "a b", "a/b:1", "[]:1", "[]", "[::1", "a:b:29500", "1:2:3",
                           "[:]:1", "[:::]:1", "a%b"}) {
    CAPTURE(text);
    CHECK(parse_host_port(text).error() == HostPortFault::Host);
  }
}
