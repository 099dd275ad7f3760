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

TEST_CASE("signals: what cannot be handled is ignored with a warning") {
  const auto list = parse_signals({"SIGKILL", "SIGTERM", "SIGSTOP", "TERM", "", "SIGCHLD"});
  CHECK(list.numbers == std::vector<int>{SIGTERM});
  REQUIRE(list.warnings.size() == 5);
  CHECK(list.warnings[0] == "SIGKILL cannot be handled by any process; ignored");
  CHECK(list.warnings[2] ==
        "unknown signal \"TERM\" (expected names such as SIGTERM or SIGUSR1); ignored");
}

namespace {

struct Heard {
  int number;
  Route route;
  Duration later{};
};

/// What each of a series of signals asks for: S to stop, K to kill, - for nothing more.
std::string asked(const std::vector<Heard>& series) {
  SignalEscalation escalation;
  TimePoint now{};
  std::string demands;
  for (const auto& [number, route, later] : series) {
    now += later;
    const auto demand = escalation.heard({number, route == Route::Kernel ? 0 : 42, route}, now);
    demands += demand == Demand::Stop ? 'S' : demand == Demand::KillNow ? 'K' : '-';
  }
  return demands;
}

}  // namespace

TEST_CASE("signals: one end of a job by two routes is one end, and who repeats a signal insists") {
  constexpr auto kGuardian = Route::ThroughGuardian, kAgent = Route::Process,
                 kKernel = Route::Kernel;
  struct Row {
    const char* who;
    std::vector<Heard> series;
    const char* demands;
  };
  for (const auto& [who, series, demands] : std::initializer_list<Row>{
           {"a closed terminal: SIGHUP by the shell, then by the kernel, however late",
            {{SIGHUP, kGuardian}, {SIGHUP, kKernel, 5s}},
            "S-"},
           {"systemd: SIGTERM, then SIGHUP",
            {{SIGTERM, kGuardian}, {SIGHUP, kGuardian, 1ms}, {SIGCONT, kGuardian, 3s}},
            "S--"},
           {"a scheduler that signals guardian and agent, and a guardian that is slow",
            {{SIGTERM, kAgent}, {SIGTERM, kGuardian, 30s}},
            "S-"},
           {"a scheduler that signals two guardians and the agent, and a machine that stalls",
            {{SIGTERM, kAgent},
             {SIGTERM, kGuardian},
             {SIGTERM, kGuardian, 3s},
             {SIGTERM, kAgent, 1s}},
            "S--K"},
           {"but who goes on to signal the guardian alone is heard as well",
            {{SIGTERM, kAgent}, {SIGTERM, kGuardian}, {SIGTERM, kGuardian, 10s}},
            "S-K"},
           {"timeout(1) signals its child, then its group",
            {{SIGTERM, kGuardian}, {SIGTERM, kGuardian, 1ms}, {SIGTERM, kGuardian, 998ms}},
            "S--"},
           {"a wrapper passes on the Ctrl+C that came to both",
            {{SIGINT, kKernel}, {SIGINT, kGuardian, 2s}},
            "S-"},
           {"a second after the first", {{SIGTERM, kGuardian}, {SIGTERM, kGuardian, 1s}}, "SK"},
           {"Ctrl+C typed twice, in whatever haste",
            {{SIGINT, kKernel}, {SIGINT, kKernel, 150ms}},
            "SK"},
           {"but a key that bounces does not insist",
            {{SIGINT, kKernel}, {SIGINT, kKernel, 20ms}, {SIGINT, kKernel, 500ms}},
            "S-K"},
           {"Ctrl+C after another signal has to be typed twice as well",
            {{SIGTERM, kGuardian}, {SIGINT, kKernel, 9s}, {SIGINT, kKernel, 9s}},
            "S-K"}}) {
    CHECK_MESSAGE(asked(series) == demands, who);
  }
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
  CHECK(seen == std::vector<SignalEvent>{{SIGUSR1, ::getpid()}, {SIGUSR2, ::getpid()}});
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

TEST_CASE("signals: of several at once SIGTERM is told first") {
  boost::asio::io_context io;
  std::vector<int> seen;
  SignalSource source(io, {SIGHUP, SIGINT, SIGTERM},
                      [&](const SignalEvent& event) { seen.push_back(event.number); });
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::kill(::getpid(), number);
  while (seen.size() < 3) io.run_one();
  CHECK(seen == std::vector<int>{SIGTERM, SIGHUP, SIGINT});
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

TEST_CASE("signals: an ignored SIGINT, as a shell leaves it behind `&`, is listened to") {
  ::signal(SIGINT, SIG_IGN);
  boost::asio::io_context io;
  int count = 0;
  {
    SignalSource source(io, {SIGINT}, [&](const SignalEvent&) { ++count; });
    ::kill(::getpid(), SIGINT);
    io.run_one();
  }
  ::signal(SIGINT, SIG_DFL);
  CHECK(count == 1);
}

TEST_CASE("signals: what comes when the rest is ignored has no effect, also without the source") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    boost::asio::io_context io;
    {
      SignalSource source(io, {SIGTERM}, [](const SignalEvent&) {});
      ::kill(::getpid(), SIGTERM);
      source.ignore_rest();
      ::kill(::getpid(), SIGTERM);
    }
    ::kill(::getpid(), SIGTERM);
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(ExitStatus::from_wait(status) == ExitStatus::exited(7));
}

TEST_CASE("signals: the route is known, directly and through the guardian") {
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::signal(SIGQUIT, SIG_IGN);
    auto agent = guardian::split();
    boost::asio::io_context io;
    const auto tell = [&](const SignalEvent& event) {
      const auto text =
          std::to_string(event.number) + " " + std::to_string(static_cast<int>(event.route)) + "\n";
      if (::write(ear.mouth(), text.data(), text.size()) < 0) ::_exit(1);
      if (event.number == SIGTERM) ::_exit(0);
    };
    SignalSource source(io, {SIGHUP, SIGQUIT, SIGTERM}, tell);
    const std::string ready = std::to_string(::getpid()) + "\n";
    if (::write(ear.mouth(), ready.data(), ready.size()) < 0) ::_exit(1);
    io.run();
  }
  const auto agent = static_cast<pid_t>(std::stol(ear.line()));
  const auto said = [](int number, Route route) {
    return std::to_string(number) + " " + std::to_string(static_cast<int>(route));
  };
  ::kill(agent, SIGHUP);
  CHECK(ear.line() == said(SIGHUP, Route::Process));
  ::kill(pid, SIGHUP);
  CHECK(ear.line() == said(SIGHUP, Route::ThroughGuardian));
  ::kill(pid, SIGQUIT);  // ignored, but passed on
  CHECK(ear.line() == said(SIGQUIT, Route::ThroughGuardian));
  ::kill(pid, SIGTERM);
  CHECK(ear.rest() == said(SIGTERM, Route::ThroughGuardian) + "\n");
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("signals: the sender is described by name while it exists") {
  const auto self = describe({SIGTERM, ::getpid()});
  CHECK(self == "SIGTERM from process " + std::to_string(::getpid()) + " (unit_process)");
  CHECK(describe({SIGINT, 0, Route::Kernel}) == "SIGINT from the terminal or the kernel");
  CHECK(describe({SIGTERM, 0}) == "SIGTERM from a process outside of this container");
  CHECK(describe({SIGHUP, 0x3fffffff}) == "SIGHUP from process 1073741823");
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
  ::kill((*worker)->child->pid(), SIGKILL);
  nursery.wait(**worker);
  nursery.io.restart();
  nursery.io.poll();
  CHECK(deaths == 1);
}
