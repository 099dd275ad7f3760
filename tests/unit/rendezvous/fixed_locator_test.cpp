// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/locator.hpp"
#include "unit/rendezvous/agents.hpp"

#include <arpa/inet.h>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

// What the name server says of "host0.test". 198.51.100.9 is of a range for documents, RFC 5737.
std::atomic<const char*> name_server{"198.51.100.9"};

}  // namespace

// In the place of libc's, for this program: names are looked up on a thread of their own.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const Real real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = name != nullptr && std::strcmp(name, "host0.test") == 0;
  return real(ours ? name_server.load() : name, service, hints, found);
}

namespace {

Result<Place> locate(Network& network, Locator& locator) {
  std::optional<Result<Place>> answer;
  locator.locate([&answer](Result<Place> place) { answer = std::move(place); });
  run_until(network.loop, [&answer] { return answer.has_value(); });
  return *answer;
}
std::unique_ptr<Locator> locator_of(Network& network, const SessionSettings& settings,
                                    net::Endpoint endpoint) {
  return make_fixed_locator(network.loop, *network.clock, net::make_sealer(""), settings,
                            std::move(endpoint));
}

/// Whether a connection to that address of this machine is accepted.
bool is_open(Network& network, const char* address, std::uint16_t port) {
  boost::asio::ip::tcp::socket socket(network.loop);
  boost::system::error_code error;
  socket.connect({boost::asio::ip::make_address(address), port}, error);
  return !error;
}

}  // namespace

TEST_CASE(
    "fixed locator: a host of several nodes listens everywhere, one of one where it was told") {
  Network network;
  SessionSettings settings;
  for (const char* host : {"localhost", "127.0.0.1", "127.0.0.2", "0.0.0.0", "::"}) {
    CAPTURE(host);
    for (const int nodes : {1, 2}) {
      const net::Endpoint endpoint{host, free_port()};
      settings.rules.max_nodes = nodes;
      const auto locator = locator_of(network, settings, endpoint);
      const auto place = locate(network, *locator);
      REQUIRE(place);
      CHECK(place->here);
      CHECK(is_open(network, place->endpoint.host.c_str(), endpoint.port));
      const bool everywhere = nodes > 1 || host[0] == '0' || host[0] == ':';
      CHECK(is_open(network, "127.0.0.3", endpoint.port) == everywhere);
    }
  }
}

TEST_CASE("fixed locator: a name that becomes one of this machine later makes it the host") {
  Network network;
  SessionSettings settings;
  const net::Endpoint endpoint{"host0.test", free_port()};
  const auto locator = locator_of(network, settings, endpoint);
  name_server = "198.51.100.9";
  const Place elsewhere = locate(network, *locator).value();
  CHECK(!elsewhere.here);
  CHECK(elsewhere.endpoint == endpoint);
  locator->reject(elsewhere);
  name_server = "127.0.0.1";
  SUBCASE("as long as nobody has answered") {
    const Place here = locate(network, *locator).value();
    CHECK(here.here);
    CHECK(here.endpoint.port == endpoint.port);
    CHECK(locate(network, *locator)->here);
  }
  SUBCASE("but not once the job has its host") {
    locator->accept(elsewhere);
    CHECK(!locate(network, *locator)->here);
  }
}

TEST_CASE("fixed locator: who is to host for others at loopback needs the port everywhere") {
  Network network;
  SessionSettings settings;
  const net::Endpoint endpoint{"127.0.0.1", free_port()};
  settings.config.is_host = true;
  // Another program's.
  const boost::asio::ip::tcp::acceptor taken(
      network.loop, {boost::asio::ip::make_address("127.0.0.2"), endpoint.port});
  for (const int nodes : {1, 2}) {
    CAPTURE(nodes);
    settings.rules.max_nodes = nodes;
    const auto place = locate(network, *locator_of(network, settings, endpoint));
    CHECK(place.has_value() == (nodes == 1));
    if (!place) CHECK(place.error().text.contains("told to host the rendezvous at 127.0.0.1"));
  }
}
