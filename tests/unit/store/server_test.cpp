// SPDX-License-Identifier: Apache-2.0
#include "store/server.hpp"

#include "net/listener.hpp"
#include "store/tcp_protocol.hpp"
#include "support/logged_text.hpp"
#include "unit/store/raw_client.hpp"

#include <algorithm>
#include <boost/asio/read.hpp>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::store;
using namespace std::string_literals;
using test::RawClient;
namespace asio = boost::asio;

namespace {

const std::string kOpen = "\0\xCE\xF7\x85\x3C"s;
const std::string kPing =
    "\x0D"
    "abcd"s;

std::string ask(Query query, std::string_view key, std::string_view value = {}) {
  std::string bytes;
  append_request(bytes, {.query = query, .key = key, .value = value});
  return bytes;
}

std::string words(std::string_view bytes) {
  std::string out;
  append_text(out, bytes);
  return out;
}

/// What the server logs while this lives.
struct Log : elastrun::test::LoggedText {
  bool has(std::string_view words) const { return text.find(words) != std::string::npos; }
};

struct Fixture {
  explicit Fixture(Server::Settings settings = {})
      : server(Server::listen(loop, "127.0.0.1", 0, std::move(settings)).value()) {}
  RawClient client() { return RawClient(loop, server->port()); }
  /// A client that has been served, so it counts as a connection.
  RawClient served_client() {
    RawClient served = client();
    served.send(kOpen + kPing);
    CHECK(served.receive(4) == "abcd");
    return served;
  }
  Log log;
  asio::io_context loop;
  std::unique_ptr<Server> server;
};

}  // namespace

TEST_CASE("server: says who changes something, and not who only looks") {
  int changes = 0;
  Fixture at({.on_change = [&] { ++changes; }});
  auto a = at.served_client();
  CHECK(changes == 0);
  a.send(ask(Query::Set, "/k", "value") + kPing);
  CHECK(a.receive(4) == "abcd");
  CHECK(changes == 1);
  a.send(ask(Query::Get, "/k"));
  CHECK(a.receive(13) == words("value"));
  CHECK(changes == 1);
}

TEST_CASE("server: serves on the port it names") {
  Fixture at;
  auto a = at.served_client(), b = at.served_client();
  a.send(ask(Query::Set, "/k", "value") + kPing);
  CHECK(a.receive(4) == "abcd");
  b.send(ask(Query::Get, "/k"));
  CHECK(b.receive(13) == words("value"));
  const auto now = at.server->statistics();
  CHECK(now.accepted == 2);
  CHECK(now.connections == 2);
  CHECK(now.requests == 5);
  CHECK(now.keys == 1);
  a.close();
  b.send(kPing);
  CHECK(b.receive(4) == "abcd");
  while (at.server->statistics().connections > 1) at.loop.run_one();
}

TEST_CASE("server: a value larger than any buffer comes back whole") {
  Fixture at;
  auto client = at.served_client();
  std::string value(kMaxValue, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 31 >> 3);
  REQUIRE(
      client.send(ask(Query::Set, "/k", value) + ask(Query::Get, "/k") + ask(Query::Get, "/k")));
  CHECK(client.receive(value.size() + 8) == words(value));
  CHECK(client.receive(value.size() + 8) == words(value));
}

TEST_CASE("server: a fault ends one connection, with a line in the log, and hurts no other") {
  Fixture at;
  auto bystander = at.served_client();
  for (const std::string& bad :
       {"GET / HTTP/1.1\r\n\r\n"s, kOpen + "\xFF", kOpen + "\x03" + std::string(8, '\xFF')}) {
    auto rogue = at.client();
    rogue.send(bad);
    CHECK(rogue.closed());
  }
  CHECK(at.log.has("does not speak to a store"));
  CHECK(at.log.has("sent an invalid request number 255"));
  CHECK(at.log.has("sent a key of 18446744073709551615 bytes"));
  bystander.send(kPing);
  CHECK(bystander.receive(4) == "abcd");
  CHECK(at.server->statistics().cut_off == 3);
}

TEST_CASE("server: many faults do not fill the log") {
  Fixture at;
  for (int i = 0; i < 300; ++i) {
    auto rogue = at.client();
    rogue.send("garbage");
    CHECK(rogue.closed());
  }
  const auto lines = std::count(at.log.text.begin(), at.log.text.end(), '\n');
  CHECK(lines == 16 + 4);  // all of the first 16, then number 32, 64, 128 and 256
  CHECK(at.log.has("(256 such lines so far)"));
}

TEST_CASE("server: a peer that never reads waits for itself, and is served once it reads") {
  Fixture at;
  auto reader = at.served_client();
  reader.send(ask(Query::Set, "/k", std::string(1 << 20, 'x')) + kPing);
  CHECK(reader.receive(4) == "abcd");
  RawClient lazy(at.loop, at.server->port(), 4096);
  constexpr std::size_t kAsked = 40;
  lazy.send(kOpen);
  for (std::size_t i = 0; i < kAsked; ++i) lazy.send(ask(Query::Get, "/k"));
  while (!at.log.has("does not read its answers")) at.loop.run_one();
  reader.send(kPing);
  CHECK(reader.receive(4) == "abcd");
  CHECK(at.server->statistics().requests < kAsked);
  const std::size_t size = (1 << 20) + 8;
  for (std::size_t i = 0; i < kAsked; ++i) REQUIRE(lazy.receive(size).size() == size);
}

TEST_CASE("server: a peer for which too much piles up is cut off") {
  Server::Settings settings;
  settings.max_backlog = 100'000;
  Fixture at(settings);
  RawClient lazy(at.loop, at.server->port(), 4096);
  lazy.send("\x07"s + words("/watched"));  // WATCH_KEY of torch 1.13
  CHECK(lazy.receive(1) == "\3");
  auto reader = at.served_client();
  while (at.server->statistics().cut_off == 0) {
    reader.send(ask(Query::Set, "/watched", std::string(4000, 'x')) + kPing);
    CHECK(reader.receive(4) == "abcd");
  }
  CHECK(at.log.has("bytes have piled up; the limit is 100000"));
  reader.send(kPing);
  CHECK(reader.receive(4) == "abcd");
}

TEST_CASE("server: start_afresh closes all connections and forgets all keys, on the same port") {
  Fixture at;
  auto before = at.served_client();
  before.send(ask(Query::Set, "/k", "v") + kPing);
  before.receive(4);
  const auto port = at.server->port();
  at.server->start_afresh();
  CHECK(before.closed());
  CHECK(at.server->port() == port);
  auto after = at.served_client();
  after.send(ask(Query::Get, "/k"));
  CHECK(after.receive(8) == words(""));
  CHECK(at.server->statistics().connections == 1);
}

/// A store with 1000 values of 4000 bytes, and the request for all of them.
static std::string fill(RawClient& writer) {
  std::string request = "\x0A"s + std::string("\xE8\3\0\0\0\0\0\0", 8);
  for (int i = 0; i < 1000; ++i) {
    writer.send(ask(Query::Set, fmt::format("/{}", i), std::string(4000, 'x')));
    request += words(fmt::format("/{}", i));
  }
  writer.send(kPing);
  CHECK(writer.receive(4) == "abcd");
  return request;
}

TEST_CASE("server: an answer larger than what may pile up comes whole to whom reads it late") {
  Server::Settings settings;
  settings.max_backlog = 2'000'000;
  Fixture at(settings);
  auto writer = at.served_client();
  const auto request = fill(writer);
  RawClient slow(at.loop, at.server->port(), 4096);
  slow.send(kOpen + request + request + kPing);
  while (!at.log.has("does not read its answers")) at.loop.run_one();
  constexpr std::size_t kAll = 2 * 1000 * 4008;
  CHECK(slow.receive(kAll).size() == kAll);
  CHECK(slow.receive(4) == "abcd");
  CHECK(at.server->statistics().cut_off == 0);
}

TEST_CASE("server: who was sent enough for a turn gets the rest, though its socket never fills") {
  Server::Settings settings;
  settings.send_per_turn = 10'000;
  Fixture at(settings);
  auto client = at.served_client();
  // Each value is a part of its own, so one sendmsg(2) does not take all.
  const std::string value(5000, 'v');
  client.send(ask(Query::Set, "/v", value) + kPing);
  CHECK(client.receive(4) == "abcd");
  std::string request = "\x0A"s + std::string("\xC8\0\0\0\0\0\0\0", 8);
  for (int i = 0; i < 200; ++i) request += words("/v");
  client.send(request);
  constexpr std::size_t kAll = 200 * 5008;
  CHECK(client.receive(kAll).size() == kAll);  // hangs if no turn follows
}

TEST_CASE("server: before the round nobody is heard, then those who came early are, or refused") {
  Server::Settings settings;
  settings.awaits_peers = true;
  Fixture at(settings);
  asio::ip::tcp::acceptor acceptor(at.loop, {asio::ip::address_v4::loopback(), 0});
  const auto both = [&](const auto& allowed, bool served) {
    auto early = at.client();
    RawClient handed_over(at.loop, acceptor.local_endpoint().port());
    at.server->adopt(acceptor.accept(), kOpen + ask(Query::Set, "/k", "v") + kPing);
    early.send(kOpen + ask(Query::Set, "/l", "v") + kPing);
    at.loop.restart();
    at.loop.run_for(std::chrono::milliseconds(20));  // too short hides a fault, no more
    CHECK(at.server->statistics().keys == 0);
    CHECK(at.server->statistics().connections == 0);
    at.server->allow_peers(allowed);
    CHECK(early.receive(4) == (served ? "abcd" : ""));
    CHECK(handed_over.receive(4) == (served ? "abcd" : ""));
    CHECK(at.server->statistics().keys == (served ? 2 : 0));
    at.server->start_afresh();
    CHECK(at.server->statistics().connections == 0);
  };
  using Addresses = std::vector<asio::ip::address>;
  both(Addresses{asio::ip::make_address("192.0.2.1")}, false);
  both(Addresses{}, true);
  both(Addresses{asio::ip::make_address("127.0.0.1")}, true);
}

TEST_CASE("server: only allowed peers are served, when there is a list") {
  Fixture at;
  at.server->allow_peers({asio::ip::make_address("192.0.2.1")});
  auto stranger = at.client();
  CHECK(stranger.closed());
  CHECK(at.log.has("no node of this job has that address"));
  CHECK(at.server->statistics().refused == 1);
  at.server->allow_peers({asio::ip::make_address("::ffff:127.0.0.1")});
  at.served_client();
  at.server->allow_peers({});
  at.served_client();
}

TEST_CASE("server: more connections than allowed are refused, and places are given again") {
  Server::Settings settings;
  settings.max_connections = 2;
  Fixture at(settings);
  auto a = at.served_client();
  {
    auto b = at.served_client();
    auto c = at.client();
    CHECK(c.closed());
    CHECK(at.log.has("2 connections are open, the limit"));
  }
  while (at.server->statistics().connections > 1) at.loop.run_one();
  at.served_client();
}

TEST_CASE("server: without a free descriptor new peers wait, and are served when there is one") {
  Fixture at;
  auto first = at.served_client();
  auto second = at.client();
  REQUIRE(second.connected());
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(second.fd() + 1);  // the lowest free one is beyond it
  ::setrlimit(RLIMIT_NOFILE, &none);
  while (!at.log.has("cannot accept a connection")) at.loop.run_one();
  first.send(kPing);
  CHECK(first.receive(4) == "abcd");
  ::setrlimit(RLIMIT_NOFILE, &before);
  second.send(kOpen + kPing);
  CHECK(second.receive(4) == "abcd");
}

TEST_CASE("server: listens on both families for an empty address, and on one for a number") {
  asio::io_context loop;
  for (const char* address : {"", "::", "0.0.0.0", "localhost"}) {
    CAPTURE(address);
    const auto server = Server::listen(loop, address, 0, {});
    REQUIRE(server);
    RawClient client(loop, (*server)->port());
    client.send(kOpen + kPing);
    CHECK(client.receive(4) == "abcd");
  }
}

TEST_CASE("server: why it cannot listen is said so that a person can act") {
  asio::io_context loop;
  const auto error = [&](const char* address, std::uint16_t port) {
    const auto server = Server::listen(loop, address, port, {});
    REQUIRE(!server);
    CHECK(server.error().code == Code::Store);
    return server.error().text;
  };
  CHECK(
      error("node17", 0) ==
      "cannot listen on 'node17': it is not an IPv4 or IPv6 address; names are not looked up here, "
      "give the number");
  CHECK(error("192.0.2.1", 0) ==
        "cannot listen on 192.0.2.1:0: this machine does not have that address");
  const auto other = Server::listen(loop, "127.0.0.1", 0, {}).value();
  const auto taken = error("127.0.0.1", other->port());
  CHECK(taken.find(fmt::format("the port is in use by process {} (", ::getpid())) !=
        std::string::npos);
  CHECK(taken.ends_with("; stop it, or choose another port (0: any free one)"));
}

TEST_CASE("server: a client whose machine is gone is noticed within minutes") {
  const auto listening = open_listening("127.0.0.1", 0).value();
  asio::io_context loop;
  asio::ip::tcp::socket client(loop);
  client.connect(net::bound_to(listening.get()));
  const UniqueFd accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(accepted);
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    REQUIRE(::getsockopt(accepted.get(), level, name, &value, &size) == 0);
    return value;
  };
  CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) +
            option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT) <=
        120);
}

TEST_CASE("server: a port nobody listens on has no owner") {
  asio::io_context loop;
  auto server = Server::listen(loop, "127.0.0.1", 0, {}).value();
  const auto port = server->port();
  CHECK(!find_port_owner(port).empty());
  server.reset();
  CHECK(find_port_owner(port).empty());
}

TEST_CASE("server: goes at once, with connections open and work queued") {
  asio::io_context loop;
  auto server = Server::listen(loop, "127.0.0.1", 0, {}).value();
  RawClient client(loop, server->port());
  client.send(kOpen + kPing);
  CHECK(client.receive(4) == "abcd");
  client.send(kPing);
  server.reset();
  loop.restart();
  loop.run();
  CHECK(client.closed());
}
