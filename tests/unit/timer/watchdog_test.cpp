// SPDX-License-Identifier: Apache-2.0
#include "timer/watchdog.hpp"

#include "support/fake_clock.hpp"
#include "support/loop.hpp"

#include <doctest/doctest.h>
#include <optional>
#include <set>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

/// A process that waits to be ended.
struct Hung {
  pid_t pid = ::fork();
  bool reaped = false;
  Hung() {
    if (pid != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  Hung(const Hung&) = delete;
  Hung& operator=(const Hung&) = delete;
  ~Hung() {
    if (!reaped) end();
  }
  int end() {
    ::kill(pid, SIGKILL);
    return status();
  }
  int status() {
    int status = -1;
    ::waitpid(pid, &status, 0);
    reaped = true;
    return status;
  }
};

struct Watched : Watchdog::Owner {
  boost::asio::io_context loop;
  test::FakeClock clock;
  std::set<pid_t> ours;
  std::vector<ExpiredWorker> ended;
  std::optional<Request> waiting;  // to be read
  Watchdog watchdog{loop, clock, *this};
  Hung hung;  // it is ours

  Watched() { adopt(hung); }
  bool is_ours(pid_t pid) const override { return ours.contains(pid); }
  void read_waiting() override {
    if (waiting) watchdog.request(*waiting);
  }
  void expired(std::vector<ExpiredWorker> workers) override {
    for (auto& one : workers) ended.push_back(std::move(one));
  }

  Request request(pid_t pid, std::string scope, Duration after, int signal = SIGKILL) {
    return {pid, std::move(scope), clock.now() + after, signal, 0, clock.now()};
  }
  void acquire(pid_t pid, std::string scope, Duration after, int signal = SIGKILL) {
    CHECK(watchdog.request(request(pid, std::move(scope), after, signal)));
  }
  void adopt(const Hung& process) { ours.insert(process.pid); }
};

}  // namespace

TEST_CASE("watchdog: V11, an expired and a valid timer make one kill, and no timer is left") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "expired", 1s);
  watched.acquire(hung.pid, "valid", 60s);
  watched.clock.advance(999ms);
  CHECK(watched.ended.empty());
  watched.clock.advance(10ms);
  REQUIRE(watched.ended.size() == 1);
  CHECK(watched.ended[0].worker == hung.pid);
  CHECK(watched.ended[0].reason().scope == "expired");
  CHECK(watched.ended[0].reason().after() == 1s);
  CHECK(watched.ended[0].signal() == SIGKILL);
  CHECK(watched.watchdog.deadlines().size() == 0);
  CHECK(watched.watchdog.reap(hung.pid, SIGKILL));
  CHECK(WTERMSIG(hung.status()) == SIGKILL);
}

TEST_CASE("watchdog: V12, what is released in time kills nobody; a vacuous release is nothing") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "a", 1s);
  CHECK(watched.watchdog.request({hung.pid, "a", {}}));
  CHECK(watched.watchdog.request({hung.pid, "a", {}}));
  CHECK(watched.watchdog.request({1, "never there", {}}));
  watched.clock.advance(1h);
  CHECK(watched.ended.empty());
}

TEST_CASE("watchdog: V13, valid timers of several processes are all kept") {
  Watched watched;
  const Hung one, other;
  watched.adopt(one);
  watched.adopt(other);
  for (const auto pid : {one.pid, other.pid}) {
    watched.acquire(pid, "a", 60s);
    watched.acquire(pid, "b", 61s);
  }
  watched.clock.advance(59s);
  CHECK(watched.ended.empty());
  CHECK(watched.watchdog.deadlines().size() == 4);
}

TEST_CASE("watchdog: V7, the timers of a process go with it, and nobody is reaped") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "a", 1s);
  hung.end();
  test::run_until(watched.loop, [&] { return watched.watchdog.deadlines().size() == 0; });
  watched.clock.advance(1h);
  CHECK(watched.ended.empty());
}

TEST_CASE("watchdog: V8, an end that was not noticed yet is no error when it is to be reaped") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "a", 1s);
  hung.end();  // the loop has not run since
  watched.clock.advance(2s);
  REQUIRE(watched.ended.size() == 1);
  CHECK(watched.watchdog.reap(hung.pid, SIGKILL));
  CHECK(watched.watchdog.deadlines().size() == 0);
}

TEST_CASE(
    "watchdog: a request of a process that is not ours is a fault, one of an ended one void") {
  Watched watched;
  Hung hung;
  CHECK_FALSE(watched.watchdog.request(watched.request(hung.pid, "not ours", 1s)));
  watched.adopt(hung);
  hung.end();
  CHECK(watched.watchdog.request(watched.request(hung.pid, "gone", 1s)));
  CHECK(watched.watchdog.deadlines().size() == 0);
  watched.clock.advance(1h);
  CHECK(watched.ended.empty());
}

TEST_CASE("watchdog: a release that waits to be read when the timer expires counts") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "a", 1s);
  watched.waiting = Request{hung.pid, "a", {}};
  watched.clock.advance(1h);
  CHECK(watched.ended.empty());
}

TEST_CASE("watchdog: requests that never cease do not put off an expiry") {
  Watched watched;
  const Hung hung, busy;
  watched.adopt(hung);
  watched.adopt(busy);
  watched.acquire(hung.pid, "a", 1s);
  for (int i = 0; i < 30000 && watched.ended.empty(); ++i) {
    watched.clock.advance(100us);
    watched.acquire(busy.pid, "b", 60s);
  }
  REQUIRE(watched.ended.size() == 1);
  CHECK(watched.clock.now() - watched.ended[0].reason().expiry <= 2ms);
}

TEST_CASE("watchdog: timers of torch without a scope are separate") {
  Watched watched;
  auto& hung = watched.hung;
  const std::string scope = "/usr/lib/python3.11/contextlib.py#137";
  for (const auto after : {60s, 2s}) {
    auto request = watched.request(hung.pid, scope, after);
    request.nests = true;
    CHECK(watched.watchdog.request(request));
  }
  CHECK(watched.watchdog.request({.worker = hung.pid, .scope = scope, .nests = true}));
  watched.clock.advance(61s);
  REQUIRE(watched.ended.size() == 1);
  CHECK(watched.ended[0].reason().after() == 60s);
}

TEST_CASE("watchdog: a failed kill is tried again until it succeeds") {
  Watched watched;
  const Hung hung;
  struct Reluctant final : Watchdog {
    using Watchdog::Watchdog;
    Status send(int, int signal) const override {
      CHECK(signal == SIGTERM);
      if (++tries < 3) return fail(Code::Io, "cannot");
      return {};
    }
    mutable int tries = 0;
  };
  watched.adopt(hung);
  Reluctant watchdog(watched.loop, watched.clock, watched);
  const int& tries = watchdog.tries;
  watchdog.request(watched.request(hung.pid, "a", 60s));
  CHECK_FALSE(watchdog.reap(hung.pid, SIGTERM));
  watched.clock.advance(1s);
  CHECK(tries == 2);
  watched.clock.advance(1h);
  CHECK(tries == 3);
}

TEST_CASE("watchdog: nothing is left after it was cleared") {
  Watched watched;
  auto& hung = watched.hung;
  watched.acquire(hung.pid, "a", 1s);
  watched.watchdog.clear();
  watched.clock.advance(1h);
  CHECK(watched.ended.empty());
  CHECK(watched.clock.armed() == 0);
}
