// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <string_view>
#include <sys/socket.h>

namespace elastrun::test {

/// A client at the bytes, on the same thread as the server's loop: each wait for bytes runs it.
class RawClient {
 public:
  RawClient(boost::asio::io_context& loop, std::uint16_t port, int receive_buffer = 0)
      : loop_(loop), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (receive_buffer > 0) {
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }
  int release() { return fd_.release(); }
  void close() { fd_.reset(); }

  /// Sends all of it, running the loop while the server has to read; false if it has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto size = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (size < 0 && errno != EAGAIN) return false;
      if (size > 0) bytes.remove_prefix(static_cast<std::size_t>(size));
      if (!bytes.empty()) run();
    }
    return true;
  }

  /// Exactly `size` bytes, or fewer if the server closes first. Hangs if neither comes: CTest's
  /// time limit is how a lost answer fails.
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
      const auto part = ::recv(fd_.get(), bytes.data() + got, size - got, MSG_DONTWAIT);
      if (part == 0 || (part < 0 && errno != EAGAIN)) break;
      if (part > 0) got += static_cast<std::size_t>(part);
      if (part < 0) run();
    }
    return bytes.substr(0, got);
  }
  /// Runs the loop until the server has closed this connection.
  bool closed() { return receive(1).empty(); }

 private:
  void run() {
    loop_.restart();
    loop_.run_one_for(std::chrono::milliseconds(10));
  }

  boost::asio::io_context& loop_;
  UniqueFd fd_;
  bool connected_ = false;
};

}  // namespace elastrun::test
