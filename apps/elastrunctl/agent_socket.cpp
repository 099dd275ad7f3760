// SPDX-License-Identifier: Apache-2.0
#include "agent_socket.hpp"

#include "text_table.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace elastrun::ctl {
namespace {

Result<UniqueFd> connect_to(const std::string& channel) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // 108 bytes with the final zero (unix(7)).
  if (channel.size() >= sizeof address.sun_path) {
    return fail(Code::Io, fmt::format("{} is too long for a socket", channel));
  }
  std::memcpy(address.sun_path, channel.c_str(), channel.size() + 1);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!socket || ::connect(socket.get(), raw, sizeof address) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot reach the agent at " + channel, errno));
  }
  return socket;
}

}  // namespace

Result<UniqueFd> ask_agent(const runs::RunEntry& run, std::string_view question) {
  if (run.channel.empty() || run.workers.empty()) {
    return fail(Code::Rendezvous, fmt::format("no worker of the job \"{}\" runs here: it is {}",
                                              shown(run.name), run.phase));
  }
  auto socket = connect_to(run.channel);
  if (socket && ::send(socket->get(), question.data(), question.size(), MSG_NOSIGNAL) < 0) {
    return std::unexpected(errno_error(Code::Io, "cannot ask the agent", errno));
  }
  return socket;
}

}  // namespace elastrun::ctl
