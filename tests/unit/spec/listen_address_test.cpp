// SPDX-License-Identifier: Apache-2.0
#include "spec/listen_address.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

using namespace elastrun;
using spec::ListenAddress;

namespace {

std::string refused(std::string_view text) {
  const auto at = spec::parse_listen_address("--http", text);
  if (at) return "taken: " + at->address + " " + std::to_string(at->port);
  CHECK(at.error().exit_code == 2);
  CHECK(at.error().hint.starts_with("expected PORT or ADDRESS:PORT"));
  return at.error().text;
}

}  // namespace

TEST_CASE("listen address: without an address it is this machine only") {
  for (const char* text : {"9400", ":9400", "localhost:9400", "127.0.0.1:9400"}) {
    CHECK(spec::parse_listen_address("--http", text) == ListenAddress{"127.0.0.1", 9400});
  }
  CHECK(spec::parse_listen_address("--http", "0") == ListenAddress{"127.0.0.1", 0});
}

TEST_CASE("listen address: everybody, or one address, in either family") {
  CHECK(spec::parse_listen_address("x", "0.0.0.0:80") == ListenAddress{"0.0.0.0", 80});
  CHECK(spec::parse_listen_address("x", "[::]:9400") == ListenAddress{"::", 9400});
  CHECK(spec::parse_listen_address("x", "[fe80::1]:65535") == ListenAddress{"fe80::1", 65535});
}

TEST_CASE("listen address: what is none is refused with its reason") {
  CHECK(refused("99999") == "--http 99999: the port is a number from 0 to 65535");
  CHECK(refused("") == "--http : the port is a number from 0 to 65535");
  CHECK(refused("127.0.0.1:") == "--http 127.0.0.1:: the port is a number from 0 to 65535");
  CHECK(refused("80 ") == "--http 80 : the port is a number from 0 to 65535");
  CHECK(refused("-1") == "--http -1: the port is a number from 0 to 65535");
  CHECK(refused("+80") == "--http +80: the port is a number from 0 to 65535");
  CHECK(refused("node7:80") == "--http node7:80: node7 is not a numeric address");
  CHECK(refused("::1:80") == "--http ::1:80: an IPv6 address stands in brackets");
  CHECK(refused("[127.0.0.1]:80") == "--http [127.0.0.1]:80: 127.0.0.1 is not a numeric address");
  CHECK(refused("1.2.3:80") == "--http 1.2.3:80: 1.2.3 is not a numeric address");
}
