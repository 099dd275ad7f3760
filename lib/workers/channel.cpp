// SPDX-License-Identifier: Apache-2.0
#include "workers/channel.hpp"

#include "core/log.hpp"
#include "core/unique_fd.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <list>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace elastrun::workers {
namespace {
namespace asio = boost::asio;

constexpr std::size_t kMaxConnections = 4096;  // 64 workers with 60 processes each
constexpr int kMaxRefused = 8;                 // packets without meaning before a sender is cut off
constexpr int kPacketsAtOnce = 64;             // then others have their turn
constexpr int kBacklog = 256;

/// One connected process.
struct Sender {
  Sender(asio::io_context& loop, int fd, pid_t process) : socket(loop, fd), pid(process) {}
  asio::posix::stream_descriptor socket;
  pid_t pid;
  int refused = 0;
};

class UnixChannel final : public Channel {
 public:
  UnixChannel(asio::io_context& loop, UniqueFd listener, std::string path, std::string folder,
              OnMessage on_message)
      : loop_(loop),
        listener_(loop, listener.release()),
        path_(std::move(path)),
        own_folder_(std::move(folder)),
        on_message_(std::move(on_message)) {
    await_connection();
  }
  ~UnixChannel() override {
    ::unlink(path_.c_str());
    if (!own_folder_.empty()) ::rmdir(own_folder_.c_str());
  }
  UnixChannel(const UnixChannel&) = delete;
  UnixChannel& operator=(const UnixChannel&) = delete;

  const std::string& path() const override { return path_; }
  Statistics statistics() const override { return statistics_; }

 private:
  using Senders = std::list<Sender>;

  void await_connection() {
    listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code& error) {
                           if (error) return;
                           accept_all();
                           await_connection();
                         });
  }

  void accept_all() {
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      UniqueFd fd(
          ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) return;
      ucred peer{};
      socklen_t size = sizeof peer;
      const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
      if (!known || peer.uid != ::geteuid() || senders_.size() >= kMaxConnections) {
        ++statistics_.refused;
        continue;
      }
      ++statistics_.connections;
      senders_.emplace_front(loop_, fd.release(), peer.pid);
      await_packet(senders_.begin());
    }
  }

  void await_packet(Senders::iterator sender) {
    sender->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this, sender](const boost::system::error_code& error) {
                                if (error) return;
                                if (read_packets(*sender)) {
                                  await_packet(sender);
                                } else {
                                  senders_.erase(sender);
                                }
                              });
  }

  /// False when the sender has gone or is not to be heard any more.
  bool read_packets(Sender& sender) {
    std::array<char, kMaxPacket> buffer;
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      // With MSG_TRUNC the true length comes back, so an oversized packet is seen as such.
      const auto got = ::recv(sender.socket.native_handle(), buffer.data(), buffer.size(),
                              MSG_DONTWAIT | MSG_TRUNC);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) return false;
      const auto size = static_cast<std::size_t>(got);
      auto message = size > buffer.size()
                         ? fail(Code::Protocol, "a message of a worker is longer than 16 KiB")
                         : parse_message({buffer.data(), size});
      if (!take(sender, std::move(message))) return false;
    }
    return true;
  }

  bool take(Sender& sender, Result<Message> message) {
    if (message) {
      ++statistics_.messages;
      on_message_(sender.pid, std::move(*message));
      return true;
    }
    ++statistics_.refused;
    if (++sender.refused == 1) {
      log::warning("channel", "Process {}: {}", sender.pid, message.error().text);
    }
    return sender.refused < kMaxRefused;
  }

  asio::io_context& loop_;
  asio::posix::stream_descriptor listener_;
  const std::string path_, own_folder_;
  const OnMessage on_message_;
  Senders senders_;
  Statistics statistics_;
};

/// A folder below TMPDIR that makes for a short path.
Result<std::string> short_folder() {
  const char* base = std::getenv("TMPDIR");
  std::string pattern =
      std::string(base != nullptr && std::strlen(base) < 60 ? base : "/tmp") + "/elastrun_XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    return std::unexpected(errno_error(Code::Io, "cannot make the folder " + pattern, errno));
  }
  return pattern;
}

Status bind_at(int fd, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!bound || ::listen(fd, kBacklog) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot listen at " + path, errno));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Channel>> Channel::listen(asio::io_context& loop, const std::string& folder,
                                                 OnMessage on_message) {
  std::string own_folder;
  std::string path = folder + "/channel";
  if (folder.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    auto made = short_folder();
    if (!made) return std::unexpected(made.error());
    own_folder = std::move(*made);
    path = own_folder + "/channel";
  }
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::unexpected(errno_error(Code::Io, "cannot make the worker channel", errno));
  if (const auto bound = bind_at(fd.get(), path); !bound) {
    if (!own_folder.empty()) ::rmdir(own_folder.c_str());
    return std::unexpected(bound.error());
  }
  return std::make_unique<UnixChannel>(loop, std::move(fd), std::move(path), std::move(own_folder),
                                       std::move(on_message));
}

}  // namespace elastrun::workers
