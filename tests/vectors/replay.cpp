// SPDX-License-Identifier: Apache-2.0
#include "core/unique_fd.hpp"
#include "net/frame.hpp"
#include "store/conversation.hpp"
#include "store/server.hpp"
#include "vectors/recording.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace elastrun::vectors {
namespace {

/// A server and its clients, at the bytes.
class Network {
 public:
  virtual ~Network() = default;
  /// False if the server has closed the connection. The first use opens it.
  virtual bool send(char connection, std::string_view bytes) = 0;
  virtual void shut_down_write(char connection) = 0;
  virtual void close(char connection) = 0;
  /// Lets the server work until nothing moves any more.
  virtual void settle() = 0;

  struct Inbox {
    std::string bytes;
    bool ended = false;
  };
  std::map<char, Inbox> inboxes;
};

class SocketNetwork final : public Network {
 public:
  SocketNetwork() { server_ = store::Server::listen(loop_, "127.0.0.1", 0, {}).value(); }

  bool send(char connection, std::string_view bytes) override {
    const int fd = socket(connection);
    while (!bytes.empty()) {
      const auto size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (size < 0 && errno != EAGAIN) return false;
      bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
      if (!bytes.empty()) loop_.poll();
    }
    return true;
  }
  void shut_down_write(char connection) override { ::shutdown(socket(connection), SHUT_WR); }
  void close(char connection) override {
    sockets_.erase(connection);
    inboxes.erase(connection);
  }

  void settle() override {
    // The loopback hands bytes over within the call that sends them; the short waits are for a
    // kernel that is too busy for that.
    constexpr int kQuietRounds = 2;
    for (int quiet = 0; quiet < kQuietRounds;) {
      loop_.restart();
      const bool worked = loop_.poll() > 0 || loop_.run_one_for(std::chrono::milliseconds(1)) > 0;
      quiet = receive() || worked ? 0 : quiet + 1;
    }
  }

 private:
  int socket(char connection) {
    UniqueFd& fd = sockets_[connection];
    if (fd) return fd.get();
    fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // Otherwise a second small send waits for the acknowledgement of the first: 40 ms of silence.
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // If this failed, the first send would say so.
    std::ignore = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    inboxes[connection] = {};
    return fd.get();
  }

  bool receive() {
    bool any = false;
    for (const auto& [connection, fd] : sockets_) {
      Inbox& inbox = inboxes[connection];
      std::string buffer(64u << 10, '\0');
      const auto size = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      any = any || size > 0;
      if (size > 0) inbox.bytes.append(buffer, 0, static_cast<std::size_t>(size));
      if (size == 0 || (size < 0 && errno != EAGAIN)) inbox.ended = true;
    }
    return any;
  }

  boost::asio::io_context loop_;
  std::unique_ptr<store::Server> server_;
  std::map<char, UniqueFd> sockets_;
};

class PieceNetwork final : public Network {
 public:
  explicit PieceNetwork(std::size_t piece) : piece_(piece) {}

  bool send(char connection, std::string_view bytes) override {
    const auto [found, fresh] = peers_.try_emplace(connection, 0);
    if (fresh) found->second = exchange_.open();
    if (inboxes[connection].ended) return false;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece_, bytes.size()))) {
      exchange_.receive(found->second, bytes.substr(0, piece_));
    }
    return true;
  }
  void shut_down_write(char connection) override {
    settle();
    inboxes[connection].ended = true;
  }
  void close(char connection) override {
    exchange_.close(peers_.at(connection));
    peers_.erase(connection);
    inboxes.erase(connection);
  }
  void settle() override {
    for (const auto& [connection, peer] : peers_) {
      inboxes[connection].bytes += exchange_.at(peer).output().take();
      if (exchange_.at(peer).ended()) inboxes[connection].ended = true;
    }
  }

 private:
  std::size_t piece_;
  store::Exchange exchange_;
  std::map<char, store::Peer> peers_;
};

/// An answer to LIST_KEYS with its keys in order; other bytes come back as they are.
std::string sorted_list(const std::string& bytes) {
  net::ByteReader reader(bytes);
  const auto count = reader.number<std::uint64_t>();
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; count && i < *count; ++i) {
    const auto length = reader.number<std::uint64_t>();
    const auto key = length ? reader.bytes(*length) : std::nullopt;
    if (!key) return bytes;
    keys.emplace_back(*key);
  }
  if (!count || !reader.empty()) return bytes;
  std::sort(keys.begin(), keys.end());
  std::string sorted = bytes.substr(0, 8);
  for (const auto& key : keys) sorted += fmt::format("{} {}\n", key.size(), key);
  return sorted;
}

std::unexpected<Error> wrong(std::size_t step, const std::string& what) {
  return fail(Code::Protocol, fmt::format("after step {}: {}", step, what));
}

/// Nothing that the recorded server did not send either.
Status check_quiet(const Network& network, std::size_t step) {
  for (const auto& [connection, inbox] : network.inboxes) {
    if (inbox.bytes.empty()) continue;
    return wrong(step, fmt::format("silence was expected on {}, not {}", connection,
                                   net::format_hex(inbox.bytes)));
  }
  return {};
}

Status receive(Network& network, const Step& step, std::size_t index, bool unordered) {
  auto& inbox = network.inboxes[step.connection];
  const auto got = inbox.bytes.substr(0, step.bytes.size());
  const bool same = unordered ? sorted_list(got) == sorted_list(step.bytes) : got == step.bytes;
  if (!same) {
    return wrong(index, fmt::format("{} bytes {} were expected on {}, not {} bytes {}",
                                    step.bytes.size(), net::format_hex(step.bytes), step.connection,
                                    got.size(), net::format_hex(got)));
  }
  inbox.bytes.erase(0, step.bytes.size());
  return {};
}

Status play(const Recording& recording, Network& network) {
  const auto& steps = recording.steps;
  bool finished = false;  // by A's own doing
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const bool expects = step.kind == Step::Kind::Receive || step.kind == Step::Kind::End;
    if (const auto quiet = expects ? Status{} : check_quiet(network, i); !quiet) return quiet;
    const bool ends = step.kind == Step::Kind::Close || step.kind == Step::Kind::ShutdownWrite;
    finished = finished || (ends && step.connection == 'A');
    if (step.kind == Step::Kind::Send && !network.send(step.connection, step.bytes)) {
      return wrong(i, fmt::format("the server had closed {} already", step.connection));
    }
    if (step.kind == Step::Kind::ShutdownWrite) network.shut_down_write(step.connection);
    if (step.kind == Step::Kind::Close) network.close(step.connection);
    network.settle();
    if (step.kind == Step::Kind::Receive) {
      const bool last = recording.unordered_tail && i + 1 == steps.size();
      if (const auto same = receive(network, step, i, last); !same) return same;
    }
    if (step.kind == Step::Kind::End && !network.inboxes[step.connection].ended) {
      return wrong(i, fmt::format("the server should have closed {}", step.connection));
    }
  }
  if (const auto quiet = check_quiet(network, steps.size()); !quiet) return quiet;
  if (finished || network.inboxes['A'].ended == recording.closed_by_server) return {};
  return wrong(steps.size(), recording.closed_by_server ? "the server should have closed A"
                                                        : "the server should not have closed A");
}

}  // namespace

Status replay_over_sockets(const Recording& recording) {
  SocketNetwork network;
  return play(recording, network);
}

Status replay_in_pieces(const Recording& recording, std::size_t piece) {
  PieceNetwork network(piece);
  return play(recording, network);
}

}  // namespace elastrun::vectors
