// SPDX-License-Identifier: Apache-2.0
// What a packet of a worker costs the agent, from the socket to a sink, in CPU time of the agent's
// thread; what an event of goodput costs the worker; and how many packets are lost of a worker that
// sends 20,000 a second and never waits. JSON.
#include "agent/telemetry/worker_records.hpp"
#include "core/system_clock.hpp"
#include "worker/elastrun.hpp"
#include "workers/channel.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace elastrun;

namespace {

constexpr int kPackets = 200'000, kRounds = 5;
constexpr std::string_view kStep = R"({"kind":"step","step":120})";
constexpr std::string_view kMetric =
    R"({"kind":"metric","name":"loss","value":0.25,"group":"model"})";

struct Counting final : telemetry::Sink {
  void consume(const telemetry::Record&) override { ++records; }
  std::uint64_t records = 0;
};

double thread_nanoseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

int connect_to(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ::_exit(1);
  return fd;
}

double best_event() {
  constexpr int kEvents = 1000;
  double best = 1e9;
  for (int round = 0; round < 20 * kRounds; ++round) {
    const double begin = thread_nanoseconds();
    for (int i = 0; i < kEvents; ++i) worker::record_event(worker::Event::StartStep, i);
    best = std::min(best, (thread_nanoseconds() - begin) / kEvents);
    worker::Recorder::instance().flush();
  }
  return best;
}

/// An agent's end: loop, channel, records and a sink.
struct Listening {
  boost::asio::io_context loop{1};
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  telemetry::Pipeline pipeline{*clock};
  spec::JobSpec spec;
  workers::SharedPages pages{spec};
  agent::WorkerRecords records{pipeline, spec, pages};
  std::shared_ptr<Counting> sink = std::make_shared<Counting>();
  workers::Worker worker;
  std::uint64_t heard = 0;
  bool ended = false;
  guardian::Agent nobody;
  std::unique_ptr<workers::Channel> channel;

  Listening() {
    pipeline.route({}, sink);
    const auto on_message = [this](workers::Channel::Sender, auto message) {
      ended = ended || std::holds_alternative<workers::Returned>(message);
      ++heard;
      records.heard(worker, std::move(message));
    };
    workers::Channel::Workers all{
        [](pid_t process) { return process; }, [](const std::string&) { return pid_t{0}; }, {}};
    channel = std::make_unique<workers::Channel>(loop, nobody, on_message, std::move(all));
    channel->look_in("");
    if (channel->path().empty()) std::abort();
  }
  /// CPU time of a packet, all of which a process sends as fast as it can.
  double per_packet(std::string_view packet) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int fd = connect_to(channel->path());
      for (int i = 0; i < kPackets; ++i) ::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
      ::_exit(0);
    }
    heard = 0;
    const double begin = thread_nanoseconds();
    while (heard < kPackets) loop.run_one();
    const double took = thread_nanoseconds() - begin;
    ::waitpid(child, nullptr, 0);
    return took / kPackets;
  }
  /// CPU time of a worker's thread for an event of goodput that the agent hears in time.
  double per_event() {
    int answer[2];
    if (::pipe2(answer, O_CLOEXEC) != 0) std::abort();
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("ELASTRUN_CHANNEL", channel->path().c_str(), 1);
      const double best = best_event();
      const bool told = ::write(answer[1], &best, sizeof best) == sizeof best;
      ::_exit(told ? 0 : 1);
    }
    pollfd told_it{answer[0], POLLIN, 0};
    while (::poll(&told_it, 1, 0) == 0) loop.run_for(std::chrono::milliseconds(1));
    double best = 0;
    if (::read(answer[0], &best, sizeof best) != sizeof best) std::abort();
    ::waitpid(child, nullptr, 0);
    for (const int fd : answer) ::close(fd);
    return best;
  }
  /// How many packets a process could not send that sends so many a second for two seconds.
  std::uint64_t lost_at(int rate) {
    constexpr auto kPause = std::chrono::milliseconds(1);
    const int total = 2 * rate, at_once = rate / 1000;
    const pid_t child = ::fork();
    if (child == 0) {
      const int fd = connect_to(channel->path());
      auto next = std::chrono::steady_clock::now();
      for (int i = 0; i < total; ++i) {
        ::send(fd, kMetric.data(), kMetric.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (i % at_once == 0) std::this_thread::sleep_until(next += kPause);
      }
      constexpr std::string_view kEnd = R"({"kind":"returned"})";
      ::send(fd, kEnd.data(), kEnd.size(), MSG_NOSIGNAL);
      ::_exit(0);
    }
    heard = 0;
    ended = false;
    while (!ended) loop.run_one();
    ::waitpid(child, nullptr, 0);
    return static_cast<std::uint64_t>(total) + 1 - heard;
  }
};

}  // namespace

int main() {
  Listening listening;
  double step = 1e9, metric = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    step = std::min(step, listening.per_packet(kStep));
    metric = std::min(metric, listening.per_packet(kMetric));
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));  // the limit of samples fills up again
  const auto suppressed = listening.records.statistics().suppressed;
  const auto lost = listening.lost_at(20'000);
  const double event = listening.per_event();
  fmt::print(
      "{{\"channel_step\": {:.2f}, \"channel_metric\": {:.2f}, \"record_event\": {:.2f}, "
      "\"channel_lost_20000\": {}}}\n",
      step, metric, event, lost + listening.records.statistics().suppressed - suppressed);
}
