// SPDX-License-Identifier: Apache-2.0
#include "net/acceptor.hpp"

#include "net/endpoint.hpp"

#include <boost/asio/ip/v6_only.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace elastrun::net {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

error_code bind(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, int backlog) {
  error_code error;
  acceptor.close(error);
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  // A program that foreign code starts from this process must not keep the port.
  ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  // A job that starts again must not wait for the old connections in TIME_WAIT (tcp(7)).
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (endpoint.address().is_v6()) {
    // Said in either case: the default is the machine's (net.ipv6.bindv6only, ipv6(7)), and with it
    // "::" would or would not take IPv4.
    acceptor.set_option(boost::asio::ip::v6_only(!endpoint.address().is_unspecified()), error);
  }
  if (acceptor.bind(endpoint, error); error) return error;
  // The kernel cuts the backlog off at net.core.somaxconn (listen(2)), without a word.
  if (acceptor.listen(backlog, error); error) return error;
  acceptor.non_blocking(true, error);
  return error;
}

}  // namespace

Status listen_at(tcp::acceptor& acceptor, const std::string& host, std::uint16_t port,
                 int backlog) {
  auto opened = bind(acceptor, tcp::endpoint(parse_address(host), port), backlog);
  if (opened == boost::asio::error::address_family_not_supported && host == "::") {
    opened = bind(acceptor, tcp::endpoint(tcp::v4(), port), backlog);  // a kernel without IPv6
  }
  if (!opened) return {};
  const auto where = format_endpoint(host, port);
  return std::unexpected(errno_error(Code::Io, "cannot listen on " + where, opened.value()));
}

int accept_now(tcp::acceptor& acceptor) {
  // The flags come with the descriptor: without FD_CLOEXEC a worker that is started later would
  // hold the connection open for as long as it runs.
  return ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

std::optional<tcp::socket> accepted(tcp::acceptor& acceptor, int fd) {
  const bool v4 = acceptor.local_endpoint().address().is_v4();
  tcp::socket socket(acceptor.get_executor());
  error_code error;
  socket.assign(v4 ? tcp::v4() : tcp::v6(), fd, error);
  if (error) {
    ::close(fd);
    return std::nullopt;
  }
  // Small messages that wait for an answer: with Nagle's algorithm one of them would wait for the
  // acknowledgement of the one before, which the other side may delay (tcp(7), TCP_QUICKACK).
  socket.set_option(tcp::no_delay(true), error);
  return socket;
}

}  // namespace elastrun::net
