// SPDX-License-Identifier: Apache-2.0
#include "workers/held_port.hpp"

#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

namespace elastrun::workers {
namespace {

/// A socket of the family bound to any port of all addresses, or an empty one with errno set.
UniqueFd bound_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const auto size =
      static_cast<socklen_t>(family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), size) != 0) fd.reset();
  return fd;
}

}  // namespace

Result<HeldPort> HeldPort::any() {
  HeldPort held;
  // An IPv6 socket holds the port for IPv4 as well; without IPv6 the kernel refuses the family.
  held.fd_ = bound_socket(AF_INET6);
  if (!held.fd_) held.fd_ = bound_socket(AF_INET);
  if (!held.fd_) {
    return std::unexpected(errno_error(Code::Store, "cannot find a free port for worker 0", errno));
  }
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ::getsockname(held.fd_.get(), reinterpret_cast<sockaddr*>(&own), &size);
  // sin_port and sin6_port lie at the same place.
  held.number_ = ntohs(reinterpret_cast<const sockaddr_in*>(&own)->sin_port);
  return held;
}

}  // namespace elastrun::workers
