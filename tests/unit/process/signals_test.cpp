// SPDX-License-Identifier: Apache-2.0
#include "process/signals.hpp"

#include "process/guardian.hpp"
#include "support/children.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;
using namespace std::chrono_literals;

namespace {

struct StandingClock final : Clock {
  TimePoint now() const override { return {}; }
  WallTime wall() const override { return {}; }
  std::unique_ptr<Alarm> make_alarm() override { return nullptr; }
};

bool blocked(int number) {
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  return ::sigismember(&mask, number) == 1;
}

}  // namespace

TEST_CASE("signals: a list of names becomes numbers, each once") {
  const auto list = parse_signals({"SIGTERM", "SIGUSR1", "SIGTERM", "SIGRTMIN+1"});
  CHECK(list.numbers == std::vector<int>{SIGTERM, SIGUSR1, SIGRTMIN + 1});
  CHECK(list.warnings.empty());
  CHECK(parse_signals({}).numbers.empty());
}

TEST_CASE("signals: what cannot be handled is passed over with a sentence") {
  const auto list = parse_signals({"SIGKILL", "SIGTERM", "SIGSTOP", "TERM", "", "SIGCHLD"});
  CHECK(list.numbers == std::vector<int>{SIGTERM});
  REQUIRE(list.warnings.size() == 5);
  CHECK(list.warnings[0] == "SIGKILL cannot be handled by any process; passed over");
  CHECK(list.warnings[2] ==
        "there is no signal \"TERM\" (expected names such as SIGTERM or SIGUSR1); passed over");
}

TEST_CASE("signals: the same order from the same process at the same moment is an echo") {
  EchoFilter filter;
  const TimePoint start{};
  const SignalEvent order{SIGTERM, 42, 0};
  CHECK_FALSE(filter.is_echo(order, start));
  CHECK(filter.is_echo(order, start + 1ms));
  CHECK(filter.is_echo(order, start + 100ms));
  CHECK_FALSE(filter.is_echo({SIGTERM, 43, 0}, start + 100ms));
  CHECK_FALSE(filter.is_echo({SIGINT, 42, 0}, start + 100ms));
  CHECK_FALSE(filter.is_echo(order, start + 101ms));
}

TEST_CASE("signals: two presses of Ctrl+C are never one") {
  EchoFilter filter;
  const TimePoint start{};
  CHECK_FALSE(filter.is_echo({SIGINT, 0, 0}, start));
  CHECK_FALSE(filter.is_echo({SIGINT, 0, 0}, start + 1ms));
}

TEST_CASE("signals: they arrive on the loop with number and sender") {
  boost::asio::io_context io;
  std::vector<SignalEvent> seen;
  {
    SignalSource source(io, {SIGUSR1, SIGUSR2},
                        [&](const SignalEvent& event) { seen.push_back(event); });
    ::kill(::getpid(), SIGUSR1);
    ::kill(::getpid(), SIGUSR2);
    CHECK(seen.empty());
    while (seen.size() < 2) io.run_one();
    CHECK(blocked(SIGUSR1));
  }
  CHECK_FALSE(blocked(SIGUSR1));
  CHECK(seen == std::vector<SignalEvent>{{SIGUSR1, ::getpid(), ::getuid()},
                                         {SIGUSR2, ::getpid(), ::getuid()}});
  io.restart();
  CHECK(io.run() <= 1);  // the cancelled wait, and nothing after it
}

TEST_CASE("signals: one that was ignored before stays ignored") {
  ::signal(SIGUSR1, SIG_IGN);
  boost::asio::io_context io;
  int count = 0;
  SignalSource source(io, {SIGUSR1, SIGUSR2}, [&](const SignalEvent& event) {
    CHECK(event.number == SIGUSR2);
    ++count;
  });
  CHECK(source.signals() == std::vector<int>{SIGUSR2});
  ::kill(::getpid(), SIGUSR1);
  ::kill(::getpid(), SIGUSR2);
  while (count == 0) io.run_one();
  ::signal(SIGUSR1, SIG_DFL);
}

TEST_CASE("signals: a source may be destroyed by what it reports") {
  boost::asio::io_context io;
  std::unique_ptr<SignalSource> source;
  int count = 0;
  source = std::make_unique<SignalSource>(io, std::vector<int>{SIGUSR1}, [&](const SignalEvent&) {
    ++count;
    source.reset();
  });
  ::kill(::getpid(), SIGUSR1);
  while (count == 0) io.run_one();
  CHECK(io.poll() == 0);
}

TEST_CASE("signals: through the guardian and directly at once, an order counts once") {
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto agent = guardian::split();
    boost::asio::io_context io;
    const StandingClock clock;  // so that a slow machine makes no two orders of one
    const auto tell = [&](const SignalEvent& event) {
      const auto text = std::to_string(event.number) + "\n";
      if (::write(ear.mouth(), text.data(), text.size()) < 0) ::_exit(1);
      if (event.number == SIGTERM) ::_exit(0);
    };
    SignalSource source(io, {SIGHUP, SIGTERM}, tell, &clock);
    const std::string ready = std::to_string(::getpid()) + "\n";
    if (::write(ear.mouth(), ready.data(), ready.size()) < 0) ::_exit(1);
    io.run();
  }
  const auto agent = static_cast<pid_t>(std::stol(ear.line()));
  ::kill(agent, SIGHUP);
  CHECK(ear.line() == "1");
  ::kill(pid, SIGHUP);
  ::kill(pid, SIGTERM);
  CHECK(ear.rest() == "15\n");
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("signals: the sender is described by name while it exists") {
  const auto self = describe({SIGTERM, ::getpid(), 0});
  CHECK(self == "SIGTERM from process " + std::to_string(::getpid()) + " (unit_process)");
  CHECK(describe({SIGINT, 0, 0}) == "SIGINT from the terminal or the kernel");
  CHECK(describe({SIGHUP, 0x3fffffff, 0}) == "SIGHUP from process 1073741823");
}

TEST_CASE("signals: the death of a watched process is told once") {
  Nursery nursery;
  Ear ear;
  const auto worker = nursery.start(nursery.stub({"stay"}));
  REQUIRE(worker);
  const UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, (*worker)->child->pid(), 0)));
  int deaths = 0;
  const DeathWatch watch(nursery.io, held.get(), [&] { ++deaths; });
  const DeathWatch nobody(nursery.io, -1, [&] { deaths += 100; });
  nursery.io.poll();
  CHECK(deaths == 0);
  (*worker)->child->signal_leader(SIGKILL);
  nursery.wait(**worker);
  nursery.io.restart();
  nursery.io.poll();
  CHECK(deaths == 1);
}
