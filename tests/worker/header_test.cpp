// SPDX-License-Identifier: Apache-2.0
// The header for C++ workers against a socket that the test listens on.
#include "worker/elastrun.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <limits>
#include <map>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

// The channel is looked up once per process, so each script runs in a child with its own variable.
template <class Script>
int in_worker(const std::string& channel, Script script) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("ELASTRUN_CHANNEL", channel.c_str(), 1);
    ::_exit(script());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

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
  // The packets of the next connection; its sender has ended.
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

}  // namespace

using namespace elastrun;

TEST_CASE("worker header: each call is one packet of JSON") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    worker::step(7);
    worker::checkpoint_done(5);
    worker::metric("loss", 0.5);
    worker::metric("bad", std::numeric_limits<double>::quiet_NaN(), "opt");
    worker::event("epoch", {{"name", "a\"b\n"}, {"number", "3"}});
    worker::event("plain");
    { const worker::Phase eval("eval"); }
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 0);
  CHECK(listener.packets() ==
        std::vector<std::string>{
            R"({"kind":"step","step":7})", R"({"kind":"checkpoint","step":5})",
            R"({"kind":"metric","name":"loss","value":0.5,"group":"worker"})",
            R"({"kind":"metric","name":"bad","value":"nan","group":"opt"})",
            R"({"kind":"event","name":"epoch","attributes":{"name":"a\"b\u000a","number":"3"}})",
            R"({"kind":"event","name":"plain","attributes":{}})",
            R"({"kind":"phase","phase":"eval"})", R"({"kind":"phase","phase":"train"})"});
}

namespace {

// What is armed after each packet, by id: the seconds that were asked for.
std::vector<std::map<std::string, std::string>> armed_after_each(
    const std::vector<std::string>& packets) {
  std::vector<std::map<std::string, std::string>> all;
  std::map<std::string, std::string> armed;
  for (const auto& packet : packets) {
    const auto part = [&](const std::string& name) {
      const auto at = packet.find('"' + name + "\":") + name.size() + 3;
      return packet.substr(at, packet.find_first_of(",}", at) - at);
    };
    if (packet.find("\"deadline\":") == std::string::npos) {
      armed.erase(part("id"));
    } else {
      armed[part("id")] = part("after");
    }
    all.push_back(armed);
  }
  return all;
}

void recurse(int depth) {
  const worker::Expires timer(depth);
  if (depth > 1) recurse(depth - 1);
}

}  // namespace

TEST_CASE("worker header: a timer is two packets, its scope is where it was made") {
  const Listener listener;
  in_worker(listener.path, [] {
    const worker::Expires timer(60, {}, SIGTERM);
    return 0;
  });
  const auto packets = listener.packets();
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].find("header_test.cpp#") != std::string::npos);
  CHECK(packets[0].find(R"(,"after":60,"signal":15})") != std::string::npos);
  CHECK(packets[1] == packets[0].substr(0, packets[0].find(",\"deadline\"")) + "}");
}

TEST_CASE("worker header: timers inside each other are separate, recursion arms one again") {
  using Armed = std::map<std::string, std::string>;
  const Listener listener;
  in_worker(listener.path, [] {
    const worker::Expires outer(60);
    const worker::Expires inner(2);
    return 0;
  });
  CHECK(armed_after_each(listener.packets()) ==
        std::vector<Armed>{{{"1", "60"}}, {{"1", "60"}, {"2", "2"}}, {{"1", "60"}}, {}});
  in_worker(listener.path, [] {
    recurse(2);
    return 0;
  });
  CHECK(armed_after_each(listener.packets()) == std::vector<Armed>{{{"1", "2"}},
                                                                   {{"1", "2"}, {"2", "1"}},
                                                                   {{"2", "1"}},
                                                                   {{"1", "2"}, {"2", "1"}},
                                                                   {{"1", "2"}},
                                                                   {}});
}

TEST_CASE("worker header: the end of a timer is not lost while the agent is behind") {
  const Listener listener;
  std::thread reader;
  const int dropped = in_worker(listener.path, [&]() -> int {
    {
      const worker::Expires timer(60);
      while (worker::dropped() == 0) worker::step(1);
      reader = std::thread([&] { (void)listener.packets(); });
    }
    const auto count = static_cast<int>(worker::dropped());
    ::_exit(count);  // not waiting for the reader
  });
  CHECK(dropped == 1);
}

TEST_CASE("worker header: an absent agent costs nothing but the count") {
  const int dropped = in_worker("/nonexistent/channel", [] {
    for (int i = 0; i < 9; ++i) worker::step(i);
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 9);
  CHECK(in_worker("", [] {
          worker::step(1);
          return static_cast<int>(worker::dropped());
        }) == 0);
}

TEST_CASE("worker header: an agent that does not read is not waited for") {
  const Listener listener;
  const int some_dropped = in_worker(listener.path, [] {
    for (int i = 0; i < 20000; ++i) worker::step(i);
    return worker::dropped() > 0 && worker::dropped() < 20000 ? 1 : 0;
  });
  CHECK(some_dropped == 1);
  CHECK(listener.packets().front() == R"({"kind":"step","step":0})");
}

TEST_CASE("worker header: a child forked while another thread reports can report, too") {
  const int failed = in_worker("/nonexistent/channel", [] {
    std::atomic<bool> go_on{true};
    std::thread other([&go_on] {
      while (go_on) worker::step(1);
    });
    int stuck = 0;
    for (int i = 0; i < 300 && stuck == 0; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);  // what cannot go on ends by it
        worker::step(2);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      stuck += status != 0;
    }
    go_on = false;
    other.join();
    return stuck;
  });
  CHECK(failed == 0);
}

TEST_CASE("worker header: packets of several threads all arrive, each whole") {
  const Listener listener;
  const int dropped = in_worker(listener.path, [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([i] {
        for (int j = 0; j < 2; ++j) worker::step(i * 10 + j);
      });
    }
    for (auto& thread : threads) thread.join();
    return static_cast<int>(worker::dropped());
  });
  CHECK(dropped == 0);
  auto packets = listener.packets();
  std::sort(packets.begin(), packets.end());
  std::vector<std::string> wanted;
  for (const char* number : {"0", "1", "10", "11", "20", "21", "30", "31"}) {
    wanted.push_back(R"({"kind":"step","step":)" + std::string(number) + "}");
  }
  std::sort(wanted.begin(), wanted.end());
  CHECK(packets == wanted);
}

TEST_CASE("worker header: a forked child gets a connection of its own") {
  const Listener listener;
  in_worker(listener.path, [] {
    worker::step(1);
    const pid_t child = ::fork();
    worker::step(child == 0 ? 3 : 2);
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return 0;
  });
  CHECK(listener.packets().size() == 2);
  CHECK(listener.packets() == std::vector<std::string>{R"({"kind":"step","step":3})"});
}
