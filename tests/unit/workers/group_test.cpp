// SPDX-License-Identifier: Apache-2.0
#include "workers/group.hpp"

#include "core/log.hpp"
#include "support/fake_clock.hpp"
#include "support/fake_files.hpp"
#include "support/fake_launcher.hpp"
#include "support/fake_processes.hpp"

#include <algorithm>
#include <csignal>
#include <deque>
#include <doctest/doctest.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::workers {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using Event = Group::Event;
using Events = std::vector<Event>;
using Found = ErrorFileReader::Found;
using Paths = std::vector<std::string>;

/// Streams whose draining a test finishes by hand.
struct FakeStreams final : logs::WorkerStreams {
  struct State {
    bool started = false;
    std::function<void()> on_drained;
    std::vector<std::string> in_the_pipe, lines;
    bool knows_all_lines = true;
    std::optional<TimePoint> traceback_at;
  };
  explicit FakeStreams(std::shared_ptr<State> shared) : state(std::move(shared)) {}
  int stdout_fd() const override { return 41; }
  int stderr_fd() const override { return 42; }
  void started() override { state->started = true; }
  void catch_up() override {
    auto& read = state->in_the_pipe;
    state->lines.insert(state->lines.end(), read.begin(), read.end());
    read.clear();
  }
  void drain(bool, std::function<void()> done) override { state->on_drained = std::move(done); }
  std::vector<std::string> last_lines(std::size_t count) const override {
    const auto& lines = state->lines;
    return {lines.end() - static_cast<std::ptrdiff_t>(std::min(count, lines.size())), lines.end()};
  }
  bool mixes_streams() const override { return false; }
  bool knows_all_lines() const override { return state->knows_all_lines; }
  std::optional<TimePoint> seen_at(std::string_view text) const override {
    return text.starts_with("Traceback") ? state->traceback_at : std::nullopt;
  }
  std::string stdout_path() const override { return "/log/stdout.log"; }
  std::string stderr_path() const override { return "/log/stderr.log"; }
  std::shared_ptr<State> state;
};

/// A group with everything around it.
struct Stage final : Group::Owner {
  boost::asio::io_context loop;
  test::FakeClock clock;
  test::FakeLauncher launcher{clock};
  test::FakeProcesses processes;
  std::vector<Event> events;
  int& sweeps = processes.sweeps;
  process::KillResult& escaped = processes.escaped;
  process::ProcessTable& leftovers = processes.left;
  std::vector<std::pair<pid_t, int>>& told = processes.told;
  std::vector<std::shared_ptr<FakeStreams::State>> streams;
  Group group;

  /// With so many workers, if any.
  explicit Stage(int workers = 0, bool with_streams = false, const std::string& error_file = {},
                 ErrorFileReader::Read read = {}, Group::Limits limits = {})
      : group(loop, clock, launcher, processes, *this, limits, std::move(read)) {
    if (workers == 0) return;
    REQUIRE(group.start(plans(workers, with_streams, error_file)).has_value());
  }
  void group_event(Event event) override { events.push_back(event); }
  void all_returned() override {}

  /// In the session of the first worker, if that has started.
  static process::ProcessEntry process_of(pid_t pid, pid_t group) {
    process::ProcessEntry entry;
    entry.pid = pid;
    entry.parent = 1;
    entry.group = group;
    entry.session = 1000;
    return entry;
  }

  std::vector<WorkerPlan> plans(int count, bool with_streams = false,
                                const std::string& error_file = {}) {
    std::vector<WorkerPlan> all;
    for (int i = 0; i < count; ++i) {
      WorkerPlan plan;
      plan.rank = 10 + i;
      plan.local_rank = i;
      plan.request.argv = {"worker"};
      plan.error_file = error_file;
      if (with_streams) {
        streams.push_back(std::make_shared<FakeStreams::State>());
        plan.streams = std::make_unique<FakeStreams>(streams.back());
      }
      all.push_back(std::move(plan));
    }
    return all;
  }
  void check_gone() { CHECK(happened() == Events{Event::Gone}); }
  std::vector<Event> happened() {
    loop.restart();
    loop.poll();
    return std::exchange(events, {});
  }
};

TEST_CASE("group: all that end with 0 are a success, told once") {
  Stage stage(2);
  stage.launcher.end(0, ExitStatus::exited(0));
  CHECK(stage.happened().empty());
  stage.launcher.end(1, ExitStatus::exited(0));
  CHECK(stage.happened() == Events{Event::AllSucceeded});
  stage.group.finish(0s);
  stage.check_gone();
  CHECK(stage.group.failures().empty());
}

TEST_CASE("group: a failure is told at once, the others still run") {
  Stage stage(3);
  stage.launcher.end(1, ExitStatus::exited(3));
  CHECK(stage.happened() == Events{Event::WorkerFailed});
  CHECK(stage.group.any_running());
  REQUIRE(stage.group.failures().size() == 1);
  CHECK(stage.group.failures()[0].rank == 11);
  CHECK_FALSE(stage.group.failures()[0].stopped_by_us);
}

TEST_CASE("group: the exception of a long traceback is known, and its last lines are quoted") {
  for (const int frames : {10, 400}) {
    for (const int more : {0, 100}) {
      CAPTURE(frames);
      CAPTURE(more);
      Stage stage(1, true);
      auto& lines = stage.streams[0]->lines;
      lines.emplace_back("Traceback (most recent call last):");
      for (int i = 0; i < frames; ++i) lines.emplace_back("    deeper()");
      lines.emplace_back("ValueError: boom");
      for (int i = 0; i < more; ++i) lines.push_back("of its message " + std::to_string(i));
      const auto last = lines.back();
      stage.launcher.end(0, ExitStatus::exited(1));
      const auto failures = stage.group.failures();
      REQUIRE(failures.size() == 1);
      CHECK(failures[0].exception == PythonException{"ValueError", "boom"});
      CHECK(failures[0].last_lines.size() <= 40);
      CHECK(failures[0].last_lines.back() == last);
    }
  }
}

TEST_CASE("group: frames without a header are a traceback only where it was forgotten") {
  const auto exception_of = [](const std::vector<std::string>& lines, bool all) {
    Stage stage(1, true);
    stage.streams[0]->lines = lines;
    stage.streams[0]->knows_all_lines = all;
    stage.launcher.end(0, ExitStatus::exited(1));
    REQUIRE(stage.group.failures().size() == 1);
    return stage.group.failures()[0].exception;
  };
  std::vector<std::string> lines{"  File \"a.py\", line 1, in f", "    f()", "KeyError: 1"};
  const PythonException raised{"KeyError", "1"};
  CHECK_FALSE(exception_of(lines, true));
  CHECK(exception_of(lines, false) == raised);
  lines.insert(lines.begin(), 5000, "    f()");
  CHECK_MESSAGE(exception_of(lines, true) == raised, "there are more lines than are searched");
}

TEST_CASE("group: error files that cannot be read delay a failure by a bound, and no stop") {
  std::function<void(ErrorFileReader::Found)> answer;
  Stage stage(0, false, {},
              [&](const std::vector<std::string>&, auto then) { answer = std::move(then); });
  auto plans = stage.plans(2);
  for (auto& plan : plans) plan.error_file = "/frozen/" + std::to_string(plan.rank);
  REQUIRE(stage.group.start(std::move(plans)).has_value());
  stage.launcher.end(1, ExitStatus::exited(3));
  CHECK(stage.happened().empty());
  stage.clock.advance(ErrorFileReader::kTimeLimit);
  CHECK(stage.happened() == Events{Event::WorkerFailed});
  CHECK_FALSE(stage.group.failures()[0].error_file);
  stage.group.stop(SIGTERM, 30s);
  stage.launcher.obey();
  stage.check_gone();
  answer({parse_error_file("own"), parse_error_file("late")});
  CHECK(stage.group.failures()[1].error_file->raw == "late");
}

TEST_CASE("group: a stop does not wait for what a failure has left") {
  Stage stage(2, false, "/frozen/error.json", [](const std::vector<std::string>&, auto) {});
  stage.launcher.end(0, ExitStatus::exited(3));
  stage.group.stop(SIGTERM, 30s);
  CHECK(stage.launcher[1].signals == std::vector{SIGTERM});
  stage.launcher.obey();
  CHECK(stage.happened().empty());
  stage.clock.advance(ErrorFileReader::kTimeLimit);
  stage.check_gone();  // the failure is part of the end by now
}

TEST_CASE("group: stop asks all, and who ends then was stopped by us") {
  Stage stage(3);
  stage.launcher.end(1, ExitStatus::exited(3));
  stage.happened();
  stage.group.stop(SIGTERM, 30s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  stage.launcher.obey();
  stage.check_gone();
  const auto failures = stage.group.failures();
  REQUIRE(failures.size() == 3);
  CHECK(std::ranges::count_if(failures, &Failure::stopped_by_us) == 2);
}

TEST_CASE("group: who is deaf to the signal is killed when the grace is over") {
  Stage stage(2);
  stage.launcher[1].deaf = true;
  stage.group.stop(SIGINT, 5s);
  stage.launcher.obey();
  stage.clock.advance(4999ms);
  CHECK(stage.happened().empty());
  CHECK(stage.launcher[1].signals == std::vector{SIGINT});
  stage.clock.advance(1ms);
  CHECK(stage.launcher[1].signals == std::vector{SIGINT, SIGKILL});
  stage.launcher.obey();
  stage.check_gone();
  CHECK(stage.group.workers()[1].exit->status == ExitStatus::signaled(SIGKILL));
}

TEST_CASE(
    "group: a pause of the whole machine eats no grace, unless other nodes count on its end") {
  for (const bool counts : {false, true}) {
    CAPTURE(counts);
    Group::Limits limits;
    limits.with_pauses = counts;
    Stage stage(2, false, {}, {}, limits);
    stage.launcher[0].deaf = stage.launcher[1].deaf = true;
    stage.launcher[1].leaves_child = stage.launcher[1].child_deaf = true;
    stage.group.stop(SIGTERM, 8s);
    stage.clock.advance(1s);
    stage.clock.pause(9s);
    stage.clock.advance(6s);
    CHECK((stage.launcher[0].signals.back() == SIGKILL) == counts);
    if (counts) continue;
    stage.launcher.end(0, ExitStatus::exited(0));
    stage.launcher.end(1, ExitStatus::exited(0));
    stage.clock.pause(9s);
    stage.clock.advance(500ms);
    CHECK_MESSAGE(stage.launcher[1].signals.back() == SIGTERM, "what they have left has it, too");
    stage.clock.advance(1s);
    CHECK(stage.launcher[1].signals.back() == SIGKILL);
  }
}

TEST_CASE("group: a pause eats nothing of the time for SIGKILL") {
  Stage stage(1);
  stage.group.kill();
  stage.clock.pause(1min);
  stage.clock.advance(9s);
  CHECK(stage.happened().empty());
  stage.launcher.end(0, ExitStatus::signaled(SIGKILL));
  stage.check_gone();
  CHECK_FALSE(stage.group.workers()[0].abandoned);
}

TEST_CASE("group: a second stop may shorten the grace, never lengthen it, and asks nobody again") {
  Stage stage(1);
  stage.launcher[0].deaf = true;
  stage.group.stop(SIGTERM, 30s);
  stage.group.stop(SIGINT, 1s);
  stage.group.stop(SIGTERM, 60s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  stage.clock.advance(1s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM, SIGKILL});
}

TEST_CASE("group: a trainer below a script that obeys has the whole grace") {
  Stage stage(2);
  stage.launcher[0].leaves_child = stage.launcher[0].child_deaf = true;
  stage.group.stop(SIGTERM, 30s);
  stage.launcher.obey();
  stage.clock.advance(29'999ms);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  CHECK(stage.happened().empty());
  SUBCASE("which it uses") {
    stage.launcher[0].leaves_child = false;
    stage.group.look_again();
    CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  }
  SUBCASE("and no more") {
    stage.clock.advance(1ms);
    CHECK(stage.launcher[0].signals == std::vector{SIGTERM, SIGKILL});
    stage.clock.advance(20ms);
  }
  stage.check_gone();
}

TEST_CASE("group: what has left the groups is asked too, and has the rest of the grace") {
  Stage stage(1);
  stage.group.stop(SIGTERM, 30s);
  stage.clock.advance(10s);
  stage.processes.all = stage.leftovers = {Stage::process_of(77, 77)};
  stage.launcher.obey();
  CHECK(stage.told == std::vector{std::pair{77, SIGTERM}});
  stage.clock.advance(19s);
  CHECK(stage.sweeps == 0);
  CHECK(stage.told.size() == 1);
  SUBCASE("which it uses") {
    stage.leftovers.clear();
    stage.group.look_again();
  }
  SUBCASE("and no more") {
    stage.clock.advance(1s);
  }
  CHECK(stage.sweeps == 1);
  stage.check_gone();
}

TEST_CASE("group: what is apart is asked once, if a worker waits for it") {
  Stage stage(1);
  stage.processes.all = {Stage::process_of(77, 77)};
  stage.group.stop(SIGTERM, 30s);
  CHECK(stage.told.empty());
  stage.clock.advance(1s);
  CHECK(stage.told == std::vector{std::pair{77, SIGTERM}});
  stage.group.stop(SIGTERM, 30s);
  stage.clock.advance(10s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  stage.leftovers = stage.processes.all;
  stage.launcher.obey();
  stage.clock.advance(1s);
  CHECK(stage.told.size() == 1);
  stage.clock.advance(17s);
  CHECK(stage.sweeps == 0);
  stage.clock.advance(1s);
  CHECK(stage.sweeps == 1);
  stage.check_gone();
}

TEST_CASE("group: what a worker has begun because of the stop is not asked to end") {
  Stage stage(1);
  stage.group.stop(SIGTERM, 30s);
  stage.processes.all = {Stage::process_of(77, 77)};
  stage.processes.all[0].start_time = process::start_time_now() + 100;
  stage.clock.advance(10s);
  stage.leftovers = stage.processes.all;
  stage.launcher.obey();
  stage.clock.advance(19s);
  CHECK(stage.told.empty());
  CHECK(stage.sweeps == 0);
  stage.clock.advance(1s);
  CHECK(stage.sweeps == 1);
  stage.check_gone();
}

TEST_CASE("group: workers that end at once cost one look at all processes") {
  Stage stage(2);
  stage.group.stop(SIGTERM, 30s);
  stage.launcher.obey();
  stage.clock.advance(1s);
  CHECK(stage.processes.looks == 1);
  stage.check_gone();
}

TEST_CASE("group: whoever insists is not kept waiting by what workers have left") {
  Stage stage(1);
  stage.launcher[0].leaves_child = stage.launcher[0].child_deaf = true;
  stage.group.stop(SIGINT, 30s);
  stage.launcher.obey();
  stage.clock.advance(1s);
  stage.group.kill();
  CHECK(stage.launcher[0].signals == std::vector{SIGINT, SIGKILL});
  stage.check_gone();
}

TEST_CASE("group: no grace at all kills at once") {
  Stage stage(1);
  stage.launcher[0].deaf = true;
  stage.group.stop(SIGTERM, 0s);
  stage.clock.advance(0s);
  stage.launcher.obey();
  stage.check_gone();
}

TEST_CASE("group: who does not even end by SIGKILL is named and left behind") {
  Stage stage(2);
  stage.group.kill();
  stage.launcher.end(0, ExitStatus::signaled(SIGKILL));
  stage.clock.advance(9s);
  CHECK(stage.happened().empty());
  stage.clock.advance(1s);
  stage.check_gone();
  CHECK(stage.group.workers()[1].abandoned);
  CHECK_FALSE(stage.group.workers()[0].abandoned);
}

TEST_CASE("group: nobody waits for a worker that runs as another user") {
  Stage stage(2);
  stage.launcher[1].foreign = true;
  stage.group.stop(SIGTERM, 30s);
  CHECK_MESSAGE(stage.happened().empty(), "the other one has its grace");
  SUBCASE("which ends the wait") {
    stage.launcher.obey();
    stage.check_gone();
    CHECK(stage.group.workers()[1].abandoned);
  }
  SUBCASE("it ends by itself meanwhile") {
    stage.launcher.end(1, ExitStatus::exited(0));
    stage.launcher.obey();
    stage.check_gone();
    CHECK_FALSE(stage.group.workers()[1].abandoned);
  }
  CHECK_FALSE(stage.group.workers()[0].abandoned);
  CHECK(stage.clock.armed() == 0);
}

TEST_CASE(
    "group: what left the groups and cannot be killed is left when SIGKILL has had its time") {
  Stage stage(1);
  stage.escaped.killed = 1;
  stage.escaped.alive.resize(1);
  stage.launcher.end(0, ExitStatus::exited(0));
  CHECK(stage.happened() == Events{Event::AllSucceeded});
  stage.group.finish(0s);
  stage.clock.advance(9s);
  CHECK(stage.happened().empty());
  CHECK(stage.sweeps > 10);  // the loop was not held all the time
  SUBCASE("it never ends") {
    stage.clock.advance(1s);
  }
  SUBCASE("it ends late") {
    stage.escaped = {};
    stage.clock.advance(20ms);
  }
  stage.check_gone();
  CHECK(stage.clock.armed() == 0);
}

TEST_CASE("group: all that SIGKILL is waited for shares one bound") {
  Stage stage(2);
  stage.escaped.alive.resize(1);
  stage.launcher[0].deaf = stage.launcher[1].deaf = true;
  stage.group.stop(SIGTERM, 1s);
  stage.clock.advance(1s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM, SIGKILL});
  stage.clock.advance(4s);
  stage.group.kill();  // a second demand lengthens nothing
  stage.launcher.end(0, ExitStatus::signaled(SIGKILL));
  SUBCASE("a worker stays, too") {}
  SUBCASE("what it left in its group stays, too") {
    stage.launcher[1].leaves_child = true;
    stage.launcher.end(1, ExitStatus::signaled(SIGKILL));
  }
  stage.clock.advance(5900ms);
  CHECK(stage.happened().empty());
  stage.clock.advance(200ms);
  stage.check_gone();
}

TEST_CASE("group: what ended workers left in their groups goes at the end of the attempt") {
  Stage stage(1);
  stage.launcher[0].leaves_child = true;
  stage.launcher.end(0, ExitStatus::exited(0));
  CHECK(stage.happened() == Events{Event::AllSucceeded});
  CHECK(stage.launcher[0].signals.empty());
  stage.group.finish(0s);
  CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
  stage.clock.advance(1ms);
  stage.check_gone();
}

TEST_CASE("group: what a successful worker left may go on, then is asked, then killed") {
  Stage stage(1);
  stage.launcher[0].leaves_child = stage.launcher[0].child_deaf = true;
  stage.launcher.end(0, ExitStatus::exited(0));
  CHECK(stage.happened() == Events{Event::AllSucceeded});
  stage.group.finish(30s);
  stage.clock.advance(29'999ms);
  CHECK(stage.launcher[0].signals.empty());
  SUBCASE("it ends by itself") {
    stage.launcher[0].leaves_child = false;
    stage.group.look_again();
    CHECK(stage.launcher[0].signals.empty());
  }
  SUBCASE("it never ends") {
    stage.clock.advance(1ms);
    CHECK(stage.launcher[0].signals == std::vector{SIGTERM});
    stage.clock.advance(499ms);
    CHECK(stage.happened().empty());
    stage.clock.advance(30ms);
    CHECK(stage.launcher[0].signals == std::vector{SIGTERM, SIGKILL});
  }
  SUBCASE("a signal comes meanwhile") {
    stage.group.stop(SIGINT, 5s);
    CHECK(stage.launcher[0].signals == std::vector{SIGINT});
    stage.clock.advance(1ms);
    CHECK(stage.launcher[0].signals == std::vector{SIGINT, SIGKILL});
    stage.clock.advance(20ms);
  }
  stage.check_gone();
}

TEST_CASE("group: a start that fails takes back those before it") {
  Stage stage;
  stage.launcher.fails_at = 2;
  const auto started = stage.group.start(stage.plans(4));
  REQUIRE_FALSE(started.has_value());
  CHECK(started.error().code == Code::Spawn);
  CHECK(stage.launcher.size() == 2);
  CHECK(stage.launcher.alive() == 0);
  CHECK(stage.happened().empty());
}

TEST_CASE("group: a failure is told when its last words have been read") {
  Stage stage(2, true);
  CHECK(stage.streams[0]->started);
  CHECK(stage.launcher[0].request.stdout_fd == 41);
  CHECK(stage.launcher[0].request.stderr_fd == 42);
  stage.streams[0]->in_the_pipe = {"Traceback (most recent call last):", "ValueError: boom"};
  stage.launcher.end(0, ExitStatus::exited(1));
  CHECK(stage.happened() == Events{Event::WorkerFailed});
  const auto failures = stage.group.failures();
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].exception == PythonException{"ValueError", "boom"});
  CHECK(failures[0].stderr_path == "/log/stderr.log");
}

TEST_CASE("group: what a worker that has failed leaves behind can write until the group is gone") {
  Stage stage(1, true);
  stage.launcher[0].leaves_child = stage.launcher[0].child_deaf = true;
  stage.launcher.end(0, ExitStatus::exited(4));
  stage.group.stop(SIGTERM, 30s);
  stage.clock.advance(29s);
  CHECK_FALSE(stage.streams[0]->on_drained);
  CHECK(stage.happened() == Events{Event::WorkerFailed, Event::AllEnded});
  stage.clock.advance(2s);
  REQUIRE(stage.streams[0]->on_drained);
  stage.streams[0]->on_drained();
  stage.check_gone();
}

TEST_CASE("group: the group is gone only when all output has been read") {
  Stage stage(2, true);
  stage.group.stop(SIGTERM, 30s);
  stage.launcher.obey();
  CHECK(stage.happened().empty());
  stage.streams[0]->on_drained();
  CHECK(stage.happened().empty());
  stage.streams[1]->on_drained();
  stage.check_gone();
  CHECK(stage.sweeps == 1);
}

TEST_CASE("group: output that nobody takes is given up") {
  Stage stage(1, true);
  stage.group.stop(SIGTERM, 30s);
  stage.launcher.obey();
  stage.clock.advance(5s);
  stage.check_gone();
}

TEST_CASE("group: nothing is told after it has gone from memory") {
  Stage stage;
  {
    Group group(stage.loop, stage.clock, stage.launcher, stage.processes, stage, {});
    REQUIRE(group.start(stage.plans(1)).has_value());
    stage.launcher.end(0, ExitStatus::exited(0));
  }
  CHECK(stage.happened().empty());
  CHECK(stage.clock.armed() == 0);
}

TEST_CASE("group: the error file of a failure is read") {
  const test::FakeFiles files;
  files.add("error.json", "{ broken");
  Stage stage(1, false, files.root() + "/error.json");
  stage.launcher.end(0, ExitStatus::exited(1));
  const auto failures = stage.group.failures();
  REQUIRE(failures.size() == 1);
  REQUIRE(failures[0].error_file.has_value());
  CHECK_FALSE(failures[0].error_file->understood);
}

TEST_CASE("group: an empty error file is one as long as its worker runs, and may write it") {
  const test::FakeFiles files;
  files.add("error.json", "");
  Stage stage(2, false, files.root() + "/error.json");
  stage.launcher.end(0, ExitStatus::exited(1));
  CHECK_FALSE(stage.group.failures()[0].error_file.has_value());
  CHECK(stage.group.as_if_ended_now()[0].error_file.has_value());
}

TEST_CASE("group: of what has left the groups, whoever has a parent there is told by that one") {
  Stage stage(1);
  stage.launcher.end(0, ExitStatus::exited(0));
  stage.leftovers = stage.processes.all = {Stage::process_of(7, 7), Stage::process_of(8, 8)};
  stage.leftovers[1].parent = 7;
  stage.group.finish(0s);
  CHECK(stage.told == std::vector{std::pair{7, SIGTERM}});
  stage.leftovers.erase(stage.leftovers.begin());
  stage.group.look_again();
  CHECK(stage.told == std::vector{std::pair{7, SIGTERM}, std::pair{8, SIGTERM}});
}

TEST_CASE("group: names are command lines, in a number that people read") {
  process::ProcessTable left{Stage::process_of(::getpid(), 1)};
  CHECK(names_of(left).starts_with(std::to_string(::getpid()) + " ("));
  CHECK(names_of(left).contains("unit_workers"));
  for (pid_t pid = 0x3ffffff0; pid < 0x3ffffffa; ++pid) {
    left.push_back(Stage::process_of(pid, 1));
    left.back().name = "p" + std::to_string(pid);
  }
  CHECK(names_of(left).contains("1073741808 (p1073741808)"));
  CHECK(names_of(left).ends_with(" and 3 more"));
}

/// A file system whose answers a test gives by hand, and a reader that has it.
struct Slow {
  struct Asked {
    Paths paths;
    std::function<void(Found)> then;
  };
  test::FakeClock clock;
  std::deque<Asked> asked;
  int told = 0;
  ErrorFileReader reader{clock, [this](Paths paths, std::function<void(Found)> then) {
                           asked.push_back({std::move(paths), std::move(then)});
                         }};

  Slow() {
    log::set_writer([](void*, std::string_view) {}, nullptr);
  }
  ~Slow() { log::set_writer(nullptr, nullptr); }
  void look_at(Paths paths) {
    reader.look_at(std::move(paths), [this] { ++told; });
  }
  void answer(const std::string& text) {
    REQUIRE_FALSE(asked.empty());
    auto one = std::move(asked.front());
    asked.pop_front();
    one.then(Found(one.paths.size(), parse_error_file(text)));
  }
};

}  // namespace

TEST_CASE("error files: what was read is known, and who asked is told") {
  Slow slow;
  slow.look_at({"a", "b"});
  CHECK(slow.told == 0);
  CHECK_FALSE(slow.reader.of("a"));
  slow.answer("text");
  CHECK(slow.told == 1);
  REQUIRE(slow.reader.of("b"));
  CHECK(slow.reader.of("b")->raw == "text");
  CHECK_FALSE(slow.reader.of("c"));
}

TEST_CASE(
    "error files: those who ask meanwhile share the next reading, which has what came since") {
  Slow slow;
  slow.look_at({"a"});
  slow.look_at({"a", "b"});
  slow.look_at({"a", "b", "c"});
  CHECK(slow.asked.size() == 1);
  slow.answer("early");
  CHECK(slow.told == 1);
  REQUIRE(slow.asked.size() == 1);
  CHECK(slow.asked[0].paths == Paths{"a", "b", "c"});
  slow.answer("late");
  CHECK(slow.told == 3);
  CHECK(slow.reader.of("a")->raw == "late");
}

TEST_CASE("error files: one that is not answered for is waited for once, for a bounded time") {
  Slow slow;
  slow.look_at({"a"});
  slow.look_at({"a", "b"});
  slow.clock.advance(ErrorFileReader::kTimeLimit - std::chrono::milliseconds(1));
  CHECK(slow.told == 0);
  slow.clock.advance(std::chrono::milliseconds(1));
  CHECK(slow.told == 2);
  slow.look_at({"c"});
  CHECK(slow.told == 3);
  slow.answer("late");  // is not told again, but known
  CHECK(slow.told == 3);
  CHECK(slow.reader.of("a")->raw == "late");
  slow.look_at({"c"});
  CHECK(slow.told == 3);
  slow.answer("soon");
  CHECK(slow.told == 4);
  CHECK(slow.reader.of("c")->raw == "soon");
}

TEST_CASE("error files: an answer for a reader that has gone reaches nobody") {
  test::FakeClock clock;
  std::function<void(Found)> answer;
  int told = 0;
  {
    ErrorFileReader reader(clock, [&](const Paths&, auto then) { answer = std::move(then); });
    reader.look_at({"a"}, [&] { ++told; });
  }
  answer({parse_error_file("late")});
  clock.advance(2 * ErrorFileReader::kTimeLimit);
  CHECK(told == 0);
}

TEST_CASE("error files: without somebody to read them they are read at once") {
  test::FakeFiles files;
  files.add("one", "text");
  test::FakeClock clock;
  ErrorFileReader reader(clock, {});
  int told = 0;
  reader.look_at({files.root() + "/one", files.root() + "/two"}, [&] { ++told; });
  CHECK(told == 1);
  CHECK(reader.of(files.root() + "/one")->raw == "text");
  CHECK_FALSE(reader.of(files.root() + "/two"));
}

}  // namespace elastrun::workers
