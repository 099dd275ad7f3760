// SPDX-License-Identifier: Apache-2.0
#include "http/http_server.hpp"

#include "core/system_clock.hpp"
#include "support/loop.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

using namespace elastrun;
using boost::asio::ip::tcp;

namespace {

struct Served {
  explicit Served(http::Server::Settings settings = {}, const char* address = "127.0.0.1") {
    settings.at = {address, 0};
    auto opened = http::Server::open(loop, *clock, settings,
                                     [this](const http::Request& request, http::Reply reply) {
                                       seen.push_back(request.path);
                                       if (request.path == "/late")
                                         return late.push_back(std::move(reply));
                                       http::Answer answer{.body = "you asked for " + request.path};
                                       if (request.path == "/events")
                                         answer.feed = feed, answer.body = "event: first\n\n";
                                       reply(std::move(answer));
                                     });
    REQUIRE_MESSAGE(opened, opened.error().text);
    server = std::move(*opened);
  }

  tcp::socket connect() {
    tcp::socket socket(loop);
    socket.connect({boost::asio::ip::make_address(server->at().host), server->at().port});
    socket.non_blocking(true);
    return socket;
  }
  /// What comes until `enough` is in it, or the connection ends.
  std::string read(tcp::socket& socket, const std::string& enough) {
    std::string text;
    ended = false;
    bool done = false;
    std::array<char, 4096> piece;
    std::function<void()> more = [&] {
      socket.async_read_some(boost::asio::buffer(piece), [&](auto error, std::size_t size) {
        text.append(piece.data(), size);
        ended = bool(error);
        done = error || text.contains(enough);
        if (!done) more();
      });
    };
    more();
    test::run_until(loop, [&] { return done; });
    return text;
  }
  std::string ask(const std::string& text, const std::string& enough) {
    auto socket = connect();
    send(socket, text);
    return read(socket, enough);
  }
  void send(tcp::socket& socket, const std::string& text) {
    boost::system::error_code error;
    socket.write_some(boost::asio::buffer(text), error);
  }

  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::shared_ptr<http::EventFeed> feed = std::make_shared<http::EventFeed>();
  std::vector<std::string> seen;
  std::vector<http::Reply> late;
  bool ended = false;
  std::unique_ptr<http::Server> server;
};

std::string get(const std::string& path, const std::string& host = "localhost") {
  return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
}

}  // namespace

TEST_CASE("http server: answers, and keeps the connection for the next request") {
  Served served;
  auto socket = served.connect();
  for (const char* path : {"/a", "/b"}) {
    served.send(socket, get(path));
    const auto answer = served.read(socket, std::string("for ") + path);
    CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(answer.contains("\r\nContent-Length: 16\r\n"));
    CHECK(answer.ends_with(std::string("\r\n\r\nyou asked for ") + path));
  }
  CHECK_FALSE(served.ended);
}

TEST_CASE("http server: HEAD has the length of the body, but not the body") {
  Served served;
  auto socket = served.connect();
  served.send(socket, "HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/b"));
  const auto answer = served.read(socket, "for /b");
  CHECK(answer.contains("Content-Length: 16\r\n"));
  CHECK_FALSE(answer.contains("for /a"));
}

TEST_CASE("http server: an answer may come later, and once") {
  Served served;
  auto socket = served.connect();
  served.send(socket, get("/late"));
  test::run_until(served.loop, [&] { return !served.late.empty(); });
  served.late[0]({.body = "first"});
  served.late[0]({.body = "second"});
  CHECK(served.read(socket, "first").contains("\r\n\r\nfirst"));
  socket.close();
  served.late.clear();
  auto gone = served.connect();
  served.send(gone, get("/late"));
  test::run_until(served.loop, [&] { return !served.late.empty(); });
  served.server.reset();
  served.late[0]({.body = "nobody"});  // no server, no connection: nothing happens
}

TEST_CASE("http server: on loopback a foreign name is refused before any handler") {
  Served served;
  const auto answer = served.ask(get("/metrics", "evil.example:9400"), "only\n");
  CHECK(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"));
  CHECK(served.ended == false);
  CHECK(served.seen.empty());
  Served open({}, "0.0.0.0");
  CHECK(open.ask(get("/a", "node7.cluster"), "for /a").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("http server: what is no request ends the connection, with a word") {
  Served served;
  CHECK(served.ask("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", "never").starts_with("HTTP/1.1 405 "));
  CHECK(served.ended);
  const auto answer = served.ask(std::string(60'000, 'x') + "\r\n\r\n", "never");
  CHECK(answer.starts_with("HTTP/1.1 4"));
  CHECK(served.ended);
  // Nothing is read behind it.
  CHECK_FALSE(served.ask("nonsense\r\n\r\n" + get("/a"), "never").contains("for /a"));
}

TEST_CASE("http server: who sends his request byte by byte does not win time") {
  http::Server::Settings settings;
  settings.head_limit = std::chrono::milliseconds(50);
  Served served(settings);
  auto socket = served.connect();
  bool closed = false;
  std::array<char, 1> byte;
  socket.async_read_some(boost::asio::buffer(byte),
                         [&](auto error, auto) { closed = bool(error); });
  const auto drip = served.clock->make_alarm();
  std::function<void()> next = [&] {
    served.send(socket, "G");
    drip->arm(served.clock->now() + std::chrono::milliseconds(5), next);
  };
  next();
  test::run_until(served.loop, [&] { return closed; });
  CHECK(served.seen.empty());
}

TEST_CASE("http server: an idle connection goes, for a new one or after its time") {
  http::Server::Settings settings;
  settings.max_connections = 2;
  Served served(settings);
  auto first = served.connect();
  served.send(first, get("/a"));
  served.read(first, "for /a");
  auto second = served.connect();
  served.send(second, "GET /half");
  test::run_ready(served.loop);
  auto third = served.connect();
  served.send(third, get("/c"));
  CHECK(served.read(third, "for /c").starts_with("HTTP/1.1 200 "));
  CHECK(served.read(first, "never").empty());  // closed
  served.send(third, get("/late"));
  test::run_until(served.loop, [&] { return served.late.size() == 1; });
  auto fourth = served.connect();
  served.send(fourth, get("/late"));
  test::run_until(served.loop, [&] { return served.late.size() == 2; });
  CHECK(served.read(second, "never").empty());  // of whose request the rest did not come
  CHECK(served.ask("", "connections").starts_with("HTTP/1.1 503 "));
}

TEST_CASE("http server: requests that are sent by half take the answers of nobody else away") {
  http::Server::Settings settings;
  settings.max_connections = 4;
  Served served(settings);
  std::vector<tcp::socket> halves;
  for (int i = 0; i < 40; ++i) {
    halves.push_back(served.connect());
    served.send(halves.back(), "GET /half HTTP/1.1\r\nHost: local");
    test::run_ready(served.loop);
    if (i % 10 == 9) CHECK(served.ask(get("/healthz"), "for /healthz").contains(" 200 OK"));
  }
  CHECK(served.read(halves.front(), "never").empty());  // the oldest has gone
  served.send(halves.back(), "host\r\n\r\n");
  CHECK(served.read(halves.back(), "for /half").contains(" 200 OK"));  // the last has not
}

TEST_CASE("http server: of more clients at once than it has places, each has its answer") {
  http::Server::Settings settings;
  settings.max_connections = 4;
  Served served(settings);
  std::vector<tcp::socket> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(served.connect());
    served.send(clients.back(), get("/a"));
  }
  for (auto& client : clients) CHECK(served.read(client, "for /a").contains(" 200 OK"));
}

TEST_CASE("http server: streams of events take nobody else's room") {
  http::Server::Settings settings;
  settings.max_connections = 4;
  settings.max_streams = 2;
  Served served(settings);
  std::vector<tcp::socket> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(served.connect());
    served.send(streams.back(), get("/events"));
    const auto text = served.read(streams.back(), i < 2 ? "event: first" : "streams");
    CHECK(text.starts_with(i < 2 ? "HTTP/1.1 200 " : "HTTP/1.1 503 "));
    CHECK(served.ask(get("/healthz"), "for /healthz").contains(" 200 OK"));
  }
  streams.front().close();
  auto next = served.connect();
  std::string text;
  for (int tries = 0; tries < 100 && !text.starts_with("HTTP/1.1 200 "); ++tries) {
    next = served.connect();
    served.send(next, get("/events"));
    text = served.read(next, "\r\n\r\n");
  }
  CHECK_MESSAGE(text.starts_with("HTTP/1.1 200 "), "there is room again");
}

TEST_CASE("http server: events reach all who listen, in order") {
  Served served;
  auto one = served.connect(), two = served.connect();
  for (auto* socket : {&one, &two}) {
    served.send(*socket, get("/events"));
    const auto head = served.read(*socket, "event: first");
    CHECK(head.contains("Transfer-Encoding: chunked\r\n"));
    CHECK_FALSE(head.contains("Content-Length"));
  }
  served.feed->publish("state", "{}\nsecond line");
  served.feed->publish("state", "[]");
  for (auto* socket : {&one, &two}) {
    const auto text = served.read(*socket, "data: []");
    CHECK(text.contains("event: state\ndata: {}\ndata: second line\n\n"));
  }
  one.close();
  two.close();
  test::run_until(served.loop, [&] { return !served.feed->has_listeners(); });
}

TEST_CASE("http server: a listener that takes nothing is cut off, and costs bounded memory") {
  Served served;
  auto socket = served.connect();
  served.send(socket, get("/events"));
  served.read(socket, "event: first");
  const std::string much(64 << 10, 'x');
  int sent = 0;
  while (served.feed->has_listeners()) {
    served.feed->publish("state", much);
    test::run_ready(served.loop);
    REQUIRE(++sent < 10'000);
  }
}

TEST_CASE("http event: each line of its data stands behind a name of its own") {
  CHECK(http::event_text("a", "") == "event: a\ndata: \n\n");
  CHECK(http::event_text("a", "x\ny") == "event: a\ndata: x\ndata: y\n\n");
}
