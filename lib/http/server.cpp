// SPDX-License-Identifier: Apache-2.0
#include "http/server.hpp"

#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "http/connection.hpp"

#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <fcntl.h>
#include <list>
#include <sys/socket.h>
#include <utility>

namespace elastrun::http {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

class PortServer final : public Server {
 public:
  PortServer(boost::asio::io_context& loop, Clock& clock, Connection::Rules rules)
      : loop_(loop),
        clock_(clock),
        rules_(std::move(rules)),
        at_(rules_.settings.at),
        acceptor_(loop),
        relief_(clock.make_alarm()) {}
  ~PortServer() override {
    lifetime_.end();
    for (const auto& connection : connections_) connection->close();
  }

  Status open() {
    const auto address = net::parse_address(at_.host);
    auto opened = bind(tcp::endpoint(address, at_.port));
    if (opened == boost::asio::error::address_family_not_supported && at_.host == "::") {
      opened = bind(tcp::endpoint(tcp::v4(), at_.port));  // a kernel without IPv6
    }
    if (opened) {
      const auto where = net::format_endpoint(at_.host, at_.port);
      return std::unexpected(errno_error(Code::Io, "cannot listen on " + where, opened.value()));
    }
    at_.port = acceptor_.local_endpoint().port();
    rules_.local_names_only = address.is_loopback();
    wait();
    return {};
  }

  const net::Endpoint& at() const override { return at_; }

 private:
  error_code bind(const tcp::endpoint& endpoint) {
    error_code error;
    acceptor_.close(error);
    acceptor_.open(endpoint.protocol(), error);
    if (error) return error;
    ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);  // past TIME_WAIT: tcp(7)
    if (endpoint.address().is_v6()) {
      acceptor_.set_option(boost::asio::ip::v6_only(!endpoint.address().is_unspecified()), error);
    }
    if (acceptor_.bind(endpoint, error); error) return error;
    if (acceptor_.listen(tcp::acceptor::max_listen_connections, error); error) return error;
    acceptor_.non_blocking(true, error);
    return error;
  }

  void wait() {
    acceptor_.async_wait(tcp::acceptor::wait_read,
                         [this, alive = lifetime_.token()](error_code error) {
                           if (alive && !error) accept();
                         });
  }

  void accept() {
    const int fd =
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      serve(fd);
    } else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
      // Out of descriptors: the connection stays in the backlog. Not woken for it without end.
      log::warning("http", "{}", errno_error(Code::Io, "cannot accept a connection", errno).text);
      return relief_->arm(clock_.now() + std::chrono::seconds(1), [this] { wait(); });
    }
    wait();
  }

  void serve(int fd) {
    const bool v4 = acceptor_.local_endpoint().address().is_v4();
    tcp::socket socket(loop_);
    error_code error;
    socket.assign(v4 ? tcp::v4() : tcp::v6(), fd, error);
    if (error) {
      ::close(fd);
      return;
    }
    socket.set_option(tcp::no_delay(true), error);
    auto connection = std::make_shared<Connection>(std::move(socket), clock_, rules_);
    const bool room = make_room();
    connections_.push_back(connection);
    room ? connection->start() : connection->refuse();
  }

  /// Refused connections end soon and are not counted, up to a bound of their own.
  bool make_room() {
    connections_.remove_if([](const auto& one) { return one->closed(); });
    const auto most = rules_.settings.max_connections;
    if (connections_.size() >= 2 * most) {
      connections_.front()->close();
      connections_.pop_front();
    }
    if (connections_.size() < most) return true;
    for (auto one = connections_.begin(); one != connections_.end(); ++one) {
      if (!(*one)->idle()) continue;
      (*one)->close();
      connections_.erase(one);
      return true;
    }
    return false;
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  Connection::Rules rules_;
  net::Endpoint at_;
  tcp::acceptor acceptor_;
  std::list<std::shared_ptr<Connection>> connections_;  // the oldest first
  std::unique_ptr<Alarm> relief_;
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace

Result<std::unique_ptr<Server>> Server::open(boost::asio::io_context& loop, Clock& clock,
                                             Settings settings, Handler handler) {
  Connection::Rules rules{std::move(settings), std::move(handler)};
  auto server = std::make_unique<PortServer>(loop, clock, std::move(rules));
  if (auto opened = server->open(); !opened) return std::unexpected(opened.error());
  return server;
}

}  // namespace elastrun::http
