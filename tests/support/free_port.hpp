// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace elastrun::test {

/// A free port of the loopback that belongs to this process until it ends: no other test gets it,
/// and the kernel gives it to nobody. The counterpart of tests/system/ports.py, which says why.
inline std::uint16_t free_port() {
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> any(10000, 28999);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = any(random);
    const auto name = "elastrun test port " + std::to_string(port);
    sockaddr_un held{AF_UNIX, {}};
    name.copy(held.sun_path + 1, name.size());  // after a NUL: a name without a file, unix(7)
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const int holder = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {}};
    const bool is_free =
        ::bind(holder, reinterpret_cast<const sockaddr*>(&held), size) == 0 &&
        ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) return port;  // the holder stays open
    ::close(holder);
  }
  FAIL("no port is free");
  return 0;
}

}  // namespace elastrun::test
