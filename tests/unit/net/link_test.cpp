// SPDX-License-Identifier: Apache-2.0
#include "net/link.hpp"

#include "core/system_clock.hpp"
#include "core/unique_fd.hpp"
#include "net/dialer.hpp"
#include "net/frame.hpp"
#include "net/listener.hpp"
#include "support/loop.hpp"
#include "support/no_threads.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <doctest/doctest.h>
#include <functional>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace elastrun;
using namespace elastrun::net;
using boost::asio::ip::tcp;
using test::run_until;

namespace {

/// A listener that takes agents and stores, and what arrived there.
struct Port {
  explicit Port(std::string secret = "s", Listener::Settings settings = {})
      : sealer(make_sealer(secret)) {
    Listener::Takers takers;
    takers.agent = [this](tcp::socket socket, std::string bytes) {
      link = std::make_shared<Link>(std::move(socket), sealer, Link::Side::Listener,
                                    "the secret of job X differs");
      link->start({[this](std::string payload) { frames.push_back(std::move(payload)); },
                   [this](Error error) { ended = std::move(error); }},
                  std::move(bytes));
    };
    takers.store = [this](tcp::socket, std::string bytes) { store_bytes = std::move(bytes); };
    auto opened = Listener::open(loop, *clock, settings, std::move(takers));
    REQUIRE(opened.has_value());
    listener = std::move(*opened);
  }
  tcp::socket connect() {
    std::optional<tcp::socket> found;
    Dialer dialer(loop, *clock);
    dialer.dial({"localhost", listener->port()}, std::chrono::seconds(30),
                [&found](Result<tcp::socket> socket) {
                  REQUIRE(socket.has_value());
                  found = std::move(*socket);
                });
    CHECK(!found);
    run_until(loop, [&] { return found.has_value(); });
    return std::move(*found);
  }

  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::shared_ptr<const Sealer> sealer;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Link> link;
  std::vector<std::string> frames;
  std::optional<Error> ended;
  std::optional<std::string> store_bytes;
};

/// The agent's end of a link to a port.
struct Caller {
  Caller(Port& port, std::string_view secret)
      : link(std::make_shared<Link>(port.connect(), make_sealer(secret), Link::Side::Connector)) {
    link->start({[this](std::string payload) { frames.push_back(std::move(payload)); },
                 [this](Error error) { ended = std::move(error); }});
  }
  std::shared_ptr<Link> link;
  std::vector<std::string> frames;
  std::optional<Error> ended;
};

}  // namespace

TEST_CASE("link: frames pass both ways, also those sent before the greeting") {
  Port port;
  Caller caller(port, "s");
  caller.link->send("one");
  caller.link->send(std::string(50'000, 'x'));
  run_until(port.loop, [&] { return port.frames.size() == 2; });
  CHECK(port.frames[0] == "one");
  CHECK(port.frames[1].size() == 50'000);
  port.link->send("answer");
  run_until(port.loop, [&] { return caller.frames.size() == 1; });
  CHECK(caller.frames[0] == "answer");
  CHECK(caller.link->local_address().is_loopback());
}

TEST_CASE("link: a silence that is borne for long is no broken connection before") {
  Port port;
  auto socket = port.connect();
  const UniqueFd same(::dup(socket.native_handle()));
  const auto limit_ms = [&same] {
    int value = 0;
    socklen_t size = sizeof value;
    CHECK(::getsockopt(same.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size) == 0);
    return value;
  };
  const auto link =
      std::make_shared<Link>(std::move(socket), make_sealer("s"), Link::Side::Connector);
  link->start({[](const auto&) {}, [](const auto&) {}});
  CHECK(limit_ms() == 30'000);
  link->bear_silence(std::chrono::seconds(70));
  CHECK(limit_ms() == 70'000);
  link->bear_silence(std::chrono::seconds(5));
  CHECK(limit_ms() == 30'000);
  link->close();
}

TEST_CASE("link: a wrong secret is named on both sides") {
  Port port("right");
  Caller caller(port, "wrong");
  caller.link->send("{}");
  run_until(port.loop, [&] { return port.ended && caller.ended; });
  CHECK(port.ended->code == Code::Rendezvous);
  CHECK(port.ended->text == "127.0.0.1 does not know this job's secret");
  CHECK(caller.ended->text == "the secret of job X differs");
  CHECK(port.frames.empty());
}

namespace {

/// What is asked of a service for keys, and waits for an answer; credentials come at once if it
/// offers them.
struct Service {
  bool offers = true;
  std::vector<std::function<void(Result<KeyExchange::Offer>)>> offered{};
  std::vector<std::function<void(Result<std::string>)>> keys{};
};

class TestExchange final : public KeyExchange {
 public:
  explicit TestExchange(Service& service) : service_(service) {}
  void offer(std::string, std::function<void(Result<Offer>)> then) override {
    if (service_.offers) return then(Offer{"credential", "key"});
    service_.offered.push_back(std::move(then));
  }
  void accept(std::string, std::string, std::function<void(Result<std::string>)> then) override {
    service_.keys.push_back(std::move(then));
  }
  std::string_view name() const override { return "TEST"; }
  bool is_required() const override { return true; }

 private:
  Service& service_;
};

Error end_of_caller(const Error& error) {
  Service service;
  Port port;
  port.sealer = make_sealer("", std::make_shared<TestExchange>(service));
  std::optional<Error> ended;
  const auto link = std::make_shared<Link>(port.connect(), port.sealer, Link::Side::Connector);
  link->start({[](const std::string&) {}, [&ended](Error end) { ended = std::move(end); }});
  run_until(port.loop, [&] { return !service.keys.empty(); });
  service.keys.front()(std::unexpected(error));
  run_until(port.loop, [&] { return ended.has_value(); });
  return *ended;
}

}  // namespace

TEST_CASE("link: a credential that is refused is the end, one that nobody could open is not") {
  const Error refused = end_of_caller({Code::Rendezvous, "it is of another user"});
  CHECK(refused.code == Code::Rendezvous);
  CHECK(refused.text == "it is of another user");
  CHECK(end_of_caller({Code::Io, "the service is down"}).code == Code::Closed);
}

TEST_CASE("link: a call for a key that does not return keeps neither link nor exchange alive") {
  for (const bool of_connector : {true, false}) {
    CAPTURE(of_connector);
    Service service{!of_connector};
    std::weak_ptr<KeyExchange> exchange;
    {
      Port port;
      auto stuck = std::make_shared<TestExchange>(service);
      exchange = stuck;
      port.sealer = make_sealer("", std::move(stuck));
      const auto link = std::make_shared<Link>(port.connect(), port.sealer, Link::Side::Connector);
      link->start({[](const std::string&) {}, [](const Error&) {}});
      run_until(port.loop, [&] { return service.offered.size() + service.keys.size() == 1; });
    }
    CHECK(exchange.expired());
    // An answer after all means nothing to anybody.
    for (const auto& then : service.offered) then(KeyExchange::Offer{"credential", "key"});
    for (const auto& then : service.keys) then("key");
  }
}

TEST_CASE("link: the end of one side is told to the other, once") {
  Port port;
  Caller caller(port, "s");
  caller.link->send("{}");
  run_until(port.loop, [&] { return port.frames.size() == 1; });
  caller.link->close();
  run_until(port.loop, [&] { return port.ended.has_value(); });
  CHECK(port.ended->code == Code::Closed);
  CHECK(!caller.ended);
}

TEST_CASE("link: what was sent before close arrives") {
  Port port;
  Caller caller(port, "s");
  caller.link->send("{}");
  run_until(port.loop, [&] { return port.frames.size() == 1; });
  for (int i = 0; i < 100; ++i) caller.link->send(std::string(40'000, 'y'));
  caller.link->close();
  run_until(port.loop, [&] { return port.ended.has_value(); });
  CHECK(port.frames.size() == 101);
}

TEST_CASE("link: a peer that never reads is cut off") {
  Port port;
  Caller caller(port, "s");
  caller.link->send("{}");
  run_until(port.loop, [&] { return port.frames.size() == 1; });
  const std::string much(60'000, 'z');
  for (int i = 0; i < 2000 && !port.ended; ++i) {
    port.link->send(much);
    // The caller's loop is this loop: not running it means not reading.
  }
  run_until(port.loop, [&] { return port.ended.has_value(); });
  CHECK(port.ended->text == "it does not read what it is sent");
}

TEST_CASE("listener: a store's first bytes are handed over with the connection") {
  Port port;
  tcp::socket client = port.connect();
  const std::string bytes{"\x00\xCE\xF7\x85\x3C", 5};
  boost::asio::write(client, boost::asio::buffer(bytes));
  run_until(port.loop, [&] { return port.store_bytes.has_value(); });
  CHECK(*port.store_bytes == bytes);
}

TEST_CASE("listener: a connection that stays silent is given to the store in the end") {
  Port port("s", {.time_limit = std::chrono::milliseconds(1)});
  tcp::socket client = port.connect();
  run_until(port.loop, [&] { return port.store_bytes.has_value(); });
  CHECK(port.store_bytes->empty());
}

TEST_CASE("listener: strangers are closed") {
  Port port;
  tcp::socket client = port.connect();
  boost::asio::write(client, boost::asio::buffer(std::string("hello\n")));
  bool closed = false;
  client.async_wait(tcp::socket::wait_read, [&](auto) { closed = true; });
  run_until(port.loop, [&] { return closed; });
  CHECK(!port.link);
}

TEST_CASE("listener: a taken port is an error with its name") {
  Port port;
  const auto second =
      Listener::open(port.loop, *port.clock, {.port = port.listener->port()}, Listener::Takers{});
  REQUIRE(!second.has_value());
  CHECK(second.error().text.starts_with("cannot listen on 127.0.0.1:"));
  CHECK(second.error().text.ends_with("Address already in use"));
}

TEST_CASE("dialer: a refusal names the host and each address tried") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  std::uint16_t port = 0;
  {
    tcp::acceptor once(loop, {boost::asio::ip::address_v4::loopback(), 0});
    port = once.local_endpoint().port();
  }
  std::optional<Error> error;
  Dialer dialer(loop, *clock);
  dialer.dial({"127.0.0.1", port}, std::chrono::seconds(30), [&](Result<tcp::socket> socket) {
    REQUIRE(!socket.has_value());
    error = socket.error();
  });
  run_until(loop, [&] { return error.has_value(); });
  CHECK(error->code == Code::Closed);
  CHECK(error->text ==
        "cannot reach 127.0.0.1:" + std::to_string(port) + " (127.0.0.1: Connection refused)");
}

TEST_CASE("dialer: an address that does not answer is given up at the limit") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  // A listener whose backlog is full drops what comes: the nearest thing to a silent host that
  // needs no other machine (listen(2)).
  tcp::acceptor full(loop);
  full.open(tcp::v4());
  full.bind({boost::asio::ip::address_v4::loopback(), 0});
  full.listen(0);
  std::vector<tcp::socket> fillers;
  std::optional<Error> error;
  Dialer dialer(loop, *clock);
  for (int i = 0; i < 3 && !error; ++i) {
    bool answered = false;
    dialer.dial({"127.0.0.1", full.local_endpoint().port()}, std::chrono::milliseconds(50),
                [&](Result<tcp::socket> socket) {
                  answered = true;
                  if (socket) fillers.push_back(std::move(*socket));
                  if (!socket) error = socket.error();
                });
    run_until(loop, [&] { return answered; });
  }
  REQUIRE(error.has_value());
  CHECK(error->code == Code::Timeout);
}

TEST_CASE("resolver: a name that cannot be, and a cancelled question") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  Resolver resolver(loop, *clock);
  std::optional<Result<Addresses>> answer;
  resolver.resolve("10.1.2.3", std::chrono::seconds(1), [&](auto found) { answer = found; });
  CHECK(!answer);
  run_until(loop, [&] { return answer.has_value(); });
  CHECK((*answer)->front().to_string() == "10.1.2.3");
  answer.reset();
  resolver.resolve("10.1.2.3", std::chrono::seconds(1), [&](auto found) { answer = found; });
  resolver.cancel();
  test::run_ready(loop);
  CHECK(!answer);
}

TEST_CASE("resolver: where no thread can be made a name is not known, and that is all") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  Resolver resolver(loop, *clock);
  std::optional<Result<Addresses>> answer;
  const test::NoThreads none;
  resolver.resolve("some.host.invalid", std::chrono::seconds(10),
                   [&](auto found) { answer = std::move(found); });
  CHECK(!answer);
  run_until(loop, [&] { return answer.has_value(); });
  REQUIRE(!answer->has_value());
  CHECK(answer->error().code == Code::Io);
  CHECK(answer->error().text.find("cannot make a thread") != std::string::npos);
}
