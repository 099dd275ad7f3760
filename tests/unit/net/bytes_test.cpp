// SPDX-License-Identifier: Apache-2.0
#include "net/frame.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace std::string_literals;

TEST_CASE("bytes: a number comes back as it was written") {
  std::string out;
  net::append<std::uint32_t>(out, 0x01020304);
  net::append<std::int64_t>(out, -2);
  CHECK(out == "\x04\x03\x02\x01\xfe\xff\xff\xff\xff\xff\xff\xff"s);
  net::ByteReader reader(out);
  CHECK(reader.number<std::uint32_t>() == 0x01020304);
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

TEST_CASE("bytes: hex is printed for people") {
  CHECK(net::format_hex("\0\xce\xf7"s) == "00 ce f7");
  CHECK(net::format_hex("abcdef", 2) == "61 62 ...");
}

TEST_CASE("base64: what OpenSSL accepts besides is rejected") {
  CHECK(net::decode_base64("") == "");
  CHECK(net::decode_base64("Zg==") == "f");
  for (const char* bad : {" ", "\n", "=", "==", "====", " Zg==", "Zg==\n", "Zm9v\r\n",
                          "Zh==", "Zm9=", "Z===", "Zg==Zg==", "Zg=v", "Zm9v-", "Zm9"}) {
    CAPTURE(bad);
    CHECK_FALSE(net::decode_base64(bad));
  }
}
