// SPDX-License-Identifier: Apache-2.0

#include "store/listening.hpp"

#include "core/file_io.hpp"
#include "net/endpoint.hpp"
#include "net/listener.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <set>
#include <sstream>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>

namespace elastrun::store {
namespace {

constexpr int kMaxDescriptors = 200'000;  // looked at in all processes together

/// Inodes of the sockets that listen on the port, from one table of proc(5).
void read_listeners(const char* path, std::uint16_t port, std::set<std::string>& inodes) {
  std::ifstream file(path);
  const std::string wanted = fmt::format(":{:04X}", port);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    // 0A is TCP_LISTEN.
    if (state == "0A" && local.ends_with(wanted)) inodes.insert("socket:[" + inode + "]");
  }
}

using Directory = std::unique_ptr<DIR, decltype([](DIR* directory) { ::closedir(directory); })>;

bool holds(const std::string& process, const std::set<std::string>& sockets, int& looked_at) {
  const std::string folder = "/proc/" + process + "/fd";
  const Directory directory(::opendir(folder.c_str()));
  // Of another user: as a rule we may not look.
  if (!directory) return false;
  while (const dirent* entry = ::readdir(directory.get())) {
    // All this is for the text of an error, which must not take seconds on a large machine.
    if (++looked_at > kMaxDescriptors) return false;
    std::array<char, 64> target{};
    const auto size =
        ::readlinkat(::dirfd(directory.get()), entry->d_name, target.data(), target.size());
    if (size <= 0) continue;
    if (sockets.contains({target.data(), static_cast<std::size_t>(size)})) return true;
  }
  return false;
}

std::string command_of(const std::string& process) {
  auto command = read_kernel_file("/proc/" + process + "/cmdline");
  std::replace(command.begin(), command.end(), '\0', ' ');
  while (command.ends_with(' ')) command.pop_back();
  return command.size() > 80 ? command.substr(0, 77) + "..." : command;
}

}  // namespace

std::string find_port_owner(std::uint16_t port) {
  std::set<std::string> sockets;
  read_listeners("/proc/net/tcp", port, sockets);
  read_listeners("/proc/net/tcp6", port, sockets);
  if (sockets.empty()) return {};
  const Directory processes(::opendir("/proc"));
  if (!processes) return {};
  int looked_at = 0;
  while (const dirent* entry = ::readdir(processes.get())) {
    const std::string process = entry->d_name;
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!holds(process, sockets, looked_at)) continue;
    return fmt::format("process {} ({})", process, command_of(process));
  }
  return {};
}

namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;
namespace ip = boost::asio::ip;

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

}  // namespace

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

}  // namespace elastrun::store
