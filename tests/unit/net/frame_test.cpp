// SPDX-License-Identifier: Apache-2.0
#include "net/frame.hpp"

#include "net/listener.hpp"

#include <doctest/doctest.h>
#include <memory>
#include <string>

using namespace elastrun;
using namespace elastrun::net;
using namespace std::string_literals;

namespace {

struct Pair {
  explicit Pair(std::string_view secret = "s3cret", std::string_view other = "s3cret")
      : writer(make_sealer(secret), Side::Connector, session),
        reader(make_sealer(other), Side::Listener, session) {}
  std::string frame(std::string_view payload) {
    std::string bytes;
    writer.write(bytes, payload);
    return bytes;
  }
  std::string session = std::string(32, 'n');
  Frames writer, reader;
};

}  // namespace

TEST_CASE("frame: a seal is the HMAC-SHA256 that other programs compute") {
  // Nearly test case 2 of RFC 4231, fed in the pieces that a seal is made of.
  const auto sealer = make_sealer("Jefe");
  std::string message = "what do ya want for nothing?";
  message[0] = 'C';
  char number[8];
  std::string_view rest(message);
  rest.copy(number, 8, 2);
  const Seal seal = sealer->seal(Side::Connector, rest.substr(1, 1), load<std::uint64_t>(number),
                                 rest.substr(10));
  // printf 'Chat do ya want for nothing?' | openssl dgst -sha256 -hmac Jefe
  CHECK(format_hex({seal.data(), seal.size()}, seal.size()) ==
        "cb 40 01 67 ec ff 4d 88 62 8b a2 40 f4 26 9c 21 "
        "b8 78 3f 16 28 b7 61 37 31 68 7a 86 19 ee 03 2f");
}

TEST_CASE("frame: frames arrive whole, in order and one by one, however they are cut") {
  Pair pair;
  std::string all = pair.frame("{}");
  all += pair.frame("");
  all += pair.frame(std::string(5000, 'x'));
  std::string bytes;
  std::vector<std::size_t> sizes;
  for (const char byte : all) {
    bytes.push_back(byte);
    const auto frame = pair.reader.take(bytes);
    REQUIRE(frame.has_value());
    if (*frame) sizes.push_back((*frame)->payload.size());
  }
  CHECK(sizes == std::vector<std::size_t>{2, 0, 5000});
  CHECK(bytes.empty());
}

TEST_CASE("frame: another secret is refused, and an empty one is one too") {
  for (const auto& [mine, theirs] : {std::pair{"a", "b"}, {"", "b"}, {"a", ""}}) {
    Pair pair(mine, theirs);
    std::string bytes = pair.frame("{}");
    const auto frame = pair.reader.take(bytes);
    REQUIRE(!frame.has_value());
    CHECK(frame.error().code == Code::Rendezvous);
  }
  Pair open("", "");
  std::string bytes = open.frame("{}");
  CHECK(open.reader.take(bytes).has_value());
}

TEST_CASE("frame: a repeated, skipped, changed or reflected frame is refused") {
  Pair pair;
  const std::string first = pair.frame("first"), second = pair.frame("second");
  std::string repeated = first + first;
  CHECK(pair.reader.take(repeated).has_value());
  CHECK(!pair.reader.take(repeated).has_value());

  Pair skipped;
  std::string later = second;
  CHECK(!skipped.reader.take(later).has_value());

  for (std::size_t at = 4; at < first.size(); ++at) {
    Pair fresh;
    std::string changed = first;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK(!fresh.reader.take(changed).has_value());
  }
  Frames back(make_sealer("s3cret"), Side::Connector, pair.session);
  std::string reflected = first;
  CHECK(!back.take(reflected).has_value());
  Frames other_session(make_sealer("s3cret"), Side::Listener, std::string(32, 'm'));
  std::string recorded = first;
  CHECK(!other_session.take(recorded).has_value());
}

TEST_CASE("frame: a length over the limit is refused before the payload comes") {
  Pair pair;
  std::string bytes;
  append<std::uint32_t>(bytes, 0xffffffff);
  const auto frame = pair.reader.take(bytes);
  REQUIRE(!frame.has_value());
  CHECK(frame.error().text == "a frame of 4294967295 bytes is over the limit of 65536");
}

TEST_CASE("frame: an unsealed frame says so, and does not disturb the count") {
  Pair pair;
  std::string bytes;
  write_unsealed(bytes, "why");
  bytes += pair.frame("{}");
  auto frame = pair.reader.take(bytes);
  REQUIRE((frame && *frame));
  CHECK(!(*frame)->sealed);
  frame = pair.reader.take(bytes);
  REQUIRE((frame && *frame));
  CHECK((*frame)->sealed);
}

TEST_CASE(
    "frame: a greeting survives the wire, and strangers are recognised at the first wrong byte") {
  const Greeting greeting = make_greeting();
  std::string bytes = encode_greeting(greeting);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    std::string part = bytes.substr(0, cut);
    const auto none = take_greeting(part);
    REQUIRE(none.has_value());
    CHECK(!*none);
  }
  const auto taken = take_greeting(bytes);
  REQUIRE((taken && *taken));
  CHECK((*taken)->nonce == greeting.nonce);
  CHECK((*taken)->version == kProtocolVersion);
  CHECK(bytes.empty());
  std::string http = "H";
  CHECK(!take_greeting(http).has_value());
  CHECK(make_greeting().nonce != greeting.nonce);
}

TEST_CASE("first bytes: agents, stores and HTTP are told apart") {
  CHECK(recognise("") == Protocol::Undecided);
  CHECK(recognise(std::string_view("\0", 1)) == Protocol::Store);
  CHECK(recognise("\x08") == Protocol::Store);
  CHECK(recognise("GET / HTTP/1.1") == Protocol::Unknown);
  CHECK(recognise("\xE5last") == Protocol::Undecided);
  CHECK(recognise(encode_greeting(make_greeting())) == Protocol::Agent);
  CHECK(recognise("\xE5lost it") == Protocol::Unknown);
  CHECK(recognise("hello") == Protocol::Unknown);
}

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
