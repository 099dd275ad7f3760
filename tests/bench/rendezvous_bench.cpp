// SPDX-License-Identifier: Apache-2.0
// Rendezvous of thousands of simulated agents: how long until everybody has the round, over real
// loopback connections.
//   bench_rendezvous [--json] [--repeat N] [AGENTS...]     (3 times 1000 4000 12500)
// The coordinator runs in a process of its own, so that its processor time and memory are its own;
// the agents share this one, which takes its part of the clock. Of several repeats the quickest
// counts, as the one that was disturbed least. No limits are enforced: the targets stand beside the
// figures.
#include "bench/bare_sockets.hpp"
#include "core/json.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "net/dialer.hpp"
#include "net/link.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::bench;
using boost::asio::ip::tcp;

constexpr std::size_t kDescriptorsOfOurOwn = 64;

double seconds_since(TimePoint start) {
  return to_seconds(Duration(std::chrono::steady_clock::now() - start));
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (rlimit more{1 << 20, 1 << 20}; ::setrlimit(RLIMIT_NOFILE, &more) == 0) return more.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

Rules rules_for(int least, int most) {
  Rules rules;
  rules.min_nodes = least;
  rules.max_nodes = most;
  rules.max_restarts = 100;
  rules.last_call_timeout = std::chrono::seconds(0);
  return rules;
}

Node node(int index) {
  Node self;
  self.id = fmt::format("10.{}.{}.{}_4711_0", index >> 16, index >> 8 & 255, index & 255);
  self.instance = fmt::format("i{:011}", index);
  self.address = fmt::format("10.{}.{}.{}", index >> 16, index >> 8 & 255, index & 255);
  self.store_port = 40000;
  self.local_world_size = 8;
  return self;
}

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// The coordinator, in a child that dies with us.
class Remote {
 public:
  explicit Remote(int agents) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) run(agents, ends[1]);
    ::close(ends[1]);
    if (::read(ends[0], &port_, sizeof port_) != sizeof port_) std::abort();
    ::close(ends[0]);
  }
  ~Remote() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::uint16_t port() const { return port_; }

  /// Seconds of processor time so far.
  double cpu() const {
    clockid_t clock{};
    return ::clock_getcpuclockid(pid_, &clock) == 0 ? seconds_of(clock) : 0;
  }
  std::uint64_t peak_memory() const {
    std::ifstream file(fmt::format("/proc/{}/status", pid_));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
    }
    return 0;
  }

 private:
  [[noreturn]] static void run(int agents, int out) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    boost::asio::io_context loop(1);
    const auto clock = make_system_clock(loop.get_executor());
    CoordinatorSettings settings;
    settings.run_id = "bench";
    settings.rules = rules_for(agents - 1, agents);
    // Only a full turnout closes the first round; one fewer is enough once one is lost.
    settings.rules.last_call_timeout = std::chrono::seconds(600);
    auto host = Coordinator::open(loop, *clock, net::make_sealer("secret"), {}, settings);
    if (!host) std::abort();
    const std::uint16_t port = (*host)->port();
    if (::write(out, &port, sizeof port) != sizeof port) std::abort();
    loop.run();
    std::_Exit(0);
  }

  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

/// Many agents in one process: each a connection that joins, notes its round, and comes back when
/// it is told to.
class Crowd {
 public:
  Crowd(int size, std::uint16_t port)
      : clock_(make_system_clock(loop_.get_executor())),
        sealer_(net::make_sealer("secret")),
        links_(static_cast<std::size_t>(size)),
        past_(links_.size()),
        port_(port) {}
  ~Crowd() {
    for (auto& link : links_) {
      if (link) link->close();
    }
  }

  /// Connected and welcomed, all of them, but not joined.
  void connect() {
    for (std::size_t i = 0; i < links_.size(); ++i) open(i);
    wait([this] { return welcomed_ == links_.size(); });
  }
  /// All join, and have the round.
  void gather() {
    for (std::size_t i = 0; i < links_.size(); ++i) join(i);
    wait([this] { return seated_ == links_.size(); });
  }
  /// Connect and join; seconds until the last of them has the round.
  double meet() {
    const TimePoint start = clock_->now();
    joins_at_once_ = true;
    for (std::size_t i = 0; i < links_.size(); ++i) open(i);
    wait([this] { return seated_ == links_.size(); });
    return seconds_since(start);
  }
  /// One connection breaks; seconds until all others have been stopped and have a round again.
  double lose_one() {
    begin_stop();
    links_.back()->close();
    links_.back().reset();
    loop_.poll();
    const TimePoint start = clock_->now();
    wait([this] { return seated_ == links_.size() - 1; });
    return seconds_since(start);
  }
  /// One agent reports a failed worker; seconds after which each heard "stop", sorted.
  std::vector<double> fail_one() {
    begin_stop();
    returns_ = false;
    Failed failed{past_.front().id.round, {}};
    failed.cause.node = "culprit";
    failed.cause.exit_code = 1;
    start_ = clock_->now();
    links_.front()->send(encode(FromAgent(std::move(failed))));
    const auto alive = static_cast<std::size_t>(
        std::ranges::count_if(links_, [](const auto& link) { return link != nullptr; }));
    wait([&] { return stops_.size() == alive; });
    std::ranges::sort(stops_);
    return stops_;
  }

 private:
  void begin_stop() {
    seated_ = 0;
    stops_.clear();
    returns_ = true;
    start_ = clock_->now();
  }
  void open(std::size_t i) {
    tcp::socket socket(loop_);
    boost::system::error_code error;
    // 28,000 ports of one pair of addresses are not enough for several rounds in TIME_WAIT.
    socket.open(tcp::v4(), error);
    const auto from =
        boost::asio::ip::make_address_v4(static_cast<std::uint32_t>(0x7F000002 + i % 16));
    socket.bind({from, 0}, error);
    socket.connect({boost::asio::ip::address_v4::loopback(), port_}, error);
    if (error) {
      fmt::print(stderr, "agent {} cannot connect: {}\n", i, error.message());
      std::exit(1);
    }
    links_[i] = std::make_shared<net::Link>(std::move(socket), sealer_, net::Link::Side::Connector);
    links_[i]->frame_limit(16u << 20);
    net::Link::Handlers handlers;
    handlers.on_frame = [this, i](const std::string& payload) { hear(i, payload); };
    handlers.on_end = [i](const Error& lost) {
      fmt::print(stderr, "agent {} lost the coordinator: {}\n", i, lost.text);
      std::exit(1);
    };
    links_[i]->start(std::move(handlers));
    links_[i]->send(encode(FromAgent(Hello{"bench"})));
    if (i % 64 == 63) loop_.poll();
  }
  void join(std::size_t i) {
    Join join{node(static_cast<int>(i)), past_[i],
              rules_for(static_cast<int>(links_.size()) - 1, static_cast<int>(links_.size()))};
    links_[i]->send(encode(FromAgent(std::move(join))));
  }
  // Reading a message fully is the agents' work, of which each has a machine of its own.
  void hear(std::size_t i, const std::string& payload) {
    if (payload.starts_with(R"({"type":"round")")) {
      const auto number = payload.find(R"("number":)");
      past_[i].id.round = std::strtoll(payload.c_str() + number + 9, nullptr, 10);
      if (past_[i].id.round == 0) std::abort();
      past_[i].nodes = static_cast<int>(links_.size());
      ++seated_;
    } else if (payload.starts_with(R"({"type":"restart")")) {
      stops_.push_back(seconds_since(start_));
      if (returns_) join(i);
    } else if (payload.starts_with(R"({"type":"welcome")")) {
      ++welcomed_;
      if (joins_at_once_) join(i);
    }
  }
  template <class Until>
  void wait(Until until) {
    while (!until()) loop_.run_one();
  }

  boost::asio::io_context loop_{1};
  const std::unique_ptr<Clock> clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  std::vector<std::shared_ptr<net::Link>> links_;
  std::vector<PreviousWorld> past_;
  const std::uint16_t port_;
  bool joins_at_once_ = false, returns_ = true;
  std::size_t welcomed_ = 0, seated_ = 0;
  TimePoint start_;
  std::vector<double> stops_;
};

/// The quickest of several repeats of everything, in seconds.
struct Measured {
  double floor = 0, meeting = 0, loss = 0, stop_p99 = 0, whole_coordinator = 0, whole = 0;
  std::uint64_t memory = 0;
};

void keep_quickest(double& best, double one) {
  if (best == 0 || one < best) best = one;
}

void measure(int agents, Measured& best) {
  keep_quickest(best.floor, bare_sockets(agents, [] { return seconds_of(CLOCK_MONOTONIC); }));
  {
    const Remote remote(agents);
    Crowd crowd(agents, remote.port());
    keep_quickest(best.meeting, crowd.meet());
    keep_quickest(best.loss, crowd.lose_one());
  }
  const Remote remote(agents);
  const TimePoint start = std::chrono::steady_clock::now();
  Crowd crowd(agents, remote.port());
  crowd.connect();
  crowd.gather();
  const auto stops = crowd.fail_one();
  keep_quickest(best.stop_p99, stops[stops.size() * 99 / 100]);
  best.whole = seconds_since(start);
  best.whole_coordinator = remote.cpu();
  best.memory = std::max(best.memory, remote.peak_memory());
}

struct Figure {
  std::string name;
  int agents = 0;
  double value = 0;
  std::string unit = "ms";
  double target = 0;  // at most; 0: none
};

/// Collects the figures; shows them at once, or all as JSON at the end.
class Table {
 public:
  explicit Table(bool json) : json_(json) {}
  void add(const Figure& figure) {
    if (json_) {
      json::object row{{"name", figure.name},
                       {"agents", figure.agents},
                       {"value", figure.value},
                       {"unit", figure.unit}};
      if (figure.target > 0) row["target"] = figure.target;
      list_.emplace_back(std::move(row));
      return;
    }
    fmt::print("{:>6} agents  {:<56} {:>9.1f} {:<5}{}\n", figure.agents, figure.name, figure.value,
               figure.unit, figure.target > 0 ? fmt::format("target {}", figure.target) : "");
    std::fflush(stdout);
  }
  ~Table() {
    if (json_) fmt::print("{}\n", json::serialize(list_));
  }

 private:
  const bool json_;
  json::array list_;
};

void show(Table& table, int agents, const Measured& best) {
  const double round = agents <= 1000 ? 250 : agents <= 4000 ? 1000 : 3000;
  const bool middle = agents == 4000;
  table.add({"floor: as many bare connections, a message each way", agents, best.floor * 1e3});
  table.add({"connect, join, all have the round", agents, best.meeting * 1e3, "ms", round});
  table.add({"one lost, all others have the next round", agents, best.loss * 1e3, "ms",
             middle ? 500.0 : 0.0});
  table.add(
      {"one fails: stop heard by 99 %", agents, best.stop_p99 * 1e3, "ms", middle ? 100.0 : 0.0});
  table.add({"coordinator's share of one core", agents, best.whole_coordinator / best.whole * 100,
             "%", 100});
  table.add(
      {"coordinator's peak memory", agents, static_cast<double>(best.memory) / 1e6, "MB", 200});
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t descriptors = raise_descriptor_limit();
  std::vector<int> sizes;
  int repeats = 3;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--repeat" && i + 1 < argc) {
      repeats = std::max(std::atoi(argv[++i]), 1);
    } else {
      sizes.push_back(std::atoi(argv[i]));
    }
  }
  if (sizes.empty()) sizes = {1000, 4000, 12500};
  Table table(json);
  for (const int size : sizes) {
    if (static_cast<std::size_t>(size) + kDescriptorsOfOurOwn > descriptors) {
      fmt::print(stderr, "{} agents: left out, this process may have {} descriptors (ulimit -n)\n",
                 size, descriptors);
      continue;
    }
    Measured best;
    for (int i = 0; i < repeats; ++i) measure(size, best);
    show(table, size, best);
  }
}
