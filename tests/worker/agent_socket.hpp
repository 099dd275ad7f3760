// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::test {
/// The channel is looked up once per process, so each script runs in a child with its own variable.
template <class Script>
int in_worker(const std::string& channel, Script script) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("ELASTRUN_CHANNEL", channel.c_str(), 1);
    if constexpr (std::is_void_v<decltype(script())>) {
      script();
      ::_exit(0);
    } else {
      ::_exit(script());
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The agent's side, which the test reads.
struct Listener {
  std::filesystem::path folder = [] {
    std::string name = (std::filesystem::temp_directory_path() / "worker_XXXXXX").string();
    return std::string(::mkdtemp(name.data()));
  }();
  std::string path = folder / "channel";
  int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

  Listener() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd, 8) == 0);
  }
  ~Listener() {
    ::close(fd);
    std::filesystem::remove_all(folder);
  }
  /// The packets of the next connection; its sender has ended.
  std::vector<std::string> packets() const {
    std::vector<std::string> found;
    const int connection = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    std::string buffer(65536, '\0');
    while (connection >= 0) {
      const auto size = ::recv(connection, buffer.data(), buffer.size(), 0);
      if (size <= 0) break;
      found.push_back(buffer.substr(0, static_cast<std::size_t>(size)));
    }
    if (connection >= 0) ::close(connection);
    return found;
  }
};

/// Runs the script as a worker and returns the packets that its agent hears.
template <class Script>
std::vector<std::string> packets_of(Script script) {
  const Listener listener;
  in_worker(listener.path, std::move(script));
  return listener.packets();
}

}  // namespace elastrun::test
