// SPDX-License-Identifier: Apache-2.0
#include "store/conversation.hpp"

#include "net/frame.hpp"

#include <algorithm>
#include <array>
#include <doctest/doctest.h>
#include <malloc.h>

using namespace elastrun;
using namespace elastrun::store;
using namespace std::string_literals;
using Texts = std::vector<std::string_view>;

namespace {

const std::string kValidate = "\0\xCE\xF7\x85\x3C"s;

struct Client {
  explicit Client(Exchange& exchange, Protocol spoken = Protocol::Current)
      : all(exchange), peer(exchange.open()), protocol(spoken) {
    if (protocol == Protocol::Current) send(kValidate);
  }
  void send(std::string_view bytes) { all.receive(peer, bytes); }
  void ask(Query query, std::string_view key = {}, std::string_view value = {},
           std::string_view desired = {}) {
    send(message({.query = query, .key = key, .value = value, .desired = desired}));
  }
  void count(Query query, std::string_view key, std::int64_t number) {
    send(message({.query = query, .key = key, .number = number}));
  }
  void list(Query query, const Texts& texts) { send(message({.query = query, .texts = texts})); }
  std::string message(const Request& request) const {
    std::string bytes;
    append_request(bytes, request, protocol);
    return bytes;
  }
  std::string answer() { return all.at(peer).output().take(); }
  bool ended() const { return all.at(peer).ended(); }
  std::string violation() const { return all.at(peer).violation(); }

  Exchange& all;
  Peer peer;
  Protocol protocol;
};

std::string text(std::string_view bytes) {
  std::string out;
  append_text(out, bytes);
  return out;
}
std::string number(std::int64_t value) {
  std::string out;
  net::append(out, value);
  return out;
}

}  // namespace

TEST_CASE("conversation: the first bytes tell the protocol, in any pieces") {
  Exchange exchange;
  Client current(exchange);
  current.ask(Query::Get, "/missing");
  CHECK(current.answer() == text(""));

  Client old(exchange, Protocol::Old);
  old.count(Query::Add, "/n", 2);
  CHECK(old.answer() == number(2));
  Client old_set(exchange, Protocol::Old);
  old_set.ask(Query::Set, "/k", "v");
  old_set.ask(Query::Get, "/k");
  CHECK(old_set.answer() == text("v"));

  Client pieces(exchange, Protocol::Old);
  pieces.send("");
  pieces.send("\0"s);
  CHECK(!pieces.ended());
  pieces.send("\xCE\xF7\x85"s);
  pieces.send("\x3C\x0D"s);
  pieces.send("abcd");
  CHECK(pieces.answer() == "abcd");
}

TEST_CASE("conversation: what is neither protocol is ended and named") {
  Exchange exchange;
  Client http(exchange, Protocol::Old);
  http.send("GET / HTTP/1.0\r\n\r\n");
  CHECK(http.ended());
  CHECK(http.violation() ==
        "does not speak to a store: its first bytes are "
        "47 45 54 20 2f 20 48 54 54 50 2f 31 2e 30 0d 0a ...");
  http.send(kValidate);
  CHECK(http.answer().empty());
}

TEST_CASE("conversation: each limit has its own words") {
  Exchange exchange;
  const auto violation = [&](const std::string& bytes) {
    Client client(exchange);
    client.send(bytes);
    return client.violation();
  };
  CHECK(violation("\x03"s + number(8193)) == "sent a key of 8193 bytes; the limit is 8192");
  CHECK(violation("\x01"s + text("/a") + number(8388609)) ==
        "sent a value of 8388609 bytes; the limit is 8388608");
  CHECK(violation("\x05"s + number(131073)) == "sent a list of 131073 keys; the limit is 131072");
  Client adds(exchange);
  adds.ask(Query::Set, "/a\n", "abc");
  adds.count(Query::Add, "/a\n", 1);
  CHECK(adds.violation() == "counts with the key /a?, whose value is not a 64-bit number");
}

TEST_CASE("conversation: a request of one peer answers others that wait") {
  Exchange exchange;
  Client a(exchange), b(exchange), c(exchange);
  a.list(Query::Wait, {"/x", "/y"});
  b.count(Query::Barrier, "/x", 2);
  CHECK(b.answer().empty());
  c.count(Query::Barrier, "/x", 2);
  CHECK(b.answer() == "\0"s);
  CHECK(c.answer() == "\0"s);
  CHECK(a.answer().empty());
  c.list(Query::MultiSet, {"/y", "1", "/z", "2"});
  CHECK(a.answer() == "\0"s);
  std::vector<Peer> touched;
  exchange.take_touched(touched);
  CHECK(std::count(touched.begin(), touched.end(), a.peer) == 1);
  exchange.take_touched(touched);
  CHECK(touched.empty());
}

TEST_CASE("conversation: a peer that leaves is no longer waited for or woken") {
  Exchange exchange;
  Client a(exchange), b(exchange);
  a.list(Query::Wait, {"/x"});
  exchange.close(a.peer);
  Client next(exchange);
  CHECK(next.peer == a.peer);
  b.ask(Query::Set, "/x", "1");
  CHECK(next.answer().empty());
}

TEST_CASE("conversation: the call-backs of torch 1.13 tell every change") {
  Exchange exchange;
  Client watcher(exchange, Protocol::Old), other(exchange);
  watcher.ask(Query::Watch, "/k");
  CHECK(watcher.answer() == "\x03");
  other.ask(Query::Set, "/k", "1");
  CHECK(watcher.answer() == "\x01" + text("/k") + text("") + text("1"));
  other.ask(Query::CompareSet, "/k", "1", "2");
  CHECK(watcher.answer() == "\0"s + text("/k") + text("1") + text("2"));
  other.ask(Query::Delete, "/k");
  CHECK(watcher.answer() == "\x02" + text("/k") + text("2") + text(""));
}

TEST_CASE("conversation: nobody is told of changes who can ask for an answer that has to wait") {
  // So nothing but the ends of waits, a byte each, can pile up behind one.
  Exchange exchange;
  for (const char query : {'\x0A', '\x12'}) {  // MULTI_GET, LIST_KEYS
    Client watcher(exchange, Protocol::Old);
    watcher.ask(Query::Watch, "/k");
    CHECK(!watcher.ended());
    watcher.send(std::string(1, query) + std::string(8, '\0'));
    CHECK(watcher.ended());
  }
}

TEST_CASE("conversation: torch 1.13's GET of a missing key ends it") {
  Exchange exchange;
  Client old(exchange, Protocol::Old);
  old.ask(Query::Get, "/k");
  CHECK(old.ended());
  CHECK(old.violation() == "asked for the key /k, which does not exist");
}

TEST_CASE("conversation: who does not read is not served further, and goes on when it reads") {
  Exchange exchange;
  Client client(exchange);
  client.ask(Query::Set, "/large", std::string(300'000, 'x'));
  constexpr int kAsked = 20;
  for (int i = 0; i < kAsked; ++i) client.ask(Query::Get, "/large");
  auto& conversation = exchange.at(client.peer);
  CHECK(conversation.stalled());
  CHECK(conversation.output().size() <= Conversation::kStallAt + 300'008);
  CHECK(conversation.output().own_size() < 100);
  std::size_t answered = 0;
  while (!conversation.output().empty()) {
    answered += client.answer().size();
    exchange.receive(client.peer, {});
  }
  CHECK(answered == kAsked * 300'008);
  CHECK(!conversation.pending());
}

TEST_CASE("conversation: an answer that is larger than may pile up is made while it is read") {
  Exchange exchange;
  Client client(exchange), other(exchange);
  std::vector<std::string> names;
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    names.push_back("/" + std::to_string(i));
    const std::string value(4000, static_cast<char>('a' + i % 26));
    client.ask(Query::Set, names.back(), value);
    all += text(value);
  }
  // It waits as well, as no client of torch does: what others cause comes after the answer.
  client.list(Query::Wait, {"/late"});
  client.list(Query::MultiGet, {names.begin(), names.end()});
  client.list(Query::ListKeys, {});
  auto& conversation = exchange.at(client.peer);
  CHECK(conversation.output().own_size() < Conversation::kStallAt + kShareFrom + 100);
  CHECK(conversation.pending());
  other.ask(Query::Set, "/late", "x");
  std::string answered;
  while (!conversation.output().empty()) {
    answered += client.answer();
    exchange.receive(client.peer, {});
  }
  CHECK(answered.substr(0, all.size()) == all);
  CHECK(answered.substr(all.size(), 9) == "\0"s + std::string("\xE9\3\0\0\0\0\0\0", 8));
  CHECK(!conversation.pending());
}

TEST_CASE("conversation: neither a request that came in pieces nor a value that has gone is kept") {
  const auto used = [] {
    const auto now = ::mallinfo2();  // zeros under a sanitizer
    return now.uordblks + now.hblkhd;
  };
  Exchange exchange;
  Client client(exchange);
  const auto before = used();
  for (int i = 0; i < 1000; ++i) {
    for (const auto size : {kShareFrom - 1, kShareFrom}) {
      client.ask(Query::Set, "/" + std::to_string(i), std::string(size, 's'));
    }
  }
  CHECK(used() < before + 1000 * (kShareFrom + 1000));
  {
    const std::string value(8 << 20, 'v');
    const auto bytes = client.message({.query = Query::Set, .key = "/large", .value = value});
    client.send(std::string_view(bytes).substr(0, bytes.size() / 2));
    client.send(std::string_view(bytes).substr(bytes.size() / 2));
  }
  client.ask(Query::Delete, "/large");
  client.answer();
  CHECK(used() < before + 1000 * (kShareFrom + 1000));
}

static std::string gathered(const Output& output, std::span<iovec> parts) {
  std::string bytes;
  for (const auto& part : parts.first(output.gather(parts))) {
    bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
  }
  return bytes;
}

/// Own bytes and shared values in all neighbourhoods.
static std::string fill(Output& output) {
  const std::string large(kShareFrom, 'L');
  const std::string larger(kShareFrom + 3, 'M');
  const std::string sizes[] = {std::string("\0\x10\0\0\0\0\0\0", 8),
                               std::string("\3\x10\0\0\0\0\0\0", 8)};
  output.put("ab");
  output.put_value(Value(large));
  output.put_value(Value(larger));
  output.put('c');
  output.put_value(Value("small"));
  output.put_value(Value(large));
  return "ab" + sizes[0] + large + sizes[1] + larger + "c" + std::string("\5\0\0\0\0\0\0\0", 8) +
         "small" + sizes[0] + large;
}

TEST_CASE("output: all bytes come out in order, however few are taken at a time") {
  for (const std::size_t step : {1u, 7u, 4096u, 5000u, 100000u}) {
    for (const std::size_t parts_at_once : {2u, 3u, 64u}) {
      CAPTURE(step);
      CAPTURE(parts_at_once);
      Output output;
      const std::string all = fill(output);
      CHECK(output.size() == all.size());
      std::vector<iovec> parts(parts_at_once);
      std::string taken;
      while (!output.empty()) {
        const auto next = gathered(output, parts).substr(0, step);
        REQUIRE(!next.empty());
        output.sent(next.size());
        taken += next;
      }
      CHECK(taken == all);
      CHECK(output.size() == 0);
      CHECK(output.own_size() == 0);
    }
  }
}

TEST_CASE("output: a large value counts, but not as memory of this peer") {
  Output output;
  const Value value(std::string(1 << 20, 'x'));
  for (int i = 0; i < 10; ++i) output.put_value(value);
  CHECK(output.size() == 10 * ((1u << 20) + 8));
  CHECK(output.own_size() == 80);
  CHECK(value.shared().use_count() == 12);
  output.take();
  CHECK(value.shared().use_count() == 2);
}

TEST_CASE("output: what was sent is given back, though there is always something left to send") {
  Output output;
  const std::string large(kShareFrom, 'L');
  std::string expected, taken;
  for (int i = 0; i < 20'000; ++i) {
    output.put_text(std::string(400, static_cast<char>('a' + i % 26)));
    output.put_value(Value(large));
    if (i < 10) continue;
    CHECK(output.size() >= 10 * 400);
    std::vector<iovec> parts(4);
    taken = gathered(output, parts);
    output.sent(std::min<std::size_t>(taken.size(), 400 + 8 + 8 + kShareFrom));
    REQUIRE(!output.empty());
    REQUIRE(output.held() < 600'000);
  }
}

TEST_CASE("output: a peer that has everything keeps no buffer") {
  Output output;
  output.put_text(std::string(1 << 20, 't'));
  for (int i = 0; i < 100; ++i) output.put_value(Value(std::string(kShareFrom, 'L')));
  output.sent(output.size());
  CHECK(output.empty());
  CHECK(output.held() < 1024);
}
