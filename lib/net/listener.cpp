// SPDX-License-Identifier: Apache-2.0

#include "net/listener.hpp"

#include "net/endpoint.hpp"
#include "net/frame.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace elastrun::net {

using boost::asio::ip::tcp;
using boost::system::error_code;

std::expected<UniqueFd, int> listen_on(const boost::asio::ip::address& address, std::uint16_t port,
                                       int backlog, void (*prepare)(int socket)) {
  const tcp::endpoint endpoint(address, port);
  const bool every = address.is_v6() && address.is_unspecified();
  UniqueFd socket(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int failed = socket ? 0 : errno;
  if (socket) {
    const int on = 1, v6_only = every ? 0 : 1;
    // A job that starts again must not wait for the old connections in TIME_WAIT (tcp(7)).
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // Said in either case: the default is the machine's (net.ipv6.bindv6only, ipv6(7)), and with it
    // "::" would or would not take IPv4.
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
    if (prepare != nullptr) prepare(socket.get());
    const auto size = static_cast<socklen_t>(endpoint.size());
    // The kernel cuts the backlog off at net.core.somaxconn (listen(2)), without a word.
    const bool bound = ::bind(socket.get(), endpoint.data(), size) == 0;
    failed = bound && (backlog < 0 || ::listen(socket.get(), backlog) == 0) ? 0 : errno;
  }
  // A kernel without IPv6, or one where it is switched off.
  if (every && (failed == EAFNOSUPPORT || failed == EADDRNOTAVAIL)) {
    return listen_on(boost::asio::ip::address_v4::any(), port, backlog, prepare);
  }
  if (failed != 0) return std::unexpected(failed);
  return socket;
}

tcp::endpoint bound_to(int socket) {
  tcp::endpoint bound;
  auto size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(socket, bound.data(), &size) == 0) bound.resize(size);
  return bound;
}

Protocol recognise(std::string_view first_bytes) {
  if (first_bytes.empty()) return Protocol::Undecided;
  const auto first = static_cast<unsigned char>(first_bytes.front());
  // 19-31 are not assigned yet; the store refuses what it does not know, and says so in its own
  // words.
  if (first < 32) return Protocol::Store;
  const std::size_t known = std::min(first_bytes.size(), kMagic.size());
  if (first_bytes.substr(0, known) != kMagic.substr(0, known)) return Protocol::Unknown;
  return known == kMagic.size() ? Protocol::Agent : Protocol::Undecided;
}

Listener::Listener(boost::asio::io_context& loop, Clock& clock, Settings settings, Takers takers)
    : clock_(clock),
      settings_(std::move(settings)),
      takers_(std::move(takers)),
      acceptor_(loop),
      deadline_(clock.make_alarm()),
      relief_(clock.make_alarm()) {}

Result<std::unique_ptr<Listener>> Listener::open(boost::asio::io_context& loop, Clock& clock,
                                                 Settings settings, Takers takers) {
  std::unique_ptr<Listener> made(new Listener(loop, clock, std::move(settings), std::move(takers)));
  const Settings& own = made->settings_;
  auto opened = listen_on(parse_address(own.address), own.port, own.backlog);
  if (!opened) {
    const auto where = format_endpoint(own.address, own.port);
    return std::unexpected(errno_error(Code::Io, "cannot listen on " + where, opened.error()));
  }
  const auto bound = bound_to(opened->get());
  error_code error;
  made->acceptor_.assign(bound.protocol(), opened->get(), error);
  if (error) return std::unexpected(errno_error(Code::Io, "cannot listen", error.value()));
  opened->release();
  made->port_ = bound.port();
  made->wait();
  return made;
}

void Listener::wait() {
  acceptor_.async_wait(tcp::acceptor::wait_read,
                       [this, alive = lifetime_.token()](error_code error) {
                         if (alive && !error) accept_all();
                       });
}

// Many in one go: a wake-up for each would be half of the cost of a thousand agents that connect.
void Listener::accept_all() {
  // Not without end: the loop has alarms and workers to look after, too, and what is left in the
  // backlog wakes us at once.
  // One for a taker of all, which has read what one has asked before it decides about the next.
  for (int count = takers_.any ? 1 : 512; count > 0; --count) {
    // The flags come with the descriptor: without FD_CLOEXEC a worker that is started later would
    // hold the connection open for as long as it runs.
    const int fd =
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      greet(fd);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) break;
    // Out of descriptors or memory: the connection stays in the backlog. Look again a little
    // later, instead of being woken for it without end.
    limited_.add(
        "{}",
        errno_error(Code::Io, fmt::format("cannot accept a connection on port {}", port_), errno)
            .text);
    relief_->arm(clock_.now() + std::chrono::milliseconds(100), [this] { wait(); });
    return;
  }
  wait();
}

void Listener::greet(int fd) {
  tcp::socket socket(acceptor_.get_executor());
  error_code error;
  socket.assign(acceptor_.local_endpoint().protocol(), fd, error);
  if (error) return void(::close(fd));  // the loop cannot take it
  // Small messages that wait for an answer: with Nagle's algorithm one of them would wait for the
  // acknowledgement of the one before, which the other side may delay (tcp(7), TCP_QUICKACK).
  socket.set_option(tcp::no_delay(true), error);
  if (takers_.any) return takers_.any(std::move(socket), {});
  socket.non_blocking(true, error);
  // The oldest goes: those that say nothing must not keep the others out.
  if (newcomers_.size() >= settings_.max_undecided) newcomers_.pop_front();
  // At the end, with one time limit for all: so the list is in the order of deadlines, on which
  // watch_first_bytes() relies.
  newcomers_.push_back({std::move(socket), {}, clock_.now() + settings_.time_limit});
  // The alarm is set for the first one alone. When that is handed over early, the alarm comes for
  // it all the same, finds the next, and is set again.
  if (newcomers_.size() == 1) watch_first_bytes();
  listen_to(std::prev(newcomers_.end()));
}

// Tries at once: agents and workers speak first, so their bytes are usually there already.
void Listener::listen_to(Place place) {
  std::array<char, 4096> buffer;
  error_code error;
  const auto size = place->socket.read_some(boost::asio::buffer(buffer), error);
  if (error == boost::asio::error::would_block) {
    place->socket.async_wait(tcp::socket::wait_read,
                             [this, place, alive = lifetime_.token()](error_code failed) {
                               // A newcomer that was dropped has closed its socket: then `place`
                               // has gone.
                               if (alive && !failed) listen_to(place);
                             });
    return;
  }
  if (error) {
    newcomers_.erase(place);
    return;
  }
  place->bytes.append(buffer.data(), size);
  const Protocol protocol = recognise(place->bytes);
  // The magic may come in pieces: TCP keeps no borders between writes.
  if (protocol == Protocol::Undecided) return listen_to(place);
  hand_over(place, protocol);
}

void Listener::hand_over(Place place, Protocol protocol) {
  Newcomer newcomer = std::move(*place);
  newcomers_.erase(place);
  const Taker& taker = protocol == Protocol::Agent ? takers_.agent : takers_.store;
  if (protocol == Protocol::Unknown || !taker) {
    error_code error;
    const auto peer = newcomer.socket.remote_endpoint(error);
    limited_.add("closed a connection of {} to port {}: it began with {}",
                 plain(peer.address()).to_string(), port_, format_hex(newcomer.bytes));
    return;
  }
  taker(std::move(newcomer.socket), std::move(newcomer.bytes));
}

// The list is in the order of deadlines.
void Listener::watch_first_bytes() {
  if (newcomers_.empty()) return;
  deadline_->arm(newcomers_.front().deadline, [this] {
    const TimePoint now = clock_.now();
    while (!newcomers_.empty() && newcomers_.front().deadline <= now) {
      if (newcomers_.front().bytes.empty() && takers_.store) {
        // Its wait holds an iterator into the list. Cancelled, it completes with an error, and
        // does not look there any more.
        newcomers_.front().socket.cancel();
        // A TCPStore of torch 1.13 opens a second connection, and says nothing on it until it
        // watches a key: its silence is its sign.
        hand_over(newcomers_.begin(), Protocol::Store);
      } else {
        newcomers_.pop_front();
      }
    }
    watch_first_bytes();
  });
}

}  // namespace elastrun::net
