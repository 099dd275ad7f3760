// SPDX-License-Identifier: Apache-2.0

#include "store/server.hpp"

#include "core/file_io.hpp"
#include "net/endpoint.hpp"
#include "net/listener.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <new>
#include <set>
#include <span>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace elastrun::store {
namespace {

namespace asio = boost::asio;
namespace ip = asio::ip;
using Endpoint = ip::tcp::endpoint;

constexpr int kMaxDescriptors = 200'000;  // looked at in all processes together

/// Adds the sockets that listen on the port, as /proc/PID/fd shows them, from a table of proc(5).
void read_listeners(const char* path, std::uint16_t port, std::set<std::string>& sockets) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    unsigned local = 0, state = 0;
    unsigned long inode = 0;
    const int read = std::sscanf(line.c_str(), "%*s %*[^:]:%x %*s %x %*s %*s %*s %*s %*s %lu",
                                 &local, &state, &inode);
    // 0A is TCP_LISTEN.
    if (read == 3 && state == 0x0A && local == port) {
      sockets.insert(fmt::format("socket:[{}]", inode));
    }
  }
}

/// Until `look` finds one of the names that it wants; false: none, or we may not look, as a rule
/// into processes of another user.
bool any_entry(const std::string& folder, auto look) {
  const std::unique_ptr<DIR, decltype([](DIR* one) { ::closedir(one); })> directory(
      ::opendir(folder.c_str()));
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (look(std::string(entry->d_name))) return true;
  }
  return false;
}

std::string command_of(const std::string& process) {
  auto command = read_kernel_file("/proc/" + process + "/cmdline");
  std::replace(command.begin(), command.end(), '\0', ' ');
  while (command.ends_with(' ')) command.pop_back();
  return command.size() > 80 ? command.substr(0, 77) + "..." : command;
}

Result<ip::address> parse_address(const std::string& address) {
  if (address.empty()) return ip::address_v6::any();
  if (address == "localhost") return ip::address_v4::loopback();
  boost::system::error_code error;
  // Numbers alone: a look-up may block the loop for seconds.
  auto parsed = ip::make_address(address, error);
  if (!error) return parsed;
  return fail(Code::Store,
              fmt::format("cannot listen on '{}': it is not an IPv4 or IPv6 address; names "
                          "are not looked up here, give the number",
                          address));
}

Error listen_error(const Endpoint& endpoint, int number) {
  std::string why = std::strerror(number);
  if (number == EADDRINUSE) {
    const auto owner = find_port_owner(endpoint.port());
    why = owner.empty() ? "the port is in use by a process that we cannot see"
                        : "the port is in use by " + owner;
    why += "; stop it, or choose another port (0: any free one)";
  } else if (number == EADDRNOTAVAIL) {
    why = "this machine does not have that address";
  } else if (number == EACCES) {
    why = "ports below 1024 need a privilege; choose a higher one";
  } else if (number == EMFILE) {
    why += " (raise the limit: ulimit -n)";
  }
  return {Code::Store, fmt::format("cannot listen on {}: {}", show(endpoint), why)};
}

void probe(int socket, int idle_s, int interval_s, int probes) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/// Linux hands them down to accepted sockets, which saves system calls for each of those. A client
/// whose machine is gone without a word is noticed after two minutes: a worker may wait for the
/// last one to hang up.
void hand_down_options(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  probe(socket, 60, 15, 4);
}

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

}  // namespace

std::string find_port_owner(std::uint16_t port) {
  std::set<std::string> sockets;
  read_listeners("/proc/net/tcp", port, sockets);
  read_listeners("/proc/net/tcp6", port, sockets);
  if (sockets.empty()) return {};
  std::string owner;
  int looked_at = 0;
  any_entry("/proc", [&](const std::string& process) {
    if (process.find_first_not_of("0123456789") != std::string::npos) return false;
    const auto folder = "/proc/" + process + "/fd/";
    const bool holds = any_entry(folder, [&](const std::string& fd) {
      // All this is for the text of an error, which must not take seconds on a large machine.
      if (++looked_at > kMaxDescriptors) return false;
      std::array<char, 64> target{};
      const auto size = ::readlink((folder + fd).c_str(), target.data(), target.size());
      return size > 0 && sockets.contains({target.data(), static_cast<std::size_t>(size)});
    });
    if (holds) owner = fmt::format("process {} ({})", process, command_of(process));
    return holds;
  });
  return owner;
}

std::string show(const Endpoint& endpoint) {
  return net::format_endpoint(net::plain(endpoint.address()).to_string(), endpoint.port());
}

std::string show_peer(int fd) {
  Endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (::getpeername(fd, endpoint.data(), &size) != 0) return "a peer that is already gone";
  return show(endpoint);
}

Result<UniqueFd> open_listening(const std::string& address, std::uint16_t port) {
  const auto parsed = parse_address(address);
  if (!parsed) return std::unexpected(parsed.error());
  // As many as the kernel lets us (net.core.somaxconn): thousands of workers connect at once.
  constexpr int kBacklog = 65535;
  auto opened = net::listen_on(net::plain(*parsed), port, kBacklog, hand_down_options);
  if (!opened) return std::unexpected(listen_error(Endpoint(*parsed, port), opened.error()));
  return std::move(*opened);
}

void probe_peer_soon(int socket) {
  // The second one is for what has been sent and is not acknowledged: no probes come then.
  const unsigned limit_ms = 15000;
  probe(socket, 5, 2, 5);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

Server::Server(asio::io_context& loop, UniqueFd listener, Settings settings)
    : listener_(std::move(listener)),
      port_(net::bound_to(listener_.get()).port()),
      settings_(std::move(settings)),
      shut_(settings_.awaits_peers),
      poller_(loop),
      pause_(loop),
      buffer_(std::make_unique_for_overwrite<char[]>(kReadSize)) {
  start_exchange();
}

Status Server::start() {
  // An epoll set is itself readable when one of its members is ready (epoll(7)): the loop watches
  // one descriptor, however many workers are connected.
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return std::unexpected(errno_error(Code::Store, "cannot make an epoll set", errno));
  poller_.assign(fd);
  await_events();
  return poll_for(EPOLL_CTL_ADD, listener_.get(), shut_ ? 0u : EPOLLIN, kListenerTag);
}

/// As epoll_ctl(2). Asked again for the same, it reports what is ready now, although it was before.
Status Server::poll_for(int operation, int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(poller_.native_handle(), operation, fd, &event) == 0) return {};
  return std::unexpected(errno_error(Code::Store, "cannot watch a descriptor", errno));
}

void Server::await_events() {
  // A completion may already be queued when the server goes.
  poller_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, alive = lifetime_.token()](const boost::system::error_code& error) {
                       if (error || !alive) return;
                       take_events();
                       await_events();
                     });
}

void Server::take_events() {
  // Enough to serve a crowd in one turn, few enough to let the agent's other work in between.
  constexpr int kRounds = 4;
  std::array<epoll_event, 256> events;
  int count = static_cast<int>(events.size());
  // Fewer than asked for: these were all.
  for (int round = 0; round < kRounds && count == static_cast<int>(events.size()); ++round) {
    count = ::epoll_wait(poller_.native_handle(), events.data(), count, 0);
    const auto ready_ones = std::max(count, 0);
    for (const auto& event : std::span(events).first(static_cast<std::size_t>(ready_ones))) {
      ready(event.data.u64, event.events);
    }
    // Answers go out once all requests of the turn have been read: a peer that waits for several of
    // them is woken once, and the kernel's two halves of the work each stay in the cache.
    flush_touched();
  }
}

void Server::ready(std::uint64_t tag, std::uint32_t events) {
  // This event may be from before the gate was shut.
  if (tag == kListenerTag) return shut_ ? void() : accept_some();
  const auto peer = static_cast<Peer>(tag);
  // An earlier event of this batch may have closed it, and its number be another's by now.
  if (!exchange_->is_open(peer) || tag != tag_of(peer)) return;
  guard(peer, [&] { serve(peer, events); });
}

/// Runs `work` for a peer, who alone pays for the one thing that throws: lack of memory.
template <class Work>
void Server::guard(Peer peer, Work work) {
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

void Server::serve(Peer peer, std::uint32_t events) {
  // First: requests that stalled for want of room were sent before what is unread.
  if ((events & EPOLLOUT) != 0) flush(peer);
  if (!exchange_->is_open(peer)) return;
  // Sent all it had to say, and now it does not even listen any more.
  if (connections_[peer].finished && (events & (EPOLLHUP | EPOLLERR)) != 0) return close(peer);
  if ((events & (EPOLLIN | kGone)) != 0) read(peer, (events & kGone) != 0);
}

void Server::accept_some() {
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

void Server::accept_later(int error) {
  limited_.add("cannot accept a connection at port {}: {}; {} are open, new ones wait", port_,
               std::strerror(error), statistics_.connections);
  take_newcomers(false);
  pause_.expires_after(kAcceptPause);
  // A completion may already be queued when the server goes.
  pause_.async_wait([this, alive = lifetime_.token()](const boost::system::error_code& stopped) {
    if (!stopped && alive) take_newcomers(!shut_);
  });
}

/// Takes new connections now, or leaves them in the kernel's queue.
void Server::take_newcomers(bool now) {
  (void)poll_for(EPOLL_CTL_MOD, listener_.get(), now ? EPOLLIN : 0u, kListenerTag);
}

void Server::hold_newcomers() {
  // In the kernel's queue, not refused: a worker of a node that is a little ahead of us comes
  // early.
  shut_ = true;
  early_.clear();
  take_newcomers(false);
}

bool Server::welcome(const Endpoint& endpoint) {
  if (!allowed_.empty() && !allowed_.contains(net::plain(endpoint.address()))) {
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
Peer Server::add(UniqueFd fd) {
  const Peer peer = exchange_->open();
  if (peer >= connections_.size()) connections_.resize(peer + 1);
  Connection& connection = connections_[peer];
  // The number may have been another connection's, whose late events have an older serial
  // (tag_of()).
  connection = {.fd = std::move(fd), .serial = connection.serial + 1, .events = EPOLLIN};
  ++statistics_.accepted;
  ++statistics_.connections;
  const auto added = poll_for(EPOLL_CTL_ADD, connection.fd.get(), EPOLLIN | kEdge, tag_of(peer));
  if (!added) {
    limited_.add("closed {}: {}", show_peer(connection.fd.get()), added.error().text);
    close(peer);
  }
  return peer;
}

void Server::adopt(asio::ip::tcp::socket socket, std::string first_bytes) {
  // It was accepted elsewhere, so the kernel's queue cannot hold it any more.
  if (shut_ && early_.size() < settings_.max_connections) {
    early_.emplace_back(std::move(socket), std::move(first_bytes));
    return;
  }
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error || shut_ || !welcome(endpoint)) return;
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
void Server::read(Peer peer, bool to_the_end) {
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
bool Server::read_some(Peer peer, std::size_t& size) {
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

void Server::flush_touched() {
  do {  // what goes on now that there is room may wake others
    exchange_->take_touched(touched_);
    for (const Peer peer : touched_) {
      if (exchange_->is_open(peer)) guard(peer, [&] { flush(peer); });
    }
  } while (!touched_.empty());
}

/// Sends what can be sent and runs what waited for that, until the socket is full or nothing is
/// left.
void Server::flush(Peer peer) {
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
bool Server::send_some(Peer peer) {
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
void Server::drained(Peer peer) {
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
void Server::watch(Peer peer) {
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
  (void)poll_for(EPOLL_CTL_MOD, connection.fd.get(), wanted | kEdge, tag_of(peer));
}

void Server::cut_off(Peer peer) {
  limited_.add("closed {}: it does not read its answers, {} bytes have piled up; the limit is {}",
               show_peer(connections_[peer].fd.get()), exchange_->at(peer).output().own_size(),
               settings_.max_backlog);
  ++statistics_.cut_off;
  close(peer);
}

void Server::close(Peer peer) {
  Connection& connection = connections_[peer];
  // Before the close: a child between clone and execve has a copy, which would keep the connection
  // in the set (epoll(7)).
  (void)poll_for(EPOLL_CTL_DEL, connection.fd.get(), 0, 0);
  connection.fd.reset();
  exchange_->close(peer);
  --statistics_.connections;
}

void Server::close_all() {
  for (Peer peer = 0; peer < connections_.size(); ++peer)
    if (exchange_->is_open(peer)) close(peer);
}

void Server::start_afresh() {
  close_all();
  // With the keys of the round before, the barriers of the next one would be complete at once.
  earlier_requests_ += exchange_->requests();
  // After the connections, whose close speaks to the old one. They keep their serials, by which a
  // late event of the old round is told from one of the new, whose peers are numbered from 0 again.
  start_exchange();
  if (settings_.awaits_peers && !shut_) hold_newcomers();
}

void Server::allow_peers(std::vector<asio::ip::address> addresses) {
  allowed_.clear();
  for (const auto& address : addresses) allowed_.insert(net::plain(address));
  if (!std::exchange(shut_, false)) return;
  take_newcomers(true);
  for (auto& [socket, first_bytes] : std::exchange(early_, {})) {
    adopt(std::move(socket), std::move(first_bytes));
  }
}

Server::Statistics Server::statistics() const {
  Statistics now = statistics_;
  now.requests = earlier_requests_ + exchange_->requests();
  now.keys = exchange_->table().size();
  return now;
}

Result<std::unique_ptr<Server>> Server::listen(asio::io_context& loop, const std::string& address,
                                               std::uint16_t port, Settings settings) {
  auto listening = open_listening(address, port);
  if (!listening) return std::unexpected(listening.error());
  std::unique_ptr<Server> server(new Server(loop, std::move(*listening), std::move(settings)));
  if (const auto started = server->start(); !started) return std::unexpected(started.error());
  return server;
}

}  // namespace elastrun::store
