// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "support/fake_clock.hpp"
#include "timer/api.hpp"

#include <doctest/doctest.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

struct Passes final : LocalTimerServer {
  using LocalTimerServer::LocalTimerServer;
  int passes = 0;
  std::vector<std::int64_t> tried;
  bool real = true;
  void register_timers(const std::vector<TimerRequest>& requests) override {
    ++passes;
    LocalTimerServer::register_timers(requests);
  }
  bool reap_worker(std::int64_t worker) override {
    tried.push_back(worker);
    if (real) return LocalTimerServer::reap_worker(worker);
    if (worker == 1) throw std::runtime_error("thrown on purpose");
    return worker == 2;
  }
};

pid_t forked(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  ::_exit(0);
}

int end_of(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("local timer: V5, a worker that does not release its timer is killed") {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server(queue, clock, 60s);
  const double expiration = to_seconds(clock.wall()) + 0.1;
  const pid_t child = forked([&] {
    LocalTimerClient(queue).acquire("a", expiration);
    while (true) ::pause();
  });
  queue.put(queue.get(1, 1h).at(0));  // it has come
  server.run_watchdog();
  CHECK(server.timers() == 1);
  clock.advance(200ms);
  server.run_watchdog();
  CHECK(WTERMSIG(end_of(child)) == SIGKILL);
  CHECK(server.timers() == 0);
}

TEST_CASE("local timer: a release in time spares the worker, recursion arms again") {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server(queue, clock, 60s);
  LocalTimerClient client(queue);
  const double wall = to_seconds(clock.wall());
  client.acquire("a", wall + 1);
  client.acquire("a", wall + 3);
  server.run_watchdog();
  CHECK(server.timers() == 1);
  clock.advance(2s);
  server.run_watchdog();
  CHECK(server.tried.empty());
  client.release("a");
  client.release("a");
  clock.advance(1h);
  server.run_watchdog();
  CHECK(server.tried.empty());
}

TEST_CASE("local timer: V10, a pass each interval") {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server(queue, clock, 10ms);
  server.start();
  clock.advance(100ms);
  CHECK(server.passes == 10);
  server.stop();
  clock.advance(1h);
  CHECK(server.passes == 10);
}

TEST_CASE("local timer: V14, who cannot be reaped keeps its timers until the next pass") {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server(queue, clock, 60s);
  server.real = false;
  for (const int worker : {1, 2, 3}) queue.put({worker, "a", 1});
  server.run_watchdog();
  CHECK(server.tried == std::vector<std::int64_t>{1, 2, 3});
  CHECK(server.timers() == 1);
  server.run_watchdog();
  CHECK(server.tried.back() == 3);
  CHECK(server.tried.size() == 4);
}

TEST_CASE("local timer: V15, a queue gives what has come by its timeout, and no more than asked") {
  LocalQueue queue;
  CHECK(queue.get(10, 1ms).empty());
  for (int i = 0; i < 5; ++i) CHECK(queue.put({i, "s", 1.5}));
  CHECK(queue.size() == 5);
  CHECK(queue.get(2, 0s) == std::vector<TimerRequest>{{0, "s", 1.5}, {1, "s", 1.5}});
  CHECK(queue.size() == 3);
  const pid_t child = forked([&] { queue.put({5, "late", -1}); });
  const auto rest = queue.get(4, 1h);  // not the timeout, but their number ends it
  CHECK(rest.size() == 4);
  CHECK(rest.back().scope_id == "late");
  CHECK(end_of(child) == 0);
}

TEST_CASE("local timer: a worker id that is no pid signals nobody") {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server(queue, clock, 60s);
  for (const std::int64_t worker : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    queue.put({worker, "a", 1});
  }
  server.run_watchdog();
  CHECK(server.timers() == 0);
}
