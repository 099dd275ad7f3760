// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/free_port.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

/// A real etcd of one or more members on free loopback ports, gone with the test.
namespace elastrun::rendezvous::test {

inline bool has_etcd() {
  const int found = std::system("command -v etcd >/dev/null 2>&1");
  if (found != 0) MESSAGE("skipped: no etcd in PATH (Debian: etcd-server)");
  return found == 0;
}

class EtcdServer {
 public:
  explicit EtcdServer(int members = 1) {
    std::string pattern = (std::filesystem::temp_directory_path() / "etcd.XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    for (int i = 0; i < members; ++i)
      members_.push_back({elastrun::test::free_port(), elastrun::test::free_port(), 0});
    for (int i = 0; i < members; ++i) start(i);
  }
  ~EtcdServer() {
    for (std::size_t i = 0; i < members_.size(); ++i) kill(static_cast<int>(i));
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  void start(int member) {
    const std::string name = "m" + std::to_string(member);
    std::string cluster;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      cluster += (i == 0 ? "m" : ",m") + std::to_string(i) + "=" + url(members_[i].peer_port);
    }
    Member& self = members_[static_cast<std::size_t>(member)];
    std::vector<std::string> words{"etcd",
                                   "--name",
                                   name,
                                   "--data-dir",
                                   folder_ + "/" + name,
                                   "--listen-client-urls",
                                   url(self.port),
                                   "--advertise-client-urls",
                                   url(self.port),
                                   "--listen-peer-urls",
                                   url(self.peer_port),
                                   "--initial-advertise-peer-urls",
                                   url(self.peer_port),
                                   "--initial-cluster",
                                   cluster,
                                   "--heartbeat-interval",
                                   "50",
                                   "--election-timeout",
                                   "500",
                                   "--log-level",
                                   "error"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    const std::string log = folder_ + "/" + name + ".log";
    ::posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_adddup2(&files, 1, 2);
    // It must not inherit sockets of ours: who listens there would never seem to go.
    ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
    REQUIRE(::posix_spawnp(&self.pid, "etcd", &files, nullptr, argv.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&files);
  }
  void kill(int member) {
    pid_t& pid = members_[static_cast<std::size_t>(member)].pid;
    if (pid == 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }
  /// "127.0.0.1:P,127.0.0.1:Q": as --rdzv-endpoint takes it.
  /// It takes connections from now on, and answers nothing. Until `kill`.
  void freeze(int member) { ::kill(members_[static_cast<std::size_t>(member)].pid, SIGSTOP); }

  std::string endpoints() const {
    std::string text;
    for (const Member& member : members_) {
      text += (text.empty() ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(member.port);
    }
    return text;
  }

 private:
  struct Member {
    std::uint16_t port, peer_port;
    pid_t pid;
  };
  static std::string url(std::uint16_t port) { return "http://127.0.0.1:" + std::to_string(port); }

  std::string folder_;
  std::vector<Member> members_;
};

}  // namespace elastrun::rendezvous::test
