// SPDX-License-Identifier: Apache-2.0
#include "net/http_call.hpp"

#include "core/system_clock.hpp"
#include "support/loop.hpp"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <doctest/doctest.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace elastrun;
using boost::asio::ip::tcp;

namespace {

/// Answers each request with its number, and counts connections.
struct Server {
  explicit Server(boost::asio::io_context& loop)
      : acceptor(loop, {boost::asio::ip::address_v4::loopback(), 0}) {
    accept();
  }
  void accept() {
    acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (error) return;
      ++connections;
      sockets.push_back(std::make_shared<tcp::socket>(std::move(socket)));
      serve(sockets.back());
      accept();
    });
  }
  void serve(const std::shared_ptr<tcp::socket>& socket) {
    auto piece = std::make_shared<std::array<char, 4096>>();
    socket->async_read_some(boost::asio::buffer(*piece), [this, socket, piece](
                                                             boost::system::error_code error,
                                                             std::size_t) {
      if (error) return;
      if (hangs_up) return socket->close();
      if (is_mute) return;
      const std::string body = std::to_string(++requests);
      auto text = std::make_shared<std::string>(
          "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
      boost::asio::async_write(*socket, boost::asio::buffer(*text), [text](auto, auto) {});
      serve(socket);
    });
  }
  tcp::acceptor acceptor;
  std::vector<std::shared_ptr<tcp::socket>> sockets;
  int connections = 0, requests = 0;
  bool hangs_up = false, is_mute = false;
};

struct Client {
  Result<std::string> ask() {
    std::optional<Result<net::HttpResponse>> answer;
    net::HttpCall::Settings settings{{"127.0.0.1", server.acceptor.local_endpoint().port()},
                                     nullptr};
    settings.kept = keeps ? &kept : nullptr;
    settings.limit = limit;
    const auto call = net::fetch(loop, *clock, settings, {.target = "/", .body = "{}"},
                                 [&](auto got) { answer = std::move(got); });
    test::run_until(loop, [&] { return answer.has_value(); });
    if (!*answer) return std::unexpected(answer->error());
    return (*answer)->body;
  }
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  Server server{loop};
  net::KeptConnection kept{*clock};
  bool keeps = true;
  Duration limit = std::chrono::seconds(10);
};

}  // namespace

TEST_CASE("http call: calls in a row share one connection, if it is kept") {
  Client client;
  for (int i = 1; i <= 5; ++i) CHECK(client.ask().value() == std::to_string(i));
  CHECK(client.server.connections == 1);
  client.keeps = false;
  CHECK(client.ask().value() == "6");
  CHECK(client.ask().value() == "7");
  CHECK(client.server.connections == 3);
}

TEST_CASE("http call: a kept connection that was closed meanwhile is not used") {
  Client client;
  CHECK(client.ask().value() == "1");
  client.server.sockets.front()->close();
  CHECK(client.ask().value() == "2");
  CHECK(client.server.connections == 2);
}

TEST_CASE("http call: one that is closed instead of an answer is replaced, but only a kept one") {
  Client client;
  CHECK(client.ask().value() == "1");
  client.server.hangs_up = true;
  // The kept one, then a fresh one: that it hangs up too is an answer.
  CHECK(!client.ask().has_value());
  CHECK(client.server.connections == 2);
  client.server.hangs_up = false;
  CHECK(client.ask().value() == "2");
}

TEST_CASE(
    "http call: a kept connection that stays silent costs its time limit, and no second call") {
  Client client;
  CHECK(client.ask().value() == "1");
  client.server.is_mute = true;
  client.limit = std::chrono::milliseconds(50);
  const auto answer = client.ask();
  REQUIRE(!answer.has_value());
  CHECK(answer.error().code == Code::Timeout);
  client.loop.restart();
  client.loop.run_for(std::chrono::milliseconds(100));
  CHECK(client.server.connections == 1);
}
