// SPDX-License-Identifier: Apache-2.0
#include "workers/channel.hpp"

#include "core/file_io.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace elastrun::workers {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxConnections = 4096;  // 64 workers with 60 processes each
// And no more than this part of the descriptors that we may have: others are for the workers'
// pipes, the next attempt and other nodes.
constexpr std::size_t kShare = 4;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // without a descriptor for it
constexpr int kMaxRefused = 8;           // packets without meaning before a stranger is cut off
constexpr int kPacketsAtOnce = 64;       // then others have their turn
constexpr int kPacketsToCatchUp = 4096;  // more than the kernel holds of one sender
constexpr std::uint64_t kMostNotTold = 1ull << 40;  // at once: a worker may say anything
// The kernel takes net.core.somaxconn where that is less (listen(2)).
constexpr int kBacklog = 256;

std::size_t most_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxConnections;
  return static_cast<std::size_t>(std::min<rlim_t>(kMaxConnections, limit.rlim_cur / kShare));
}

UniqueFd open_spare() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

Status listen_at(ChannelPlace& place) {
  place.socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!place.socket) return std::unexpected(errno_error(Code::Io, "cannot make a socket", errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // 108 bytes on Linux (unix(7)). A longer path, cut, would name another file.
  if (place.path.size() >= sizeof address.sun_path) {
    return fail(Code::Io, fmt::format("{} is too long for a socket", place.path));
  }
  std::memcpy(address.sun_path, place.path.c_str(), place.path.size() + 1);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  place.made = ::bind(place.socket.get(), raw, sizeof address) == 0;
  if (place.made && ::listen(place.socket.get(), kBacklog) == 0) return {};
  return std::unexpected(errno_error(Code::Io, "cannot listen at " + place.path, errno));
}

}  // namespace

/// One connected process.
struct Channel::Connection {
  Connection(asio::io_context& loop, int fd, Sender who) : socket(loop, fd), sender(who) {}
  asio::posix::stream_descriptor socket;
  Sender sender;
  int refused = 0;
  bool heard = false;  // it has said something with a meaning
  bool waits = false;  // it has returned, and wants to hear that all have
  bool asks = false;   // for stacks

  /// The other end reads the end of the connection and goes; only then it is to be forgotten.
  void let_go() {
    if (waits) ::shutdown(socket.native_handle(), SHUT_WR);
  }
};

Channel::Channel(asio::io_context& loop, guardian::Agent& guardian, OnMessage on_message,
                 Workers workers)
    : loop_(loop),
      guardian_(guardian),
      listener_(loop),
      pause_(loop),
      on_message_(std::move(on_message)),
      workers_(std::move(workers)),
      most_(most_connections()) {}

Channel::~Channel() = default;

void Channel::open(MaybePlace place) {
  tried_ = true;
  if (const auto old = close()) {
    // The new one may have got its name, which it must not remove then.
    old->made = false;
    if (!old->own_folder.empty()) guardian_.forget(old->own_folder);
  }
  if (!place) return log::warning("channel", "Workers cannot report: {}", place.error().text);
  place_ = std::move(*place);
  if (!place_->own_folder.empty()) guardian_.remember(place_->own_folder);
  open_.emplace();
  listener_.assign(place_->socket.release());
  spare_ = open_spare();
  await_connection();
}

void Channel::look_in(const std::string& folder) {
  // A cleaner of temporary files may have removed the name: workers of the next start could not
  // connect.
  const bool gone = place_ && ChannelPlace::is_gone(place_->path);
  if (!tried_ || gone) open(ChannelPlace::find(folder));
}

std::unique_ptr<ChannelPlace> Channel::close() {
  open_.reset();
  connections_.clear();
  listener_.close();
  pause_.cancel();
  spare_.reset();
  return std::move(place_);
}

void Channel::end(files::BlockingCalls* far) {
  const auto place = close();
  if (!place) return;
  // The guardian removes the folder if that call is never made.
  const auto removed = [this, folder = place->own_folder](bool) {
    if (!folder.empty()) guardian_.forget(folder);
  };
  const auto removal = [remove = place->take_removal()] { return remove(), true; };
  far != nullptr ? far->make(place->path, removal, removed) : removed(removal());
}

void Channel::release() {
  for (Connection& one : connections_) one.let_go();
}
void Channel::release(pid_t process) {
  for (Connection& one : connections_) {
    if (one.sender.process == process) one.let_go();
  }
}
void Channel::answer(const std::string& text) {
  for (Connection& one : connections_) {
    if (!std::exchange(one.asks, false)) continue;
    // A file each, which has no size that a peer could keep us waiting for: of a shared one the
    // first reader would leave the others its end. A packet without a byte would read as the end of
    // the connection (recv(2)).
    if (const auto file = memory_file("elastrun-answer", text)) {
      send_with(one.socket.native_handle(), std::string_view("", 1), std::array{file->get()});
    }
    // By this the one that asked sees that nothing follows, and our wait on it that it is to be
    // forgotten.
    ::shutdown(one.socket.native_handle(), SHUT_RDWR);
  }
}
void Channel::catch_up() {
  if (place_) accept_all();
  for (Connection& one : connections_) read_packets(one, kPacketsToCatchUp);
}

void Channel::await_connection() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this, alive = open_->token()](const auto& error) {
                         if (error || !alive) return;
                         accept_all() ? await_connection() : await_descriptor();
                       });
}

/// Tried again at once it would fail again, and keep the loop busy.
void Channel::await_descriptor() {
  pause_.expires_after(kAcceptPause);
  pause_.async_wait([this, alive = open_->token()](const auto& error) {
    if (error || !alive) return;
    if (!spare_) spare_ = open_spare();
    await_connection();
  });
}

/// False without a descriptor left to take or to refuse one with.
bool Channel::accept_all() {
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    UniqueFd fd = accept_one();
    if (!fd && (errno == EMFILE || errno == ENFILE)) {
      if (!refuse_one()) return false;
      continue;
    }
    if (!fd) return errno != ENOBUFS && errno != ENOMEM;
    add(std::move(fd));
  }
  return true;
}

UniqueFd Channel::accept_one() {
  return UniqueFd(
      ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

/// In the place of the spare descriptor: who connects must not wait for an answer that never
/// comes.
bool Channel::refuse_one() {
  spare_.reset();
  const bool refused = static_cast<bool>(accept_one());
  spare_ = open_spare();
  if (refused) too_many();
  return refused && spare_;
}

void Channel::add(UniqueFd fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  // The kernel's word, of the moment of connect(2) (unix(7)): a process cannot claim another pid
  // or user.
  const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (known && connections_.size() >= most_) return too_many();
  if (!known || peer.uid != ::geteuid()) {
    ++statistics_.refused;
    return;
  }
  ++statistics_.connections;
  connections_.emplace_front(loop_, fd.release(), Sender{peer.pid});
  // Now, not with the first packet: short-lived children have often ended before that is read.
  find_worker(connections_.front().sender);
  await_packet(connections_.begin());
}

void Channel::too_many() {
  ++statistics_.refused;
  if (std::exchange(said_too_many_, true)) return;
  log::warning("channel",
               "No more processes of the workers can report: {} are connected, and at most {} may "
               "be, a quarter of the limit of open files (ulimit -Hn)",
               connections_.size(), most_);
}

void Channel::find_worker(Sender& sender) const {
  if (sender.worker == 0 && workers_.of) sender.worker = workers_.of(sender.process);
}

void Channel::await_packet(Connections::iterator one) {
  one->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, one, alive = open_->token()](const auto& error) {
                           if (error || !alive) return;
                           if (read_packets(*one, kPacketsAtOnce)) {
                             await_packet(one);
                           } else {
                             connections_.erase(one);
                           }
                         });
}

/// False when the sender has gone or is not to be heard any more.
bool Channel::read_packets(Connection& one, int most) {
  std::array<char, kMaxPacket> buffer;
  for (int i = 0; i < most; ++i) {
    // With MSG_TRUNC the true length comes back, so an oversized packet is seen as such.
    const auto got =
        ::recv(one.socket.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const auto size = static_cast<std::size_t>(got);
    auto message = size > buffer.size()
                       ? fail(Code::Protocol, "a message of a worker is longer than 16 KiB")
                       : parse_message({buffer.data(), size});
    if (!take(one, std::move(message))) return false;
  }
  return true;
}

/// A worker that is understood now and then is not cut off: the end of a timer may be on its way,
/// and without it a process that is well would be ended.
bool Channel::take(Connection& one, Result<Message> message) {
  if (message) {
    one.heard = one.heard || !(std::holds_alternative<SentFrom>(*message) ||
                               std::holds_alternative<NotTold>(*message));
    one.waits = one.waits || std::holds_alternative<Returned>(*message);
    one.asks = one.asks || std::holds_alternative<StacksAsked>(*message);
    hear(one.sender, std::move(*message));
    return true;
  }
  ++statistics_.refused;
  // Who has said it counts what was lost, and the log has the first one only.
  if (one.sender.worker != 0 && workers_.refused) workers_.refused(one.sender.worker);
  if (++one.refused == 1) limited_.add("Process {}: {}", one.sender.process, message.error().text);
  return one.heard || one.refused < kMaxRefused;
}

void Channel::hear(Sender& sender, Message message) {
  find_worker(sender);
  if (const auto* from = std::get_if<SentFrom>(&message)) {
    // Only where no living process could tell: a worker must not speak for another one.
    if (sender.worker == 0 && workers_.in) sender.worker = workers_.in(from->directory);
    return;
  }
  if (const auto* lost = std::get_if<NotTold>(&message)) {
    statistics_.not_told += std::min(lost->count, kMostNotTold);
    return;
  }
  ++statistics_.messages;
  const bool asks = std::holds_alternative<StacksAsked>(message);
  if (sender.worker == 0 && !asks) ++statistics_.strange;
  on_message_(sender, std::move(message));
}

bool ChannelPlace::is_gone(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return errno == ENOENT || errno == ENOTDIR;
  return !S_ISSOCK(info.st_mode);
}

// Not every file system can hold a socket, and not every path is short enough for one.
Channel::MaybePlace ChannelPlace::find(const std::string& folder) {
  auto place = std::make_unique<ChannelPlace>();
  place->path = folder + "/channel";
  const auto listens =
      folder.empty() ? fail(Code::Io, "no directory is left for a socket") : listen_at(*place);
  if (listens) return place;
  for (const auto& base : socket_places()) {
    auto other = std::make_unique<ChannelPlace>();
    if (other->make_folder(base + "/elastrun", "channel") && listen_at(*other)) return other;
  }
  return std::unexpected(listens.error());
}

}  // namespace elastrun::workers
