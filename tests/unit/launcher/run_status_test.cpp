// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/run_status.hpp"

#include "support/logged_text.hpp"
#include "unit/logs/plumbing.hpp"

#include <algorithm>
#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

spec::JobSpec job_of(int workers, int max_restarts, bool several_nodes) {
  spec::JobSpec job;
  job.nproc_per_node = workers;
  job.max_restarts = max_restarts;
  job.max_nodes = several_nodes ? 2 : 1;
  job.rdzv_endpoint = "node1:29400";
  return job;
}

/// A view on a terminal of its own, whose last line the test reads.
struct Screen {
  boost::asio::io_context loop;
  plumbing::FakeClock clock;
  plumbing::Terminal terminal;
  std::unique_ptr<logs::Console> console;
  std::unique_ptr<logs::StatusLine> line;
  std::string seen;

  explicit Screen(unsigned short columns = 100) {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    const winsize size{24, columns, 0, 0};
    REQUIRE(::ioctl(terminal.screen.get(), TIOCSWINSZ, &size) == 0);
    const int side = terminal.side.get();
    console = std::make_unique<logs::Console>(loop.get_executor(), side, side);
    line = std::make_unique<logs::StatusLine>(clock, *console, true);
    REQUIRE(line->is_enabled());
  }
  ~Screen() { ::unsetenv("NO_COLOR"); }

  /// The line as it stands after half a second, so that even a detail has been drawn.
  std::string shown() {
    clock.advance(500ms);
    seen += plumbing::take(terminal.screen.get());
    const auto last = seen.rfind("\r\x1b[K");
    return last == std::string::npos ? seen : seen.substr(last + 4);
  }
};

rendezvous::Round round_of(int nodes, int attempt = 0) {
  rendezvous::Round round;
  round.members.resize(static_cast<std::size_t>(nodes));
  round.attempt = attempt;
  round.restarts_left = 3 - attempt;
  return round;
}

workers::Judgement judgement_of(std::size_t failures) {
  workers::Judgement judgement;
  judgement.failures.resize(failures);
  return judgement;
}

std::vector<workers::Worker> group_of(std::size_t workers) {
  return std::vector<workers::Worker>(workers);
}

TEST_CASE("view: one node does not wait for others, and shows no restarts that nobody asked for") {
  Screen screen;
  const auto job = job_of(2, 0, false);
  StatusView view(*screen.line, job);
  view.on(moment::PhaseChanged{Phase::Joining, {}});
  CHECK(screen.shown() == "[starting] 0/2 workers | 0:00");
  view.on(moment::RoundReady{round_of(1), 0s});
  view.on(moment::PhaseChanged{Phase::Starting, {}});
  view.on(moment::Started{round_of(1), group_of(2), 0s});
  view.on(moment::PhaseChanged{Phase::Running, {}});
  CHECK(screen.shown() == "[running] 2/2 workers | 0:01");
}

TEST_CASE("view: several nodes, who is missing, and what a restart leaves") {
  Screen screen;
  const auto job = job_of(2, 3, true);
  StatusView view(*screen.line, job);
  view.on(moment::PhaseChanged{Phase::Joining, {}});
  view.on(moment::Progress{"1 of 2 nodes is here"});
  CHECK(screen.shown() ==
        "[waiting for other nodes] 0/3 restarts | at node1:29400: 1 of 2 nodes is here | 0:00");
  view.on(moment::RoundReady{round_of(2), 1s});
  view.on(moment::Started{round_of(2), group_of(2), 0s});
  view.on(moment::PhaseChanged{Phase::Running, {}});
  CHECK(screen.shown() == "[running] 2/2 workers | 2 nodes | 0/3 restarts | 0:01");
  view.on(moment::PhaseChanged{Phase::Settling, {}});
  view.on(moment::Failed{judgement_of(1)});
  rendezvous::Restart order;
  order.restarts_left = 2;
  order.cause.text = "rank 0 died";
  view.on(moment::Restarting{order});
  view.on(moment::PhaseChanged{Phase::Stopping, {}});
  CHECK(screen.shown() ==
        "[stopping workers] 1/2 workers | 2 nodes | 1/3 restarts | rank 0 died | "
        "0:01");
  view.on(moment::PhaseChanged{Phase::Joining, {}});
  view.on(moment::RoundReady{round_of(2, 1), 0s});
  view.on(moment::PhaseChanged{Phase::Starting, {}});
  CHECK(screen.shown() == "[starting workers] 0/2 workers | 2 nodes | 1/3 restarts | 0:02");
}

TEST_CASE("view: the newest step is shown, and none any more when the job is over") {
  Screen screen;
  const auto job = job_of(1, 0, false);
  StatusView view(*screen.line, job);
  view.on(moment::PhaseChanged{Phase::Running, {}});
  workers::Worker worker;
  view.on(moment::WorkerSaid{worker, workers::StepDone{7}});
  view.on(moment::WorkerSaid{worker, workers::StepDone{8}});
  worker.rank = 1;  // which is about there, too
  view.on(moment::WorkerSaid{worker, workers::StepDone{6}});
  view.on(moment::WorkerSaid{worker, workers::Returned{}});
  CHECK(screen.shown() == "[running] 0/1 workers | step 8 | 0:00");
  worker.rank = 0;
  view.on(moment::PhaseChanged{Phase::Ended, {}});
  CHECK(screen.shown().empty());
  view.on(moment::WorkerSaid{worker, workers::StepDone{9}});
  view.on(moment::Progress{"too late"});
  view.on(moment::Ended{{}, nullptr});
  CHECK(screen.shown().empty());
  CHECK(screen.clock.armed() == 0);
}

TEST_CASE("view: a job without workers, and more failures than the line can know of") {
  Screen screen;
  const auto job = job_of(0, 0, true);
  StatusView view(*screen.line, job);
  view.on(moment::PhaseChanged{Phase::Joining, {}});
  CHECK(screen.shown() == "[waiting for other nodes] at node1:29400:  | 0:00");
  const auto small_job = job_of(1, 0, false);
  StatusView small(*screen.line, small_job);
  small.on(moment::PhaseChanged{Phase::Running, {}});
  small.on(moment::Failed{judgement_of(1)});
  CHECK(screen.shown() == "[running] 0/1 workers | 0:01");
}

TEST_CASE("view: a very long name stays on its line, also on a narrow terminal") {
  for (const unsigned short columns : std::initializer_list<unsigned short>{100, 40, 20, 8, 2}) {
    CAPTURE(columns);
    Screen screen(columns);
    const auto job = job_of(123456, 1000000, true);
    StatusView view(*screen.line, job);
    view.on(moment::PhaseChanged{Phase::Joining, {}});
    view.on(moment::Progress{"missing: " + std::string(5000, 'n') + "\x1b[31m\n\xff"});
    const auto shown = screen.shown();
    CHECK(shown.size() + 1 < std::max<std::size_t>(columns, 4));  // room for ^C
    CHECK_FALSE(shown.contains('\n'));
    CHECK_FALSE(shown.contains('\x1b'));
  }
}

spec::JobSpec nodes_of(int nodes) {
  spec::JobSpec job;
  job.max_nodes = nodes;
  job.rdzv_endpoint = "node1:29400";
  return job;
}

TEST_CASE(
    "waiting: after ten seconds it is said, then ever more rarely, until the nodes have met") {
  test::LoggedText log;
  plumbing::FakeClock clock;
  WaitingWarning waiting(clock, nodes_of(2), false);
  const auto lines = [&log] { return std::ranges::count(log.text, '\n'); };
  waiting.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  waiting.on(moment::Progress{"1 of 2 nodes here (node1); waiting for 1 more, at most 9 min 50 s"});
  clock.advance(9s);
  CHECK(log.text.empty());
  clock.advance(1s);
  CHECK(
      log.text.contains("1 of 2 nodes here (node1); waiting for 1 more, at most 9 min 50 s; "
                        "nodes meet at node1:29400"));
  clock.advance(19s);
  CHECK(lines() == 1);
  clock.advance(1s);
  CHECK(lines() == 2);
  clock.advance(1h);
  CHECK(lines() < 14);
  waiting.on(moment::PhaseChanged{Phase::Starting, clock.now()});
  CHECK(clock.armed() == 0);
}

TEST_CASE("waiting: who waits at a loopback address hears what other machines need") {
  test::LoggedText log;
  plumbing::FakeClock clock;
  auto job = nodes_of(2);
  job.rdzv_backend = "static";
  job.rdzv_endpoint = "127.0.0.1:29500";
  WaitingWarning first(clock, job, true);
  job.node_rank = 1;
  WaitingWarning second(clock, job, false);
  job.rdzv_backend = "c10d", job.rdzv_endpoint = "localhost";
  WaitingWarning third(clock, job, false);
  job.rendezvous.is_host = false;
  WaitingWarning fourth(clock, job, false);
  for (auto* one : {&first, &second, &third, &fourth})
    one->on(moment::PhaseChanged{Phase::Joining, clock.now()});
  clock.advance(10s);
  CHECK(
      log.text.contains("127.0.0.1:29500, which other machines cannot reach: nodes there need "
                        "this one's address (--master-addr"));
  CHECK(log.text.contains("127.0.0.1:29500, on this machine: if node 0 is another one, give"));
  CHECK(
      log.text.contains("localhost, which other machines cannot reach: nodes there need this "
                        "one's address (--rdzv-endpoint"));
  CHECK(
      log.text.contains("localhost, on this machine: if node 0 is another one, give "
                        "--rdzv-endpoint with its address"));
}

TEST_CASE("waiting: who hosts at another machine's address hears that it may not be node 0") {
  plumbing::FakeClock clock;
  auto job = nodes_of(2);
  job.rdzv_backend = "static";
  const auto said = [&] {
    test::LoggedText log;
    WaitingWarning waiting(clock, job, false);
    waiting.on(moment::PhaseChanged{Phase::Joining, clock.now()});
    clock.advance(10s);
    return log.text.contains("not an address of this machine: if this is not node 0, give --node");
  };
  job.rdzv_endpoint = "198.51.100.9:29500";
  CHECK(said());
  job.node_rank = 1;
  CHECK(!said());
  job.node_rank = 0, job.rdzv_endpoint = "127.0.0.2:29500";
  CHECK(!said());
  job.rdzv_endpoint = "198.51.100.9:29500", job.rdzv_backend = "c10d";
  CHECK(!said());
}

TEST_CASE("waiting: one node waits for nobody, and a status line says it all the time") {
  plumbing::FakeClock clock;
  WaitingWarning alone(clock, nodes_of(1), false), seen(clock, nodes_of(2), true);
  alone.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  seen.on(moment::PhaseChanged{Phase::Joining, clock.now()});
  CHECK(clock.armed() == 0);
}

}  // namespace
}  // namespace elastrun::agent
