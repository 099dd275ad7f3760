// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "support/fake_clock.hpp"
#include "support/loop.hpp"
#include "timer/api.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

struct Kept final : TimerClient {
  std::vector<std::string> said;
  bool fails = false;
  void acquire(const std::string& scope_id, double expiration_time) override {
    said.push_back("acquire " + scope_id + (expiration_time > 1e9 ? " later" : ""));
  }
  void release(const std::string& scope_id) override {
    said.push_back("release " + scope_id);
    if (fails) throw std::runtime_error("on purpose");
  }
};

pid_t timed_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGTERM, SIG_DFL);  // doctest has a handler
  work();
  ::_exit(0);
}

int end_of(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

struct Server {
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::vector<std::string> told;
  bool throws = false;
  FileTimerServer server{loop, *clock, "", "run",
                         [this](std::string_view name, const FileTimerRequest* request) {
                           const auto scope = request != nullptr ? " " + request->scope_id : "";
                           told.push_back(std::string(name) + scope);
                           if (throws) throw std::runtime_error("on purpose");
                         }};
};

}  // namespace

TEST_CASE("expires: a client of the user's hears of each block, whatever ends it") {
  const auto client = std::make_shared<Kept>();
  configure(client);
  {
    const Expires timer(60, "a");
    CHECK(client->said == std::vector<std::string>{"acquire a later"});
  }
  CHECK_THROWS_AS(
      [] {
        const Expires timer(60, "b");
        throw std::out_of_range("from the block");
      }(),
      std::out_of_range);
  CHECK(client->said.back() == "release b");
  const auto another = std::make_shared<Kept>();
  another->fails = true;  // the block has ended all the same
  { const Expires timer(1, {}, another); }
  CHECK(client->said.size() == 4);
  REQUIRE(another->said.size() == 2);
  CHECK(another->said[0].find("file_timer_test.cpp#") != std::string::npos);
  configure(nullptr);
}

TEST_CASE("expires: without a client it fails, as with torch") {
  configure(nullptr);
  CHECK_THROWS_AS(Expires(1, "a"), std::runtime_error);
}

TEST_CASE("file timer: a worker that does not release its timer in time is ended by its signal") {
  Server one;
  one.throws = true;  // a listener that fails keeps no process alive
  REQUIRE(one.server.start());
  const pid_t child = timed_child([&] {
    configure(std::make_shared<FileTimerClient>(one.server.path(), SIGTERM));
    { const Expires released(0.2, "released"); }
    const Expires kept(0.2, "kept");
    while (true) ::pause();
  });
  test::run_until(one.loop, [&] { return one.told.size() == 3; });
  CHECK(one.told == std::vector<std::string>{"watchdog started", "timer expired kept",
                                             "kill worker process kept"});
  CHECK(WTERMSIG(end_of(child)) == SIGTERM);
  one.server.stop();
  CHECK(one.told.back() == "watchdog stopped");
  CHECK_FALSE(std::filesystem::exists(one.server.path()));
}

TEST_CASE("file timer: without a signal a process is let run, and its other timers count") {
  Server one;
  REQUIRE(one.server.start());
  FileTimerClient(one.server.path(), 0).acquire("past", 1);
  FileTimerClient(one.server.path(), SIGKILL).acquire("far", 4e9);
  test::run_until(one.loop, [&] { return one.told.size() == 2 && one.server.timers() == 1; });
  CHECK(one.told.back() == "timer expired past");
  FileTimerClient(one.server.path()).release("far");
  test::run_until(one.loop, [&] { return one.server.timers() == 0; });
}

TEST_CASE("file timer: a request that cannot be sent whole, or to nobody, fails") {
  Server one;
  REQUIRE(one.server.start());
  FileTimerClient client(one.server.path());
  CHECK_THROWS_AS(client.acquire(std::string(5000, 'x'), 1), std::runtime_error);
  one.server.stop();
  CHECK_THROWS_AS(client.acquire("a", 1), std::runtime_error);
}

TEST_CASE("file timer: the line is one that torch's server reads") {
  const FileTimerRequest request{{17, "a\xff\"", 1.5}, 9};
  CHECK(request.to_json() ==
        "{\"version\":1,\"pid\":17,\"scope_id\":\"a\xef\xbf\xbd\\\"\","
        "\"expiration_time\":1.5E0,\"signal\":9}");
}

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

struct Local {
  test::FakeClock clock;
  LocalQueue queue;
  Passes server{queue, clock, 60s};
};

}  // namespace

TEST_CASE("local timer: V5, a worker that does not release its timer is killed") {
  Local at;
  const double expiration = to_seconds(at.clock.wall()) + 0.1;
  const pid_t child = timed_child([&] {
    LocalTimerClient(at.queue).acquire("a", expiration);
    while (true) ::pause();
  });
  at.queue.put(at.queue.get(1, 1h).at(0));  // it has come
  at.server.run_watchdog();
  CHECK(at.server.timers() == 1);
  at.clock.advance(200ms);
  at.server.run_watchdog();
  CHECK(WTERMSIG(end_of(child)) == SIGKILL);
  CHECK(at.server.timers() == 0);
}

TEST_CASE("local timer: a release in time spares the worker, recursion arms again") {
  Local at;
  LocalTimerClient client(at.queue);
  const double wall = to_seconds(at.clock.wall());
  client.acquire("a", wall + 1);
  client.acquire("a", wall + 3);
  at.server.run_watchdog();
  CHECK(at.server.timers() == 1);
  at.clock.advance(2s);
  at.server.run_watchdog();
  CHECK(at.server.tried.empty());
  client.release("a");
  client.release("a");
  at.clock.advance(1h);
  at.server.run_watchdog();
  CHECK(at.server.tried.empty());
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
  Local at;
  at.server.real = false;
  for (const int worker : {1, 2, 3}) at.queue.put({worker, "a", 1});
  at.server.run_watchdog();
  CHECK(at.server.tried == std::vector<std::int64_t>{1, 2, 3});
  CHECK(at.server.timers() == 1);
  at.server.run_watchdog();
  CHECK(at.server.tried.back() == 3);
  CHECK(at.server.tried.size() == 4);
}

TEST_CASE("local timer: V15, a queue gives what has come by its timeout, and no more than asked") {
  LocalQueue queue;
  CHECK(queue.get(10, 1ms).empty());
  for (int i = 0; i < 5; ++i) CHECK(queue.put({i, "s", 1.5}));
  CHECK(queue.size() == 5);
  CHECK(queue.get(2, 0s) == std::vector<TimerRequest>{{0, "s", 1.5}, {1, "s", 1.5}});
  CHECK(queue.size() == 3);
  const pid_t child = timed_child([&] { queue.put({5, "late", -1}); });
  const auto rest = queue.get(4, 1h);  // not the timeout, but their number ends it
  CHECK(rest.size() == 4);
  CHECK(rest.back().scope_id == "late");
  CHECK(end_of(child) == 0);
}

TEST_CASE("local timer: a worker id that is no pid signals nobody") {
  Local at;
  for (const std::int64_t worker : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    at.queue.put({worker, "a", 1});
  }
  at.server.run_watchdog();
  CHECK(at.server.timers() == 0);
}
