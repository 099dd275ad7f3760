// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/job_account.hpp"

#include "goodput/reports/summary.hpp"
#include "unit/goodput/moments.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <map>
#include <string>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

MeasurementEntry entry(MeasurementKind kind) {
  MeasurementEntry entry;
  entry.kind = kind;
  return entry;
}

MeasurementEntry begin_of(std::int64_t step) {
  auto begin = entry(MeasurementKind::Step);
  begin.step = step;
  return begin;
}

}  // namespace

TEST_CASE("job account: a step that is told by both ways is no resume, whichever comes first") {
  JobAccount account(kStart, false, kStart);
  account.keep_history();
  account.phase(NodePhase::Starting, at(1s));
  account.phase(NodePhase::Running, at(2s));
  account.recorded(begin_of(1), "", at(2s));
  account.step(1, at(4s));
  account.step(2, at(6s));                    // before its begin is heard
  account.recorded(begin_of(2), "", at(4s));  // of 4 s, and heard now
  account.recorded(begin_of(3), "", at(6s));
  account.step(3, at(8s));
  account.step(4, at(10s));
  account.recorded(begin_of(4), "", at(8s));
  const auto summary = account.summary(at(10s));
  CHECK(summary.of(Bucket::Lost) == 0s);
  CHECK(summary.of(Bucket::Productive) == 8s);
  CHECK(summary.last_step == 4);
  for (const auto& point : account.history(at(10s)).steps) CHECK(point.mean() == 2s);
}

TEST_CASE(
    "job account: begins of steps that are heard after the ends of later ones are no resume") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Running, at(2s));
  for (int step = 1; step <= 4; ++step) account.step(step, at(2s + step * 2s));
  for (int step = 1; step <= 4; ++step) account.recorded(begin_of(step), "", at(step * 2s));
  CHECK(account.summary(at(10s)).of(Bucket::Lost) == 0s);
  CHECK(account.summary(at(10s)).last_step == 4);
  account.recorded(begin_of(3), "", at(10s));  // and this one is
  CHECK(account.summary(at(10s)).of(Bucket::Lost) == 4s);
}

TEST_CASE(
    "job account: until workers that have succeeded are gone, after their last step, it ends") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Running, at(2s));
  account.step(1, at(4s));
  account.step(2, at(6s));
  account.phase(NodePhase::Stopping, at(9s));
  account.stopped(false, at(10s));
  SUBCASE("and nobody else works any more") {}
  SUBCASE("and others work still") {
    account.phase(NodePhase::Barrier, at(10s));
  }
  account.ended(true, at(12s));
  const auto summary = account.summary(at(12s));
  CHECK(summary.of(Bucket::Running) == 0s);
  CHECK(summary.of(Bucket::Productive) == 4s);
  CHECK(summary.of(Bucket::Stopping) == 6s);
  CHECK(account.starts(at(12s)).front().productive == 4s);
}

TEST_CASE("job account: of workers that fail it is lost, if their steps are") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Running, at(2s));
  account.step(1, at(4s));
  account.checkpoint(0, 1, at(4s));
  account.phase(NodePhase::Stopping, at(7s));
  account.stopped(true, at(8s));
  account.ended(false, at(8s));
  CHECK(account.summary(at(8s)).of(Bucket::Lost) == 3s);
}

TEST_CASE("job account: a recorder's initialization is the better news of when ranks connect") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Running, at(2s));
  SUBCASE("another rank was there first") {
    account.joined(false, at(4s));
  }
  SUBCASE("it was this one") {}
  account.recorded(entry(MeasurementKind::AcceleratorInitStart), "", at(5s));
  account.joined(false, at(5s));
  account.joined(true, at(6s));
  account.recorded(entry(MeasurementKind::AcceleratorInitEnd), "", at(8s));
  account.joined(true, at(8s));
  account.step(0, at(11s));
  const auto summary = account.summary(at(11s));
  CHECK(summary.of(Bucket::Preparation) == 3s);
  CHECK(summary.of(Bucket::Initialization) == 3s);
  CHECK(summary.of(Bucket::Running) == 3s);
}

TEST_CASE("job account: a recorder that begins again further back says what is lost") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Starting, at(1s));
  account.phase(NodePhase::Running, at(2s));
  for (int step = 1; step <= 4; ++step) account.recorded(begin_of(step), "", at(step * 2s));
  account.recorded(begin_of(2), "", at(10s));
  account.recorded(begin_of(3), "", at(12s));
  CHECK(account.summary(at(12s)).of(Bucket::Lost) == 6s);  // 2 to 4
}

TEST_CASE("job account: phases of other names are custom, each by its name") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Running, at(1s));
  account.step(1, at(2s));
  account.step(2, at(3s));
  account.entered("sync \x1b[31m", at(3s));
  account.entered("logging", at(5s));
  account.entered("eval", at(6s));
  account.entered("logging", at(7s));
  const auto summary = account.summary(at(10s));
  CHECK(summary.of(Bucket::Custom) == 6s);
  CHECK(summary.custom == std::map<std::string, Duration>{{"sync \x1b[31m", 2s}, {"logging", 4s}});
  const auto text = summary_text(summary, false);
  CHECK(text.find("\n    logging         4.0 s\n    sync") != std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(summary_json(summary).at("custom_s").at("logging") == 4.0);
  account.step(3, at(10s));
  CHECK(account.summary(at(20s)).of(Bucket::Custom) == 6s);
}

TEST_CASE("custom times: names are bounded, and a hang takes from them") {
  CustomTimes times;
  for (int i = 0; i < 100; ++i) times.enter(fmt::format("phase {}", i), Duration(i * 1s));
  const auto all = times.times(100s);
  CHECK(all.size() == CustomTimes::kMost + 1);
  CHECK(all.at("other") == 68s);
  times.enter("", 100s);
  CHECK(times.times(101s).at("other") == 69s);
  Duration left{};
  for (const auto& [name, time] : times.times(40s)) left += time;
  CHECK(left == 40s);
}

TEST_CASE("job account: the end of a job that an exception told ended no step") {
  for (const bool fails : {false, true}) {
    JobAccount account(kStart, false, kStart);
    account.phase(NodePhase::Starting, at(1s));
    account.phase(NodePhase::Running, at(2s));
    for (int step = 1; step <= 5; ++step) account.recorded(begin_of(step), "", at(step * 2s));
    account.recorded(entry(MeasurementKind::JobEnd), "", at(11s));
    account.phase(NodePhase::Stopping, at(14s));
    if (fails) account.noticed_after(0s, 3s, "rank 0 raised ValueError");
    account.stopped(fails, at(15s));
    account.ended(!fails, at(15s), fails ? "workers_failed" : "succeeded");
    const auto summary = account.summary(at(15s));
    CHECK(summary.last_step == (fails ? 4 : 5));
    CHECK(summary.of(Bucket::Lost) == (fails ? 1s : 0s));
    const auto most = summary.of(Bucket::Productive) + summary.of(Bucket::Unexplained);
    CHECK(most == (fails ? 8s : 9s));
    CHECK(summary.of(Bucket::Stopping) == 4s);
    CHECK(summary.of(Bucket::Preparation) == 0s);
  }
}

TEST_CASE(
    "job account: the end of the failing worker is in the row and the bucket of its restart") {
  for (const auto exit : {1s, 12s}) {
    for (const bool told : {true, false}) {
      CAPTURE(told);
      JobAccount account(kStart, false, kStart);
      account.phase(NodePhase::Starting, at(0s));
      account.phase(NodePhase::Running, at(0s));
      for (int step = 1; step <= 20; ++step) account.step(step, at(step * 100ms));
      account.checkpoint(0, 20, at(2s));
      account.step(21, at(2100ms));
      auto now = at(2100ms + 40ms + exit);  // of the next step 40 ms, then an error
      account.phase(NodePhase::Settling, now += 30ms);
      account.phase(NodePhase::Stopping, now += 20ms);
      account.noticed_after(50ms, told ? std::optional<Duration>(exit) : std::nullopt,
                            "rank 0 failed");
      account.restarting("rank 0 failed", true, now);
      account.stopped(true, now += 500ms);
      account.phase(NodePhase::Joining, now);
      account.phase(NodePhase::Starting, now += 10ms);
      account.phase(NodePhase::Running, now += 10ms);
      const auto summary = account.summary(now);
      REQUIRE(account.restarts().paths().size() == 1);
      const auto& path = account.restarts().paths().front();
      const Duration lost = told ? 40ms : 100ms;
      CHECK(path.of(RestartStage::Exit) == exit + 40ms - lost);
      CHECK(path.of(RestartStage::Detect) == 50ms);
      CHECK(path.at == 2100ms + lost);
      CHECK(path.total() == summary.of(Bucket::Restart));
      CHECK(summary.of(Bucket::Lost) == lost + 100ms);
      CHECK(summary.of(Bucket::Stalled) == 0s);
    }
  }
}

TEST_CASE("job account: how a start ended is said of those that were preempted or killed, too") {
  JobAccount account(kStart, false, kStart);
  account.phase(NodePhase::Starting, at(0s));
  account.phase(NodePhase::Running, at(0s));
  for (int step = 1; step <= 20; ++step) account.step(step, at(step * 100ms));
  SUBCASE("preempted") {
    account.checkpoint(0, 20, at(2500ms));
    account.phase(NodePhase::Stopping, at(2560ms));
    account.stopped(false, at(2600ms));
    account.ended(false, at(2600ms), "preempted");
    CHECK(account.summary(at(2600ms)).of(Bucket::Lost) == 0s);
    CHECK(account.summary(at(2600ms)).of(Bucket::Checkpoint) == 500ms);
    CHECK(account.starts(at(3s)).front().ended == "preempted");
  }
  SUBCASE("with its agent") {
    account.died(at(2s));
    CHECK(account.starts(at(3s)).front().ended == "agent or machine died");
  }
}
