// SPDX-License-Identifier: Apache-2.0
#include "workers/held_port.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elastrun::workers {
namespace {

/// A server as torch's: SO_REUSEADDR, bound to all IPv4 addresses.
int listen_on(std::uint16_t port, const UniqueFd& fd) {
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno;
  }
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

TEST_CASE("held port: a worker's server can listen on it although it is held") {
  const auto held = HeldPort::any();
  REQUIRE(held.has_value());
  CHECK(held->number() > 0);
  const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(listen_on(held->number(), server) == 0);
}

TEST_CASE("held port: nobody who asks for any port gets it") {
  const auto one = HeldPort::any();
  const auto two = HeldPort::any();
  REQUIRE(one.has_value());
  REQUIRE(two.has_value());
  CHECK(one->number() != two->number());
}

}  // namespace
}  // namespace elastrun::workers
