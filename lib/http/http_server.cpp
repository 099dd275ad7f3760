// SPDX-License-Identifier: Apache-2.0
#include "http/http_server.hpp"

#include "core/lifetime.hpp"
#include "core/rate_limited_log.hpp"
#include "http/connection.hpp"
#include "net/acceptor.hpp"

#include <algorithm>
#include <cerrno>
#include <list>
#include <utility>

namespace elastrun::http {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

class PortServer final : public Server {
 public:
  PortServer(boost::asio::io_context& loop, Clock& clock, Connection::Rules rules)
      : clock_(clock),
        rules_(std::move(rules)),
        at_(rules_.settings.at),
        acceptor_(loop),
        relief_(clock.make_alarm()) {}
  ~PortServer() override {
    lifetime_.end();
    // Operations under way hold their connection, which would use our rules and clock when we are
    // gone.
    for (const auto& connection : connections_) connection->close();
  }

  Status open() {
    constexpr int kBacklog = tcp::acceptor::max_listen_connections;
    auto opened = net::listen_at(acceptor_, at_.host, at_.port, kBacklog);
    if (!opened) return opened;
    at_.port = acceptor_.local_endpoint().port();
    // A server that others may reach is asked for by names that we do not know.
    rules_.local_names_only = net::parse_address(at_.host).is_loopback();
    rules_.may_stream = [this] {
      return count(&Connection::streams) < rules_.settings.max_streams;
    };
    wait();
    return {};
  }

  const net::Endpoint& at() const override { return at_; }

 private:
  void wait() {
    acceptor_.async_wait(tcp::acceptor::wait_read,
                         [this, alive = lifetime_.token()](error_code error) {
                           if (alive && !error) accept();
                         });
  }

  void accept() {
    const int fd = net::accept_now(acceptor_);
    if (fd >= 0) {
      serve(fd);
    } else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
      // Out of descriptors: the connection stays in the backlog. Not woken for it without end.
      limited_.add("{}", errno_error(Code::Io, "cannot accept a connection", errno).text);
      return relief_->arm(clock_.now() + std::chrono::seconds(1), [this] { wait(); });
    }
    wait();
  }

  void serve(int fd) {
    auto socket = net::accepted(acceptor_, fd);
    if (!socket) return;
    auto connection = std::make_shared<Connection>(std::move(*socket), clock_, rules_);
    // Before this one is in the list, or it could be the one that is closed for itself.
    const bool room = make_room();
    connections_.push_back(connection);
    room ? connection->start() : connection->refuse();
  }

  /// Those that have their answer end soon and are not counted, up to a bound of their own.
  bool make_room() {
    connections_.remove_if([](const auto& one) { return one->closed(); });
    const auto most = rules_.settings.max_connections;
    // A client that never closes keeps its place until linger() gives up; twice as many as may be
    // served bounds the descriptors that this takes.
    if (connections_.size() >= 2 * most && !close_oldest(&Connection::ending)) {
      connections_.front()->close();
      connections_.pop_front();
    }
    if (connections_.size() - count(&Connection::ending) < most) return true;
    // Idle ones first: they lose nothing. Those with half a request come next, because a client
    // that opens many and sends a byte to each would keep all others out.
    return close_oldest(&Connection::idle) || close_oldest(&Connection::unfinished);
  }

  std::size_t count(bool (Connection::*is_one)() const) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        connections_, [&](const auto& connection) { return ((*connection).*is_one)(); }));
  }

  bool close_oldest(bool (Connection::*is_one)() const) {
    const auto found = std::ranges::find_if(
        connections_, [&](const auto& connection) { return ((*connection).*is_one)(); });
    if (found == connections_.end()) return false;
    (*found)->close();
    connections_.erase(found);
    return true;
  }

  Clock& clock_;
  Connection::Rules rules_;
  net::Endpoint at_;
  tcp::acceptor acceptor_;
  std::list<std::shared_ptr<Connection>> connections_;  // the oldest first
  std::unique_ptr<Alarm> relief_;
  RateLimitedLog limited_{"http"};
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
