// SPDX-License-Identifier: Apache-2.0
#include "store/port_owner.hpp"

#include "core/read_file.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dirent.h>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
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

}  // namespace elastrun::store
