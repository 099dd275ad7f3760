// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/job_account.hpp"
#include "goodput/reports/summary.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

const TimePoint kBegin{1h};
using Stages = std::array<Duration, kRestartStages>;

/// A job that has done steps 0 to `last`, one a second, from its fifth second on.
struct Story {
  explicit Story(std::int64_t last = 9) {
    log.phase(NodePhase::Joining, kBegin);
    log.phase(NodePhase::Starting, kBegin + 1s);
    log.phase(NodePhase::Running, kBegin + 2s);
    now = kBegin + 4s;
    steps(0, last);
  }
  void steps(std::int64_t first, std::int64_t last) {
    for (auto step = first; step <= last; ++step) log.step(step, now += 1s);
  }
  /// A second each: stop, rendezvous, spawn.
  void restart(const std::string& cause = "rank 1 died") {
    log.phase(NodePhase::Stopping, now);
    log.restarting(cause, now);
    log.phase(NodePhase::Joining, now += 1s);
    log.phase(NodePhase::Starting, now += 1s);
    log.phase(NodePhase::Running, now += 1s);
  }
  RestartLog log{kBegin};
  TimePoint now;
};

}  // namespace

TEST_CASE("restart log: the stages of a restart, to the step that was the last before it") {
  Story story;  // step 9 is done after 14 s
  story.now += 500ms;
  story.log.phase(NodePhase::Stopping, story.now);
  CHECK(story.log.noticed_after(200ms) == 200ms);
  story.log.exited_in(700ms);
  story.log.restarting("rank 1 died", story.now);
  story.log.phase(NodePhase::Waiting, story.now + 1s);
  story.log.phase(NodePhase::Joining, story.now + 2s);
  story.log.phase(NodePhase::Starting, story.now + 4s);
  story.log.phase(NodePhase::Running, story.now + 7s);
  story.now += 10s;
  story.steps(6, 20);  // the first of them done 11 s after the failure
  story.log.phase(NodePhase::Barrier, story.now);
  REQUIRE(story.log.paths().size() == 1);
  const auto& path = story.log.paths().front();
  CHECK(path.cause == "rank 1 died");
  CHECK(path.at == 14s - 400ms);
  CHECK(path.stages == Stages{700ms, 200ms, 1s, 3s, 3s, 4s, 3s});
  CHECK(path.last_step == 9);
  CHECK(path.first_step == 6);
  CHECK(path.caught_up);
  CHECK(path.total() == 14s + 900ms);
}

TEST_CASE("restart log: one that resumes where the job stood has nothing to do again") {
  Story story;
  story.restart();
  story.steps(10, 12);
  CHECK(story.log.paths().front().stages == Stages{0s, 0s, 1s, 1s, 1s, 1s, 0s});
  CHECK(story.log.paths().front().caught_up);
}

TEST_CASE("restart log: a failure that comes before it has caught up cuts a restart short") {
  Story story;
  story.restart();
  story.steps(4, 6);  // of 9
  story.restart();
  story.now += 3s;  // dies while it imports
  story.restart();
  story.steps(4, 12);
  const auto& paths = story.log.paths();
  REQUIRE(paths.size() == 3);
  CHECK(paths[0].stages == Stages{0s, 0s, 1s, 1s, 1s, 1s, 2s});
  CHECK_FALSE(paths[0].caught_up);
  CHECK(paths[1].stages == Stages{0s, 0s, 1s, 1s, 1s, 3s, 0s});
  CHECK_FALSE(paths[1].first_step.has_value());
  CHECK(paths[2].last_step == 6);
  CHECK(paths[2].caught_up);
}

TEST_CASE("restart log: without steps what follows the start of the workers is not known") {
  RestartLog log{kBegin};
  log.phase(NodePhase::Running, kBegin + 1s);
  log.phase(NodePhase::Settling, kBegin + 2s);
  log.phase(NodePhase::Stopping, kBegin + 3s);
  log.restarting("", kBegin + 3s);
  log.phase(NodePhase::Joining, kBegin + 4s);
  log.phase(NodePhase::Starting, kBegin + 5s);
  log.phase(NodePhase::Running, kBegin + 6s);
  log.phase(NodePhase::Stopping, kBegin + 100s);
  log.phase(NodePhase::Ended, kBegin + 101s);
  REQUIRE(log.paths().size() == 1);  // the end of the job is no restart
  CHECK(log.paths().front().stages == Stages{0s, 1s, 1s, 1s, 1s, 0s, 0s});
}

TEST_CASE("restart log: of very many restarts the last ones are kept") {
  Story story;
  for (std::size_t i = 0; i < RestartLog::kMost + 3; ++i) story.restart(std::to_string(i));
  CHECK(story.log.paths().size() == RestartLog::kMost);
  CHECK(story.log.paths().front().cause == "3");
  CHECK(story.log.forgotten() == 3);
}

TEST_CASE("restart table: a line each within 80 columns, with the cause where asked for") {
  RestartPath path;
  path.cause = "rank 1 ended with exit code 3\x1b[31m";
  path.at = 59999s;
  path.stages = {20ms, 2700us, 664ms, 95s + 100ms, 5960s, 99h, 0s};
  const std::vector<RestartPath> paths(7, path);
  const auto text = restart_table(paths, 2, true);
  CHECK(text ==
        "  restart at    exit  detect    stop rendezvous   spawn 1st step    redo   total\n"
        "      16.7 h   20 ms  2.7 ms  664 ms     95.1 s  99 min   99.0 h       - 100.7 h\n"
        "             rank 1 ended with exit code 3[31m\n"
        "      16.7 h   20 ms  2.7 ms  664 ms     95.1 s  99 min   99.0 h       - 100.7 h\n"
        "             rank 1 ended with exit code 3[31m\n"
        "  and 5 before these\n");
  CHECK(restart_table({}, 2, true).empty());
}
