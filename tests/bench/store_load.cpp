// SPDX-License-Identifier: Apache-2.0
// Load on one TCPStore server: CONNECTIONS raw connections that speak the current protocol, each
// with one request in flight (closed loop). One JSON object a line: connects, each operation.
// Server CPU is read from /proc/PID/task/*/schedstat, in nanoseconds.
//
//   bench_store_load PORT PID [CONNECTIONS [REQUESTS]]
//
// Uses nothing of lib, so that client and server cannot agree on a mistake.
#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <netinet/tcp.h>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

using Bench = std::chrono::steady_clock;

double microseconds(Bench::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::string text(const std::string& bytes) {
  const std::uint64_t size = bytes.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + bytes;
}
template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

double cpu_us(int pid) {
  double total = 0;
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    double ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    total += ns / 1e3;
  }
  return total;
}

void send_all(int fd, const std::string& bytes) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    die("send");
}
std::size_t receive_some(int fd, std::size_t at_most) {
  char buffer[4096];
  const auto size = ::recv(fd, buffer, std::min(at_most, sizeof buffer), 0);
  if (size <= 0) die("the server closed a connection");
  return static_cast<std::size_t>(size);
}
void receive_all(int fd, std::size_t size) {
  while (size > 0) size -= receive_some(fd, size);
}

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    die("connect");
  return fd;
}

struct Load {
  std::uint16_t port;
  int pid;
  std::vector<int> fds;
  const std::string value = text(std::string(32, 'v'));
  const std::string ping = "\x0d" + std::string("abcd");

  void connect(std::size_t count);
  void measure(const char* name, std::size_t total, std::size_t answer,
               const std::function<std::string(std::size_t)>& request);
};

void Load::connect(std::size_t count) {
  const auto start = Bench::now();
  const std::string opening = std::string("\0\xCE\xF7\x85\x3C", 5) + ping;
  for (std::size_t i = 0; i < count; ++i) {
    fds.push_back(connect_to(port));
    send_all(fds.back(), opening);
    receive_all(fds.back(), 4);
  }
  const double us = microseconds(Bench::now() - start);
  std::printf("{\"op\": \"connect\", \"connections\": %zu, \"connect_per_s\": %.0f}\n", count,
              static_cast<double>(count) / us * 1e6);
}

void Load::measure(const char* name, std::size_t total, std::size_t answer,
                   const std::function<std::string(std::size_t)>& request) {
  const int set = ::epoll_create1(0);
  struct Flight {
    Bench::time_point since;
    std::size_t missing = 0;
  };
  std::vector<Flight> flights(fds.size());
  std::vector<double> latencies;
  latencies.reserve(total);
  std::size_t sent = 0;
  const auto send_next = [&](std::size_t i) {
    const auto bytes = request(sent++);
    flights[i] = {Bench::now(), answer};
    send_all(fds[i], bytes);
  };
  for (std::size_t i = 0; i < fds.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event);
  }
  const double cpu = cpu_us(pid);
  const auto start = Bench::now();
  for (std::size_t i = 0; i < fds.size() && sent < total; ++i) send_next(i);
  std::vector<epoll_event> events(512);
  while (latencies.size() < total) {
    const int count = ::epoll_wait(set, events.data(), static_cast<int>(events.size()), 10'000);
    if (count <= 0) die("no answer for ten seconds");
    for (int e = 0; e < count; ++e) {
      const auto i = static_cast<std::size_t>(events[static_cast<std::size_t>(e)].data.u64);
      flights[i].missing -= receive_some(fds[i], flights[i].missing);
      if (flights[i].missing > 0) continue;
      latencies.push_back(microseconds(Bench::now() - flights[i].since));
      if (sent < total) send_next(i);
    }
  }
  const double us = microseconds(Bench::now() - start);
  ::close(set);
  std::sort(latencies.begin(), latencies.end());
  const auto n = static_cast<double>(total);
  std::printf(
      "{\"op\": \"%s\", \"connections\": %zu, \"ops_per_s\": %.0f, \"p50_us\": %.0f, \"p99_us\": "
      "%.0f, \"server_us_per_op\": %.3f}\n",
      name, fds.size(), n / us * 1e6, latencies[total / 2], latencies[total * 99 / 100],
      (cpu_us(pid) - cpu) / n);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_store_load PORT PID [CONNECTIONS [REQUESTS]]\n");
    return 2;
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const auto connections = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 1000;
  const auto requests = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 100'000;
  Load load{static_cast<std::uint16_t>(std::atoi(argv[1])), std::atoi(argv[2]), {}};
  load.connect(connections);
  const auto key = [](std::size_t i) { return text("/k" + std::to_string(i % 1000)); };
  for (std::size_t i = 0; i < 1000; ++i) send_all(load.fds[0], "\x01" + key(i) + load.value);
  send_all(load.fds[0], load.ping);
  receive_all(load.fds[0], 4);
  // SET has no answer, so a PING follows it in the same segment.
  load.measure("set", requests, 4,
               [&](std::size_t i) { return "\x01" + key(i) + load.value + load.ping; });
  load.measure("get", requests, 40, [&](std::size_t i) { return "\x03" + key(i); });
  load.measure("add", requests, 8, [](std::size_t i) {
    return "\x04" + text("/c" + std::to_string(i % 64)) + number<std::int64_t>(1);
  });
  load.measure("wait", requests, 1,
               [&](std::size_t i) { return "\x06" + number<std::uint64_t>(1) + key(i); });
  return 0;
}
