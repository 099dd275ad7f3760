// SPDX-License-Identifier: Apache-2.0

#include "store/server.hpp"

#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "net/endpoint.hpp"
#include "store/conversation.hpp"
#include "store/listening.hpp"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::store {

/// Many descriptors behind one that Asio waits for: an epoll(7) set inside Asio's own. A thousand
/// ready connections cost one turn of the loop and not a thousand queued operations, and an idle
/// one costs the kernel's memory alone.
///
/// `events` are those of epoll_ctl(2), EPOLLET among them. Descriptors must be removed before
/// they are closed, since a child between vfork and exec may still hold a copy.
class Poller {
 public:
  using OnReady = std::function<void(std::span<const epoll_event>)>;

  /// `on_ready` runs on the loop with the events of one turn. It may add and remove; events of a
  /// descriptor removed in the same turn may still be in the span, so `tag` should tell.
  static Result<std::unique_ptr<Poller>> make(boost::asio::io_context& loop, OnReady on_ready);
  ~Poller();

  Status add(int fd, std::uint32_t events, std::uint64_t tag);
  /// Also asks once more: what is ready now is reported, although it was before.
  void modify(int fd, std::uint32_t events, std::uint64_t tag);
  void remove(int fd);

 private:
  struct State;
  explicit Poller(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

struct Poller::State : std::enable_shared_from_this<State> {
  State(boost::asio::io_context& loop, int fd, OnReady ready)
      : set(loop, fd), on_ready(std::move(ready)) {}

  void wait();
  void turn();

  boost::asio::posix::stream_descriptor set;
  OnReady on_ready;
  bool closed = false;
};

void Poller::State::wait() {
  // A completion may already be queued when the poller goes, so it holds the state weakly.
  set.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                 [weak = weak_from_this()](const boost::system::error_code& error) {
                   const auto self = weak.lock();
                   if (error || !self || self->closed) return;
                   self->turn();
                   if (!self->closed) self->wait();
                 });
}

void Poller::State::turn() {
  // Enough to serve a crowd in one turn, few enough to let the agent's other work in between.
  constexpr int kRounds = 4;
  std::array<epoll_event, 256> events;
  for (int round = 0; round < kRounds && !closed; ++round) {
    const int count =
        ::epoll_wait(set.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) return;
    on_ready({events.data(), static_cast<std::size_t>(count)});
    // Fewer than asked for: these were all.
    if (static_cast<std::size_t>(count) < events.size()) return;
  }
}

Poller::Poller(std::shared_ptr<State> state) : state_(std::move(state)) {}

Poller::~Poller() {
  state_->closed = true;
  boost::system::error_code ignored;
  state_->set.close(ignored);
}

Result<std::unique_ptr<Poller>> Poller::make(boost::asio::io_context& loop, OnReady on_ready) {
  // An epoll set is itself readable when one of its members is ready (epoll(7)): the loop watches
  // one descriptor, however many workers are connected.
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return std::unexpected(errno_error(Code::Store, "cannot make an epoll set", errno));
  auto state = std::make_shared<State>(loop, fd, std::move(on_ready));
  state->wait();
  return std::unique_ptr<Poller>(new Poller(std::move(state)));
}

Status Poller::add(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return std::unexpected(errno_error(Code::Store, "cannot watch a descriptor", errno));
}

void Poller::modify(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) {
  ::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
}

/// Whom a server serves, and since when. While it is shut no request is read: a connection may
/// belong to a worker of another node that is a little ahead of us, or to a stranger, and which of
/// both is known only once it is open. Pure.
class Gate {
 public:
  /// A connection that came while it was shut, with what was read from it already.
  using Early = std::pair<boost::asio::ip::tcp::socket, std::string>;

  explicit Gate(bool shut) : shut_(shut) {}

  bool is_shut() const { return shut_; }
  /// Open for these addresses from now on; for all if there are none.
  void open(const std::vector<boost::asio::ip::address>& addresses) {
    shut_ = false;
    allowed_.clear();
    for (const auto& address : addresses) allowed_.insert(net::plain(address));
  }
  /// Shut again; those who waited are closed.
  void shut() {
    shut_ = true;
    early_.clear();
  }
  bool admits(const boost::asio::ip::address& address) const {
    return allowed_.empty() || allowed_.contains(net::plain(address));
  }

  void keep(boost::asio::ip::tcp::socket socket, std::string first_bytes) {
    early_.emplace_back(std::move(socket), std::move(first_bytes));
  }
  std::size_t kept() const { return early_.size(); }
  /// Returns those who waited, first come first, and forgets them.
  std::vector<Early> take_early() { return std::exchange(early_, {}); }

 private:
  bool shut_;
  std::set<boost::asio::ip::address> allowed_;
  std::vector<Early> early_;
};

namespace {

namespace asio = boost::asio;
using Endpoint = asio::ip::tcp::endpoint;

// No tag of a peer is that large.
constexpr std::uint64_t kListenerTag = ~std::uint64_t{0};
constexpr std::size_t kReadSize = 256u << 10;
// Then those who are connected have their turn: thousands may come at once.
constexpr int kAcceptsPerTurn = 256;
// What one peer may send before the others have their turn.
constexpr std::size_t kReadPerTurn = 4u << 20;
// Each change is told once: what is told again and again until it is read costs the kernel a look
// at the socket each time. So everything is read that is there, or the poller asked once more.
constexpr std::uint32_t kEdge = EPOLLET | EPOLLRDHUP;
constexpr std::uint32_t kGone = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
// With no descriptor or memory left, new connections wait this long in the kernel's queue.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

class TcpServer final : public Server {
 public:
  TcpServer(asio::io_context& loop, Listening listening, Settings settings)
      : listener_(std::move(listening.socket)),
        port_(listening.port),
        settings_(settings),
        gate_(settings.awaits_peers),
        pause_(loop) {}
  ~TcpServer() override { close_all(); }

  Status start(asio::io_context& loop);
  std::uint16_t port() const override { return port_; }
  // In the kernel's queue, not refused: a worker of a node that is a little ahead of us comes
  // early.
  void hold_newcomers() override { gate_.shut(), listen(false); }
  void look_for_dead_peers() override {
    for (const Connection& each : connections_) probe_peer_soon(each.fd.get());
  }
  void start_afresh() override;
  void allow_peers(std::vector<asio::ip::address> addresses) override;
  Statistics statistics() const override;
  void adopt(asio::ip::tcp::socket socket, std::string first_bytes) override;

 private:
  struct Connection {
    UniqueFd fd;
    std::uint32_t serial = 0;  // tells events of an earlier connection of the same number
    std::uint32_t events = 0;  // that the poller watches for now
    bool finished = false;     // the peer sends no more
    bool unread = false;       // more is there, which the poller has told already
    bool unsent = false;       // the socket may have room, which the poller has told already
    bool warned = false;       // of a peer that does not read
  };

  std::uint64_t tag(Peer peer) const {
    return std::uint64_t{connections_[peer].serial} << 32 | peer;
  }
  void ready(std::span<const epoll_event> events);
  template <class Work>
  void guard(Peer peer, Work work);
  void ready(Peer peer, std::uint32_t events);
  void accept_some();
  void accept_later(int error);
  void listen(bool now);
  bool welcome(const Endpoint& endpoint);
  Peer add(UniqueFd fd);
  void read(Peer peer, bool to_the_end);
  bool read_some(Peer peer, std::size_t& size);
  void flush_touched();
  void flush(Peer peer);
  bool send_some(Peer peer);
  void drained(Peer peer);
  void watch(Peer peer);
  void cut_off(Peer peer);
  void close(Peer peer);
  void close_all();

  UniqueFd listener_;
  std::uint16_t port_;
  Settings settings_;
  Gate gate_;
  asio::steady_timer pause_;
  Lifetime lifetime_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Exchange> exchange_ =
      std::make_unique<Exchange>(settings_.on_join, settings_.on_change);
  std::vector<Connection> connections_;  // by Peer
  std::vector<Peer> touched_;
  std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kReadSize);
  RateLimitedLog limited_{"store"};
  Statistics statistics_;
  std::uint64_t earlier_requests_ = 0;
};

Status TcpServer::start(asio::io_context& loop) {
  auto poller = Poller::make(loop, [this](auto events) { ready(events); });
  if (!poller) return std::unexpected(poller.error());
  poller_ = std::move(*poller);
  return poller_->add(listener_.get(), gate_.is_shut() ? 0u : EPOLLIN, kListenerTag);
}

void TcpServer::ready(std::span<const epoll_event> events) {
  for (const auto& event : events) {
    const auto peer = static_cast<Peer>(event.data.u64);
    if (event.data.u64 == kListenerTag) {
      // This event may be from before the gate was shut.
      if (!gate_.is_shut()) accept_some();
      continue;
    }
    // An earlier event of this batch may have closed it, and its number be another's by now.
    if (!exchange_->is_open(peer) || event.data.u64 != tag(peer)) continue;
    guard(peer, [&] { ready(peer, event.events); });
  }
  // Answers go out once all requests of the turn have been read: a peer that waits for several of
  // them is woken once, and the kernel's two halves of the work each stay in the cache.
  flush_touched();
}

/// Runs `work` for a peer, who alone pays for the one thing that throws: lack of memory.
template <class Work>
void TcpServer::guard(Peer peer, Work work) {
  // A peer that asks for more memory than there is costs its connection, and not the agent.
  try {
    work();
  } catch (const std::bad_alloc&) {
    if (!exchange_->is_open(peer)) return;
    limited_.add("closed {}: no memory left for its requests",
                 show_peer(connections_[peer].fd.get()));
    ++statistics_.cut_off;
    close(peer);
  }
}

void TcpServer::ready(Peer peer, std::uint32_t events) {
  // First: requests that stalled for want of room were sent before what is unread.
  if ((events & EPOLLOUT) != 0) flush(peer);
  if (!exchange_->is_open(peer)) return;
  // Sent all it had to say, and now it does not even listen any more.
  if (connections_[peer].finished && (events & (EPOLLHUP | EPOLLERR)) != 0) return close(peer);
  if ((events & (EPOLLIN | kGone)) != 0) read(peer, (events & kGone) != 0);
}

void TcpServer::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Endpoint endpoint;
    auto size = static_cast<socklen_t>(endpoint.capacity());
    UniqueFd fd(::accept4(listener_.get(), endpoint.data(), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EAGAIN) return;
      // The peer gave up, or the network had an error for it alone (accept(2)).
      const bool next = errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
      if (next) continue;
      return accept_later(errno);
    }
    if (welcome(endpoint)) add(std::move(fd));
  }
}

void TcpServer::accept_later(int error) {
  limited_.add("cannot accept a connection at port {}: {}; {} are open, new ones wait", port_,
               std::strerror(error), statistics_.connections);
  listen(false);
  pause_.expires_after(kAcceptPause);
  // A completion may already be queued when the server goes.
  pause_.async_wait([this, alive = lifetime_.token()](const boost::system::error_code& stopped) {
    if (!stopped && alive) listen(!gate_.is_shut());
  });
}

/// Takes new connections now, or leaves them in the kernel's queue.
void TcpServer::listen(bool now) {
  poller_->modify(listener_.get(), now ? EPOLLIN : 0u, kListenerTag);
}

bool TcpServer::welcome(const Endpoint& endpoint) {
  if (!gate_.admits(endpoint.address())) {
    limited_.add("refused {}: no node of this job has that address", show(endpoint));
  } else if (statistics_.connections >= settings_.max_connections) {
    limited_.add("refused {}: {} connections are open, the limit", show(endpoint),
                 statistics_.connections);
  } else {
    return true;
  }
  ++statistics_.refused;
  return false;
}

/// Takes the connection in; its number is that of its conversation.
Peer TcpServer::add(UniqueFd fd) {
  const Peer peer = exchange_->open();
  if (peer >= connections_.size()) connections_.resize(peer + 1);
  Connection& connection = connections_[peer];
  // The number may have been another connection's, whose late events have an older serial (tag()).
  connection = {.fd = std::move(fd), .serial = connection.serial + 1, .events = EPOLLIN};
  ++statistics_.accepted;
  ++statistics_.connections;
  if (const auto added = poller_->add(connection.fd.get(), EPOLLIN | kEdge, tag(peer)); !added) {
    limited_.add("closed {}: {}", show_peer(connection.fd.get()), added.error().text);
    close(peer);
  }
  return peer;
}

void TcpServer::adopt(asio::ip::tcp::socket socket, std::string first_bytes) {
  // It was accepted elsewhere, so the kernel's queue cannot hold it any more.
  if (gate_.is_shut() && gate_.kept() < settings_.max_connections) {
    return gate_.keep(std::move(socket), std::move(first_bytes));
  }
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error || gate_.is_shut() || !welcome(endpoint)) return;
  socket.non_blocking(true, error);
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  UniqueFd fd(socket.release(error));
  if (error) return;
  const Peer peer = add(std::move(fd));
  if (!exchange_->is_open(peer)) return;
  exchange_->receive(peer, first_bytes);
  flush_touched();
}

/// Reads what is there: until a read finds less than it has room for, and to the very end if the
/// poller knows of one, since it will not tell that again.
void TcpServer::read(Peer peer, bool to_the_end) {
  std::size_t total = 0;
  std::size_t size = kReadSize;
  while (size == kReadSize || to_the_end) {
    if (connections_[peer].finished) return;
    if (exchange_->at(peer).stalled() || total >= kReadPerTurn) {
      // With EPOLLET nothing tells of the rest again: watch() asks for it.
      connections_[peer].unread = true;
      return watch(peer);
    }
    if (!read_some(peer, size)) return;
    total += size;
  }
}

/// One recv(2). False if nothing was there, or the peer is gone.
bool TcpServer::read_some(Peer peer, std::size_t& size) {
  Connection& connection = connections_[peer];
  const auto got = ::recv(connection.fd.get(), buffer_.get(), kReadSize, 0);
  if (got > 0) {
    size = static_cast<std::size_t>(got);
    exchange_->receive(peer, {buffer_.get(), size});
    return true;
  }
  if (got == 0) {
    // Half closed: answers to what it asked before are still due.
    connection.finished = true;
    flush(peer);
  } else if (errno != EAGAIN) {
    close(peer);
  }
  return false;
}

void TcpServer::flush_touched() {
  do {  // what goes on now that there is room may wake others
    exchange_->take_touched(touched_);
    for (const Peer peer : touched_) {
      if (exchange_->is_open(peer)) guard(peer, [&] { flush(peer); });
    }
  } while (!touched_.empty());
}

/// Sends what can be sent and runs what waited for that, until the socket is full or nothing is
/// left.
void TcpServer::flush(Peer peer) {
  Conversation& conversation = exchange_->at(peer);
  std::size_t sent = 0;
  while (!conversation.output().empty() && sent < settings_.send_per_turn) {
    const auto before = conversation.output().size();
    if (!send_some(peer)) return;
    sent += before - conversation.output().size();
    if (conversation.output().size() == before) break;  // the socket is full: an edge will come
    // Requests that waited for room go on, so a long list is answered as fast as it is read.
    if (conversation.pending() && !conversation.stalled()) exchange_->receive(peer, {});
  }
  if (conversation.output().empty()) return drained(peer);
  // The turn ended while the socket had room, and that edge was told before: without asking the
  // poller again this answer would stall.
  connections_[peer].unsent = sent >= settings_.send_per_turn;
  // Shared values are held once for all peers, so only this peer's own bytes count.
  if (conversation.output().own_size() > settings_.max_backlog) return cut_off(peer);
  if (conversation.stalled() && !std::exchange(connections_[peer].warned, true)) {
    limited_.add("{} does not read its answers: {} bytes wait, its requests wait until it does",
                 show_peer(connections_[peer].fd.get()), conversation.output().size());
  }
  watch(peer);
}

/// One send(2). False if the connection is gone; a full socket takes nothing.
bool TcpServer::send_some(Peer peer) {
  Output& output = exchange_->at(peer).output();
  std::array<iovec, 64> parts;
  const auto used = output.gather(parts);
  const int fd = connections_[peer].fd.get();
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  const auto size = used == 1 ? ::send(fd, parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL)
                              : ::sendmsg(fd, &message, MSG_NOSIGNAL);
  if (size >= 0) {
    output.sent(static_cast<std::size_t>(size));
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  close(peer);
  return false;
}

/// Nothing is left to send: the connection ends if it is to, or listens again.
void TcpServer::drained(Peer peer) {
  Connection& connection = connections_[peer];
  const Conversation& conversation = exchange_->at(peer);
  if (conversation.ended()) {
    limited_.add("closed {}, which {}", show_peer(connection.fd.get()), conversation.violation());
    ++statistics_.cut_off;
    return close(peer);
  }
  if (connection.finished) return close(peer);
  watch(peer);
}

/// Tells the poller what this connection waits for, if that has changed.
void TcpServer::watch(Peer peer) {
  Connection& connection = connections_[peer];
  const Conversation& conversation = exchange_->at(peer);
  const bool reads = !connection.finished && !conversation.ended() && !conversation.stalled();
  const std::uint32_t wanted =
      (reads ? EPOLLIN : 0u) | (conversation.output().empty() ? 0u : EPOLLOUT);
  const bool asks_again = (reads && connection.unread) || connection.unsent;
  if (wanted == connection.events && !asks_again) return;
  if (reads) connection.unread = false;
  connection.unsent = false;
  connection.events = wanted;
  // Also where nothing differs: epoll_ctl(2) then looks at what is there already.
  poller_->modify(connection.fd.get(), wanted | kEdge, tag(peer));
}

void TcpServer::cut_off(Peer peer) {
  limited_.add("closed {}: it does not read its answers, {} bytes have piled up; the limit is {}",
               show_peer(connections_[peer].fd.get()), exchange_->at(peer).output().own_size(),
               settings_.max_backlog);
  ++statistics_.cut_off;
  close(peer);
}

void TcpServer::close(Peer peer) {
  Connection& connection = connections_[peer];
  // Before the close: a child between clone and execve has a copy, which would keep the connection
  // in the set (epoll(7)).
  poller_->remove(connection.fd.get());
  connection.fd.reset();
  exchange_->close(peer);
  --statistics_.connections;
}

void TcpServer::close_all() {
  for (Peer peer = 0; peer < connections_.size(); ++peer)
    if (exchange_->is_open(peer)) close(peer);
}

void TcpServer::start_afresh() {
  close_all();
  // With the keys of the round before, the barriers of the next one would be complete at once.
  earlier_requests_ += exchange_->requests();
  // After the connections, whose close speaks to the old one. They keep their serials, by which a
  // late event of the old round is told from one of the new, whose peers are numbered from 0 again.
  exchange_ = std::make_unique<Exchange>(settings_.on_join, settings_.on_change);
  if (settings_.awaits_peers && !gate_.is_shut()) hold_newcomers();
}

void TcpServer::allow_peers(std::vector<asio::ip::address> addresses) {
  const bool was_shut = gate_.is_shut();
  // Before those that came early are adopted, which asks the gate.
  gate_.open(addresses);
  if (!was_shut) return;
  listen(true);
  for (auto& [socket, first_bytes] : gate_.take_early()) {
    adopt(std::move(socket), std::move(first_bytes));
  }
}

Server::Statistics TcpServer::statistics() const {
  Statistics now = statistics_;
  now.requests = earlier_requests_ + exchange_->requests();
  now.keys = exchange_->table().size();
  return now;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::listen(asio::io_context& loop, const std::string& address,
                                               std::uint16_t port, Settings settings) {
  auto listening = open_listening(address, port);
  if (!listening) return std::unexpected(listening.error());
  auto server = std::make_unique<TcpServer>(loop, std::move(*listening), std::move(settings));
  if (const auto started = server->start(loop); !started) return std::unexpected(started.error());
  return server;
}

}  // namespace elastrun::store
