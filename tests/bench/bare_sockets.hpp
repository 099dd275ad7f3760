// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

/// The floor under a rendezvous: as many connections, one message from each, one answer to each
/// when all have come. What the kernel wants for it on this machine, without a line of elastrun.
namespace elastrun::bench {

constexpr int kBareMessage = 300;  // about as long as a sealed join, or a place in a round

inline void bare_require(bool holds) {
  if (!holds) std::abort();
}

inline sockaddr_in bare_address(std::uint32_t host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(host);
  return address;
}

/// Waits until each of `sockets` (or each that `listener` accepts) has sent its message.
inline void bare_collect(std::vector<int>& sockets, int listener, std::size_t wanted) {
  const int poll = ::epoll_create1(0);
  const auto watch = [poll](int fd) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    bare_require(::epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0);
  };
  if (listener >= 0) watch(listener);
  for (const int fd : sockets) watch(fd);
  std::array<epoll_event, 128> events;
  std::array<char, kBareMessage> text;
  for (std::size_t heard = 0; heard < wanted;) {
    const int ready = ::epoll_wait(poll, events.data(), events.size(), -1);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd != listener) {
        bare_require(::recv(fd, text.data(), text.size(), 0) == kBareMessage);
        ++heard;
        continue;
      }
      sockets.push_back(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
      bare_require(sockets.back() >= 0);
      watch(sockets.back());
    }
  }
  ::close(poll);
}

inline void bare_send(const std::vector<int>& sockets) {
  const std::array<char, kBareMessage> text{};
  for (const int fd : sockets) bare_require(::send(fd, text.data(), text.size(), 0) > 0);
}

/// A process that answers all once all have spoken; then it stays until it is killed.
inline pid_t bare_server(int listener, std::size_t connections) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<int> sockets;
  bare_collect(sockets, listener, connections);
  bare_send(sockets);
  ::pause();
  std::_Exit(0);
}

/// Runs it; `seconds` tells the time at the beginning and at the end.
template <class Seconds>
double bare_sockets(int connections, Seconds seconds) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address = bare_address(INADDR_LOOPBACK, 0);
  socklen_t size = sizeof address;
  bare_require(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  bare_require(::listen(listener, 4096) == 0);
  bare_require(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const pid_t server = bare_server(listener, static_cast<std::size_t>(connections));
  const double start = seconds();
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in from = bare_address(0x7F000002U + static_cast<std::uint32_t>(i % 16), 0);
    bare_require(::bind(sockets.back(), reinterpret_cast<sockaddr*>(&from), sizeof from) == 0);
    bare_require(::connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  }
  bare_send(sockets);
  bare_collect(sockets, -1, sockets.size());
  const double time = seconds() - start;
  for (const int fd : sockets) ::close(fd);
  ::close(listener);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  return time;
}

}  // namespace elastrun::bench
