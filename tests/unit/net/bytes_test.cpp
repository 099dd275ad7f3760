// SPDX-License-Identifier: Apache-2.0
#include "net/bytes.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::string_literals;

TEST_CASE("bytes: a number comes back as it was written, in both orders") {
  std::string out;
  net::append<std::uint32_t>(out, 0x01020304);
  net::append<std::uint32_t, net::Order::Big>(out, 0x01020304);
  net::append<std::int64_t>(out, -2);
  CHECK(out == "\x04\x03\x02\x01\x01\x02\x03\x04\xfe\xff\xff\xff\xff\xff\xff\xff"s);
  net::ByteReader reader(out);
  CHECK(reader.number<std::uint32_t>() == 0x01020304);
  CHECK((reader.number<std::uint32_t, net::Order::Big>()) == 0x01020304);
  CHECK(reader.number<std::int64_t>() == -2);
  CHECK(reader.empty());
}

TEST_CASE("bytes: what is not wholly there is not read at all") {
  net::ByteReader reader("abc");
  CHECK(!reader.number<std::uint32_t>());
  CHECK(!reader.bytes(4));
  CHECK(!reader.bytes(~std::uint64_t{0}));
  CHECK(reader.bytes(2) == "ab");
  CHECK(reader.rest() == "c");
}

TEST_CASE("bytes: hex is printed for people and read back from files") {
  CHECK(net::format_hex("\0\xce\xf7"s) == "00 ce f7");
  CHECK(net::format_hex("abcdef", 2) == "61 62 ...");
  CHECK(net::parse_hex("00CEf7") == "\0\xce\xf7"s);
  CHECK(net::parse_hex("") == ""s);
  CHECK(!net::parse_hex("0"));
  CHECK(!net::parse_hex("0g"));
  CHECK(!net::parse_hex("00 1"));
}
