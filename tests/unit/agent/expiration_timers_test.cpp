// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/expiration_timers.hpp"

#include "agent/hang/hung_stacks.hpp"
#include "core/text.hpp"
#include "support/fake_run.hpp"
#include "support/loop.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::string>;
using process::ExitStatus;

/// A worker that hangs, and what the agent has around it.
struct Hanging : test::FakeRun {
  test::FakeClock& clock = time;
  Names events;
  StackOffers offers;
  bool releases = false;  // what it has said, and was not heard
  ExpirationTimers timers{*this, offers};

  void post(Fact fact) override {
    events.emplace_back(std::holds_alternative<TimerKilled>(fact) ? "killed" : "expired");
  }
  void catch_up() override {
    if (releases) take_back("load");
  }

  Hanging() : FakeRun({}, true, {"PATH=/nonexistent"}) {
    worker.rank = 5;
    worker.pid = ::fork();
    if (worker.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::signal(SIGTERM, SIG_DFL);  // not that of the test's frame
      while (true) ::pause();
    }
    timers.on(moment::RoundReady{{}, {}});
    timers.on(moment::PhaseChanged{Phase::Running, clock.now()});
  }
  Hanging(const Hanging&) = delete;
  Hanging& operator=(const Hanging&) = delete;
  ~Hanging() {
    ::kill(worker.pid, SIGKILL);
    ::waitpid(worker.pid, nullptr, 0);
  }
  void ask(std::string scope, double after, int signal = SIGTERM) {
    const double now = to_seconds(clock.now().time_since_epoch());
    timers.heard(worker.pid, workers::TimerSet{1, std::move(scope), now + after, after, signal});
  }
  void take_back(std::string scope) {
    timers.heard(worker.pid, workers::TimerSet{1, std::move(scope)});
  }
  const ExpiredTimer& expired() {
    test::run_until(loop, [this] { return !timers.expired().empty(); });
    return timers.expired().front();
  }
  workers::Failure failure(process::ExitStatus status) const {
    workers::Failure failure;
    failure.pid = worker.pid;
    failure.status = status;
    timers.explain(failure);
    return failure;
  }
};

TEST_CASE("expiration timers: a group that is stopped while a stack is taken has its own grace") {
  Hanging job;
  job.ask("load", 2);
  job.clock.advance(2s + 2ms);
  job.timers.on(moment::PhaseChanged{Phase::Stopping, job.clock.now()});
  CHECK_FALSE(job.expired().reaped);
  CHECK(job.events == Names{"expired"});
  CHECK(::kill(job.worker.pid, 0) == 0);
  job.ask("while it saves", 1);
  job.clock.advance(1h);
  CHECK(job.events == Names{"expired"});
}

TEST_CASE("expiration timers: what is heard late has its whole time from then on") {
  Hanging job;
  const double now = to_seconds(job.clock.now().time_since_epoch());
  job.timers.heard(job.worker.pid, workers::TimerSet{1, "load", now - 60, 0.2});
  job.clock.advance(190ms);
  CHECK(job.events.empty());
  job.clock.advance(20ms);
  CHECK(job.expired().after == 200ms);
}

TEST_CASE("expiration timers: a release that was said, but not heard yet, counts") {
  Hanging job;
  job.ask("load", 2);
  job.releases = true;
  job.clock.advance(3s);
  CHECK(job.events.empty());
}

TEST_CASE("expiration timers: of those that end nobody not all are kept for ever") {
  Hanging job;
  constexpr auto kMost = ExpirationTimers::kMostKept;
  for (std::size_t i = 1; i <= kMost + 3; ++i) {
    job.ask(std::to_string(i), 1, 0);
    job.clock.advance(2s);
    test::run_until(job.loop, [&] {
      const auto& all = job.timers.expired();
      return !all.empty() && all.back().scope == std::to_string(i);
    });
  }
  CHECK(job.timers.expired().size() == kMost);
  CHECK(job.timers.expired().front().scope == "4");
}

TEST_CASE("expiration timers: far deadlines are bounded") {
  Hanging job;
  job.ask("for ever", 1e300);
  job.ask("never", -1e300);  // the same timer, and long over
  job.clock.advance(2ms);
  CHECK(job.expired().sentence() == "timer 'never' had expired when it came");
}

TEST_CASE("expiration timers: each is counted, with the time until it was seen") {
  Hanging job;
  auto& registry = telemetry::process_registry();
  const auto before = registry.collect("elastrun.timer.*").points;
  job.ask("load", 2);
  job.clock.advance(3s);
  job.expired();
  const auto points = registry.collect("elastrun.timer.*").points;
  REQUIRE(points.size() == 2);
  CHECK(points[0].spec->name == "elastrun.timer.expired");
  const auto count = [](const auto& all) { return std::get<std::int64_t>(all.at(0).value); };
  CHECK(count(points) == count(before) + 1);
  CHECK(points[1].spec->name == "elastrun.timer.overrun");
  CHECK(points[1].summary.count == before.at(1).summary.count + 1);
  for (const auto& point : points) CHECK(point.spec->scope == "elastrun.agent");
}

struct Offering {
  pid_t pid = ::fork();
  Offering() {
    if (pid != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  Offering(const Offering&) = delete;
  Offering& operator=(const Offering&) = delete;
  ~Offering() { end(); }
  void end() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
};

}  // namespace

TEST_CASE("stack offers: one that is renewed needs no room, and one that has ended gives it up") {
  StackOffers offers(2);
  Offering one, two, three;
  const auto offer = [&](const Offering& process, int signal) {
    offers.heard(process.pid, {signal, 5, 0});
    const auto found = offers.of(process.pid);
    return found ? found->signal : 0;
  };
  CHECK(offer(one, 35) == 35);
  CHECK(offer(two, 36) == 36);
  CHECK_MESSAGE(offer(three, 37) == 0, "no room");
  CHECK(offer(one, 38) == 38);
  two.end();
  CHECK_MESSAGE(offer(three, 37) == 0, "not looked for each time");
  CHECK(offer(three, 37) == 37);
  CHECK(offer(one, 39) == 39);
  offers.forget();
  CHECK(offers.processes().empty());
}

}  // namespace elastrun::agent
