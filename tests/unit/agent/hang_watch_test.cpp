// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_watch.hpp"

#include "agent/telemetry/goodput_account.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/text.hpp"
#include "support/fake_run.hpp"
#include "support/loop.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <optional>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using ProgressKind = hangs::NodeProgress::Kind;

spec::JobSpec spec_of(Duration limit, spec::OnHang on_hang) {
  spec::JobSpec spec;
  if (limit > 0s) spec.hang_limit = limit;
  spec.on_hang = on_hang;
  return spec;
}

/// One node of two, with two workers each; what it tells the rendezvous.
struct WatchedNode : test::FakeRun {
  test::FakeClock& clock = time;
  test::FakeSession session;
  std::vector<rendezvous::Report>& reports = session.reports;
  std::vector<JobHang> heard;
  std::map<int, std::string> held;
  bool ended = false;  // the worker that it has
  StackOffers offers;
  HangWatch own{*this, session, offers};
  HangWatch* watch = &own;

  void post(Fact fact) override {
    if (const auto* seen = std::get_if<HangSeen>(&fact)) heard.push_back(*seen->hang);
    if (const auto* seen = std::get_if<HeldSeen>(&fact)) held = seen->ranks;
  }
  const workers::Worker* worker_of(pid_t) const override { return ended ? nullptr : &worker; }

  explicit WatchedNode(Duration limit, spec::OnHang on_hang = spec::OnHang::Report,
                       int group_rank = 0)
      : WatchedNode(spec_of(limit, on_hang), group_rank) {}
  explicit WatchedNode(spec::JobSpec what, int group_rank = 0) : FakeRun(std::move(what)) {
    rendezvous::Round round;
    round.number = 4;
    round.members = {{.id = "n0", .local_world_size = 2}, {.id = "n1", .local_world_size = 2}};
    round.group_rank = group_rank;
    round.rank_base = 2 * group_rank;
    std::vector<workers::Worker> group(1);
    group[0].pid = ::getpid();  // which runs
    watch->on(moment::RoundReady{round, {}});
    watch->on(moment::Started{round, group, {}});
    watch->on(moment::PhaseChanged{Phase::Running, clock.now()});
  }
  void stand() { clock.advance(31s); }
  std::vector<ProgressKind> told() const {
    std::vector<ProgressKind> kinds;
    for (const auto& report : reports) {
      if (const auto* progress = std::get_if<rendezvous::ProgressReport>(&report)) {
        CHECK(progress->round == 4);
        kinds.push_back(progress->what.kind);
      }
    }
    return kinds;
  }
  std::vector<rendezvous::Failed> failures() const {
    std::vector<rendezvous::Failed> failures;
    for (const auto& report : reports) {
      if (const auto* failed = std::get_if<rendezvous::Failed>(&report)) {
        failures.push_back(*failed);
      }
    }
    return failures;
  }
};

/// Of this process, which is the worker.
struct StoppedChild {
  pid_t pid = ::fork();
  explicit StoppedChild(void (*before)()) {
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      before();
      ::raise(SIGSTOP);
      while (true) ::pause();
    }
    ::waitpid(pid, nullptr, WUNTRACED);
  }
  StoppedChild(const StoppedChild&) = delete;
  StoppedChild& operator=(const StoppedChild&) = delete;
  ~StoppedChild() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

rendezvous::StacksReport a_hang() {
  const std::vector<std::string> waits{
      "Current thread 0x1 (most recent call first):",
      R"(  File "/usr/lib/python3.11/site-packages/torch/d.py", line 1 in all_reduce)",
      R"(  File "/home/ada/train.py", line 88 in step)"};
  const std::vector<std::string> loads{"Current thread 0x1 (most recent call first):",
                                       R"(  File "/home/ada/data.py", line 41 in load)"};
  return {{{{{0, 1, 2}, waits}, {{3}, loads}}, {}, {"/tmp/dump"}}, true, 31s};
}

}  // namespace

TEST_CASE("hang watch: without --hang-timeout it costs no wake-up until the pace is known") {
  WatchedNode node(0s);
  CHECK(node.clock.armed() == 0);
  node.watch->heard(0, workers::StepDone{1});
  node.clock.advance(1h);
  CHECK(node.reports.empty());
  CHECK(node.clock.armed() == 0);
}

TEST_CASE("hang watch: without --hang-timeout a hang is told and booked, and nothing is done") {
  WatchedNode node(spec_of(0s, spec::OnHang::Restart));
  GoodputAccount account(node.clock, node.clock.now(), false);
  account.on(moment::PhaseChanged{Phase::Running, node.clock.now()});
  for (int step = 0; step < 100; ++step) {
    node.clock.advance(1s);
    account.step(step);
    node.watch->heard(0, workers::StepDone{step});
  }
  CHECK(node.told() == std::vector{ProgressKind::Moves});
  node.watch->heard(0, workers::PhaseEntered{"eval"});  // the next look tells of it
  node.watch->heard(0, workers::PhaseEntered{"train"});
  CHECK(node.told().size() == 1);
  node.clock.advance(hangs::PaceLimit::kShortest - 1s);
  CHECK(node.told().size() == 1);
  node.clock.advance(1s);
  REQUIRE(node.told() == std::vector{ProgressKind::Moves, ProgressKind::Stands});
  node.watch->hangs(a_hang());
  REQUIRE(node.heard.size() == 1);
  node.heard[0].standing = std::get<rendezvous::ProgressReport>(node.reports.back()).standing;
  account.on(HangSeen{std::make_shared<JobHang>(node.heard[0])});
  node.clock.advance(1min);
  CHECK(account.summary().of(goodput::Bucket::Hang) == 11min);
  CHECK(node.failures().empty());
  node.watch->heard(0, workers::StepDone{100});  // at once
  CHECK(node.told().back() == ProgressKind::Moves);
}

TEST_CASE("hang watch: whatever a worker reports is progress, as long as it reports no steps") {
  WatchedNode node(30s);
  const std::vector<workers::Message> said{
      workers::MetricSample{"loss", 0.5, "worker"}, workers::WorkerEvent{"epoch", {}},
      workers::TimerSet{7, "train.py#57", 60.0}, workers::TimerSet{7, "train.py#57"}};
  for (int i = 0; i < 20; ++i) {
    node.clock.advance(29s);
    node.watch->heard(1, said[static_cast<std::size_t>(i) % said.size()]);
  }
  CHECK(node.told() == std::vector{ProgressKind::Moves});
  SUBCASE("but not what the package counts by itself") {
    workers::GoodputEntries counts{.job = "", .entries = {}, .lost = 0};
    counts.entries.push_back({{.kind = goodput::MeasurementKind::SliceCounts}, "", {}});
    node.clock.advance(29s);
    node.watch->heard(1, counts);
  }
  SUBCASE("which is none where steps are reported") {
    node.watch->heard(0, workers::StepDone{1});
    node.clock.advance(29s);
    for (const auto& one : said) node.watch->heard(1, one);
  }
  node.clock.advance(1s);
  CHECK(node.told().back() == ProgressKind::Stands);
}

TEST_CASE("hang watch: an excuse that has ended excuses no more, and what follows is a hang") {
  WatchedNode node(30s, spec::OnHang::Restart);
  node.watch->heard(0, workers::PhaseEntered{"eval", 5min});
  node.watch->heard(1, workers::PhaseEntered{"eval", 6min});
  node.clock.advance(6min - 1s);
  CHECK(node.told().back() == ProgressKind::Excused);
  node.clock.advance(1s);
  CHECK(node.told().back() == ProgressKind::Stands);
  node.watch->heard(1, workers::MetricSample{"loss", 0.5, "worker"});
  CHECK(node.told().back() == ProgressKind::Moves);
  node.stand();
  node.watch->hangs(a_hang());
  REQUIRE(node.failures().size() == 1);
  const auto text = node.failures()[0].cause.text;
  CHECK(text.starts_with("rank 3 hangs in load (data.py:41) while "));
  CHECK(text.contains("; rank 0 has been in the phase 'eval' since "));
  CHECK(text.ends_with(", for 6 min 31 s"));
}

TEST_CASE("hang watch: what is no progress does not say that workers go on") {
  WatchedNode node(30s, spec::OnHang::Restart);
  node.watch->heard(0, workers::StepDone{1});
  node.stand();
  node.watch->heard(0, workers::MetricSample{"gpu.temperature", 60, "machine"});
  node.watch->hangs(a_hang());
  CHECK(node.failures().size() == 1);
  CHECK(node.told().back() == ProgressKind::Stands);
}

TEST_CASE("hang watch: the rendezvous hears each change once, and at once when the workers go on") {
  WatchedNode node(30s);
  CHECK(node.told() == std::vector{ProgressKind::Moves});
  node.clock.advance(20s);
  node.active = node.clock.now();  // a line of output
  node.clock.advance(29s);         // from then on, not from the look that saw it
  CHECK(node.told().size() == 1);
  node.clock.advance(1s);
  CHECK(node.told() == std::vector{ProgressKind::Moves, ProgressKind::Stands});
  node.clock.advance(1h);
  CHECK(node.told().size() == 2);
  node.watch->heard(1, workers::StepDone{1});
  CHECK(node.told() == std::vector{ProgressKind::Moves, ProgressKind::Stands, ProgressKind::Moves});
  node.watch->heard(1, workers::PhaseEntered{"eval"});
  CHECK(node.told().back() == ProgressKind::Excused);
  node.watch->on(moment::PhaseChanged{Phase::Stopping, node.clock.now()});
  node.clock.advance(1h);
  CHECK(node.told().size() == 4);
  CHECK(node.clock.armed() == 0);
}

TEST_CASE("hang watch: what a script says for the account of goodput may take its time, too") {
  using Entry = goodput::MeasurementKind;
  WatchedNode node(30s);
  const auto say = [&](Entry kind, bool by_hooks = false, const std::string& name = "") {
    workers::GoodputEntries said{.job = "", .entries = {}, .lost = 0, .by_hooks = by_hooks};
    said.entries.push_back({{.kind = kind}, name, {}});
    node.watch->heard(0, said);
  };
  const auto ends = [&] {
    node.clock.advance(29s);
    CHECK(node.told().back() == ProgressKind::Moves);
    node.clock.advance(1s);
    CHECK(node.told().back() == ProgressKind::Stands);
  };
  SUBCASE("in what has a begin and an end") {
    for (const auto& [begin, end] :
         std::vector<std::pair<Entry, Entry>>{{Entry::SaveStart, Entry::SaveEnd},
                                              {Entry::RestoreStart, Entry::RestoreEnd},
                                              {Entry::CustomStart, Entry::CustomEnd},
                                              {Entry::PreparationStart, Entry::PreparationEnd},
                                              {Entry::ElasticWaitStart, Entry::ElasticWaitEnd}}) {
      say(begin, false, "x");
      node.clock.advance(9min);
      CHECK(node.told().back() == ProgressKind::Excused);
      say(end, false, "x");
      ends();
    }
  }
  SUBCASE("but not in a wait for data, nor in what hooks see before the first step") {
    say(Entry::DataLoadingStart);
    ends();
    for (const Entry begin : {Entry::PreparationStart, Entry::AcceleratorInitStart}) {
      say(begin, true);
      ends();
    }
    say(Entry::CustomStart, true, "unexplained");  // a part of each step
    ends();
  }
  SUBCASE("and counts from when it was, not from when it was heard of") {
    workers::GoodputEntries said{.job = "", .entries = {}, .lost = 0, .by_hooks = true};
    said.entries.push_back({{.kind = Entry::StepEnd}, "", {}});
    said.entries.back().entry.time = to_seconds(node.clock.wall());
    node.clock.advance(500ms);
    node.watch->heard(0, said);
    node.clock.advance(29s);
    CHECK(node.told().back() == ProgressKind::Moves);
    node.clock.advance(500ms);
    CHECK(node.told().back() == ProgressKind::Stands);
  }
  SUBCASE("another custom event goes on") {
    say(Entry::CustomStart, false, "EVAL");
    say(Entry::CustomEnd, false, "EXPORT");
    node.clock.advance(29min);
    CHECK(node.told().back() == ProgressKind::Excused);
  }
  SUBCASE("not for ever, if its end is lost") {
    say(Entry::SaveStart);
    node.watch->heard(0, workers::GoodputEntries{.job = "", .entries = {}, .lost = 3});
    ends();
  }
  SUBCASE("its steps leave output as progress") {
    say(Entry::StepEnd, true);
    for (int i = 0; i < 10; ++i) {
      node.clock.advance(20s);
      node.active = node.clock.now();
    }
    CHECK(node.told() == std::vector{ProgressKind::Moves});
  }
}

TEST_CASE("hang watch: output just before a pause of everything is not forgotten") {
  WatchedNode node(30s);
  node.clock.advance(20s);
  node.active = node.clock.now();
  node.clock.pause(1h);
  node.clock.advance(15s);
  CHECK(node.told().size() == 1);
}

TEST_CASE("hang watch: an excuse ends with the worker that has it") {
  WatchedNode node(30s);
  node.watch->heard(0, workers::PhaseEntered{"eval"});
  node.clock.advance(20min);
  CHECK(node.told().back() == ProgressKind::Excused);
  SUBCASE("as it ends") {
    node.ended = true;
  }
  SUBCASE("as its script returns, and it waits for others") {
    node.watch->heard(0, workers::Returned{});
  }
  node.clock.advance(15s);
  CHECK(node.told().back() == ProgressKind::Moves);
  node.clock.advance(30s);
  CHECK(node.told().back() == ProgressKind::Stands);
}

TEST_CASE("hang watch: a node that has no opinion any more takes its excuse back") {
  spec::JobSpec spec;
  spec.hang_auto = true;
  WatchedNode node(spec);
  CHECK(node.told().empty());
  node.watch->heard(0, workers::StepDone{1});
  CHECK(node.told().empty());
  node.watch->heard(0, workers::PhaseEntered{"eval"});
  CHECK(node.told() == std::vector{ProgressKind::Excused});
  node.watch->heard(0, workers::PhaseEntered{"train"});
  CHECK(node.told() == std::vector{ProgressKind::Excused, ProgressKind::Moves});
  // Which hinders nobody.
  CHECK_FALSE(std::get<rendezvous::ProgressReport>(node.reports.back()).what.by_steps);
  node.watch->heard(0, workers::StepDone{2});
  CHECK(node.told().size() == 2);
}

TEST_CASE("hang watch: a process that was stopped as a whole was no hang") {
  WatchedNode node(30s);
  node.clock.advance(10s);
  node.clock.pause(1h);
  node.clock.advance(15s);
  CHECK(node.told().size() == 1);
  node.clock.advance(15s);
  CHECK(node.told().back() == ProgressKind::Stands);
}

TEST_CASE("hang watch: a stopped process that the worker does not wait for hides no hang") {
  const StoppedChild helper([] {});
  WatchedNode node(30s);
  node.stand();
  CHECK(node.told().back() == ProgressKind::Stands);
}

TEST_CASE("hang watch: the time of a worker that debugs its child does not count") {
  const StoppedChild debugged([] { ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); });
  WatchedNode node(30s);
  node.stand();
  CHECK(node.told().back() != ProgressKind::Stands);
  REQUIRE_MESSAGE(node.held.size() == 1, "observers and the coordinator know of it");
  CHECK(node.held.at(0).starts_with("waiting for "));
  CHECK(std::get<rendezvous::ProgressReport>(node.reports.back()).held == node.held);
  node.watch->on(moment::PhaseChanged{Phase::Stopping, node.clock.now()});
  CHECK(node.held.empty());
}

TEST_CASE("hang watch: a hang is told to observers, and to the rendezvous as --on-hang says") {
  WatchedNode report(30s);
  report.stand();
  report.watch->hangs(a_hang());
  REQUIRE(report.heard.size() == 1);
  CHECK(report.watch->all().size() == 1);
  CHECK(report.failures().empty());

  WatchedNode restart(30s, spec::OnHang::Restart);
  restart.stand();
  restart.watch->hangs(a_hang());
  REQUIRE(restart.failures().size() == 1);
  const auto cause = restart.failures()[0].cause;
  CHECK(restart.failures()[0].round == 4);
  CHECK(cause.text ==
        "rank 3 hangs in load (data.py:41) while ranks 0-2 wait in all_reduce (train.py:88)");
  CHECK(cause.node == "n1");
  CHECK(cause.rank == 3);
  CHECK(cause.local_rank == 1);
  CHECK_FALSE(cause.final);
  CHECK(restart.failures()[0].goes_on);  // nobody stops it here

  WatchedNode fail(30s, spec::OnHang::Fail);
  fail.stand();
  fail.watch->hangs(a_hang());
  CHECK(fail.failures().at(0).cause.final);

  WatchedNode other(30s, spec::OnHang::Fail, 1);  // one says it for all
  other.stand();
  auto hang = a_hang();
  other.watch->hangs(hang);
  CHECK(other.failures().empty());
  hang.speaker = 2;
  other.watch->hangs(hang);
  CHECK(other.failures().at(0).cause.node == "n1");
  fail.watch->hangs(hang);
  CHECK(fail.failures().size() == 1);
}

TEST_CASE("hang watch: a hang that is over when its stacks are there is none") {
  WatchedNode node(30s, spec::OnHang::Restart);
  node.stand();
  const auto known = node.told().size();
  SUBCASE("by a step") {
    node.watch->heard(1, workers::StepDone{1});
  }
  SUBCASE("by a line of output since the last look") {
    node.active = node.clock.now();
  }
  SUBCASE("by a phase that takes its time") {
    node.watch->heard(0, workers::PhaseEntered{"eval"});
  }
  SUBCASE("as the workers have succeeded") {
    node.watch->on(moment::PhaseChanged{Phase::Stopping, {}});
  }
  node.watch->hangs(a_hang());
  CHECK(node.failures().empty());
  CHECK(node.heard.empty());
  CHECK(node.watch->all().empty());
  CHECK(node.told().size() <= known + 1);
}

TEST_CASE("hang watch: asked to look, it tells at once that the workers go on") {
  WatchedNode node(30s);
  node.stand();
  REQUIRE(node.told().back() == ProgressKind::Stands);
  node.active = node.clock.now();
  node.watch->look_now();
  CHECK(node.told().back() == ProgressKind::Moves);
  WatchedNode off(0s);
  off.watch->look_now();
  CHECK(off.clock.armed() == 0);
}

TEST_CASE("hang watch: of a job that counts steps a node without hears, too, but does not act") {
  WatchedNode node(30s, spec::OnHang::Fail, 1);
  auto hang = a_hang();
  node.watch->hangs(hang);
  CHECK(node.heard.size() == 1);
  hang.speaker = 2;
  node.watch->hangs(hang);
  CHECK(node.failures().empty());
}

TEST_CASE("hang watch: hangs are counted among the instruments of the agent") {
  WatchedNode node(30s);
  auto& registry = telemetry::process_registry();
  const auto before = registry.collect("elastrun.hang.*").points;
  node.stand();
  node.watch->hangs(a_hang());
  const auto points = registry.collect("elastrun.hang.*").points;
  REQUIRE(points.size() == 1);
  CHECK(points[0].spec->name == "elastrun.hang.count");
  CHECK(points[0].spec->scope == "elastrun.agent");
  const auto count = [](const auto& all) { return std::get<std::int64_t>(all.at(0).value); };
  CHECK(count(points) == count(before) + 1);
}

TEST_CASE("hang watch: the verdict of an attempt that hung has where its workers stood") {
  JobResult result;
  result.attempts.resize(1);
  CHECK(hang_verdict(result, {}).empty());
  result.hangs.push_back({0, WallTime(1h), 31s, a_hang().stacks});
  const auto text = hang_verdict(result, {});
  CHECK(hang_verdict(result, hangs::hang_text(result.hangs.back().stacks)).size() < text.size());
  CHECK(text.contains(" no worker had made progress for 31.0 s: rank 3 hangs in load"));
  CHECK(text.contains("\n    rank 3 in load (data.py:41)\n      | Current thread 0x1"));
  CHECK(text.contains("\n    dump of the flight recorder: /tmp/dump\n"));
  result.attempts.resize(2);  // the next one did not
  CHECK(hang_verdict(result, {}).empty());
}

namespace {

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

TEST_CASE("hung stacks: those of Python are told though the kernel's do not come in time") {
  static const int memory = ::memfd_create("stacks", 0);
  const int signal = SIGRTMIN + 2;
  const StoppedChild worker([] {
    struct sigaction action {};
    action.sa_handler = [](int) { (void)!::write(memory, "in step\n", 8); };
    ::sigaction(SIGRTMIN + 2, &action, nullptr);
  });
  ::kill(worker.pid, SIGCONT);
  test::FakeRun run;
  StackOffers offers;
  offers.heard(worker.pid, {signal, memory, 0});
  HungStacks stacks(run, offers);
  std::optional<HungStacks::Stacks> told;
  stacks.take({worker.pid}, [&](HungStacks::Stacks found) { told = std::move(found); });
  run.io.run_one();  // the first answer; no other one comes
  run.time.advance(HungStacks::kLimit);
  REQUIRE(told);
  CHECK((*told)[worker.pid] == std::vector<std::string>{"in step"});
}

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
