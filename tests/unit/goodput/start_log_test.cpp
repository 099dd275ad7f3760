// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/job_account.hpp"
#include "goodput/reports/summary.hpp"
#include "unit/goodput/moments.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

/// An account that is told of starts, each with steps of 10 s.
struct StartedJob {
  JobAccount account{kStart, false, kStart};
  TimePoint now = kStart;

  void start() {
    account.phase(NodePhase::Starting, now);
    account.phase(NodePhase::Running, now += 1s);
  }
  void steps(int first, int last) {
    for (int step = first; step <= last; ++step) account.step(step, now += 10s);
  }
  void fail(const char* cause) {
    account.phase(NodePhase::Stopping, now);
    account.noticed_after({}, {}, "rank 0 was slow");
    account.stopped(true, now += 1s);
    account.restarting(cause, true, now);
    account.phase(NodePhase::Joining, now);
  }
  std::vector<WorkersStart> starts() const { return account.starts(now); }
};

/// Whatever may happen to a job, in an order in which it can.
class RandomStarts {
 public:
  explicit RandomStarts(unsigned seed) : random_(seed) {}

  JobAccount account{kStart, false, kStart};
  TimePoint now = kStart;

  void go_on() {
    now += std::chrono::milliseconds(random_() % 4000);
    if (!started_) return start();
    if (random_() % 12 == 0) return end();
    work();
  }
  /// Also in an order in which it cannot.
  void stumble() {
    now += std::chrono::milliseconds(random_() % 4000);
    switch (random_() % 6) {
      case 0:
        return account.phase(static_cast<NodePhase>(random_() % 8), now);
      case 1:
        return random_() % 3 == 0 ? start() : end();
      case 2:
        return account.joined(random_() % 2 == 0, now);
      default:
        return work();
    }
  }

 private:
  void start() {
    if (random_() % 8 == 0) {
      account.left(now);
      account.submitted_again(now += 5s);
    }
    account.phase(NodePhase::Joining, now);
    account.phase(NodePhase::Starting, now += 1s);
    account.phase(NodePhase::Running, now += 1s);
    step_ -= std::min<std::int64_t>(step_, random_() % 4 == 0 ? 0 : random_() % 9);
    started_ = true;
  }

  void end() {
    switch (random_() % 5) {
      case 0:  // a worker of this node
        account.phase(NodePhase::Stopping, now);
        account.noticed_after({}, {}, "rank 0 was slow");
        account.stopped(true, now += 1s);
        account.restarting("failed", true, now);
        break;
      case 1:  // another node
        account.restarting("a node left", false, now);
        account.phase(NodePhase::Stopping, now);
        account.stopped(false, now += 1s);
        break;
      case 2:
        account.phase(NodePhase::Barrier, now);
        account.stopped(false, now += 1s);
        account.ended(true, now);
        account.left(now);
        account.submitted_again(now += 9s);
        break;
      case 3:
        account.phase(NodePhase::Stopping, now);
        account.stopped(false, now += 1s);
        account.ended(false, now);
        account.left(now);
        account.submitted_again(now += 9s);
        break;
      default:
        account.died(now);
        account.left(now);
        account.submitted_again(now += 9s);
    }
    started_ = false;
  }

  void work() {
    const auto recorded = [this](MeasurementKind kind, std::int64_t step = 0) {
      // What workers tell of a moment may be heard a bit later.
      const auto told = now - std::chrono::milliseconds(random_() % 3 == 0 ? 300 : 0);
      account.recorded({kind, -1, step, 0, 0}, "eval", told);
    };
    switch (random_() % 12) {
      case 0:
        return account.checkpoint(0, random_() % 2 == 0 ? -1 : step_ - 1, now);
      case 1:
        return account.hang(std::chrono::seconds(random_() % 5), now);
      case 2:
        return recorded(MeasurementKind::CustomStart);
      case 3:
        return recorded(MeasurementKind::CustomEnd);
      case 4:
        return recorded(MeasurementKind::SaveStart);
      case 5:
        return recorded(MeasurementKind::SaveEnd);
      case 6:
        return recorded(MeasurementKind::Step, ++step_);
      case 7:
        return recorded(MeasurementKind::StepEnd, step_);
      case 8:
        step_ -= std::min<std::int64_t>(step_, random_() % 3);
        return account.step(step_, now);
      default:
        return account.step(++step_, now);
    }
  }

  std::mt19937_64 random_;
  std::int64_t step_ = 0;
  bool started_ = false;
};

}  // namespace

TEST_CASE("starts: each has its steps, and what of its time was kept") {
  StartedJob job;
  job.start();
  job.steps(1, 5);
  job.fail("rank 3 ended with exit code 1");
  job.start();
  CHECK_MESSAGE(job.starts()[0].productive == 50s, "nobody knows yet that some of it is lost");
  job.steps(3, 4);
  job.account.phase(NodePhase::Stopping, job.now);
  job.account.stopped(false, job.now);
  job.account.ended(true, job.now);
  const auto starts = job.starts();
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].number == 1);
  CHECK(starts[0].at == 1s);
  CHECK(starts[0].ran == 51s);
  CHECK(starts[0].first_step == 1);
  CHECK(starts[0].last_step == 5);
  CHECK(starts[0].productive == 20s);
  CHECK(starts[0].ended == "rank 3 ended with exit code 1");
  CHECK(starts[1].productive == 20s);
  CHECK(starts[1].ended == "succeeded");
  CHECK(job.account.summary(job.now).work.failures == 1);
}

TEST_CASE("starts: their work is that of the ledger, however far a job goes back") {
  StartedJob job;
  for (const int first : {1, 8, 4, 1, 6}) {
    job.start();
    job.steps(first, first + 6);
    Duration sum{};
    for (const auto& start : job.starts()) sum += start.productive;
    CHECK(sum == job.account.summary(job.now).of(Bucket::Productive));
    job.fail("again");
  }
  CHECK(job.account.summary(job.now).work.failures == 5);
}

TEST_CASE("starts: a warm-up before the load takes nothing from the starts before it") {
  StartedJob job;
  job.start();
  job.steps(1, 50);
  job.fail("again");
  job.start();
  job.steps(51, 100);
  job.fail("again");
  job.start();
  job.steps(1, 10);
  CHECK(job.starts()[0].productive == 0s);
  job.steps(71, 80);
  const auto starts = job.starts();
  CHECK(starts[0].productive == 500s);
  CHECK(starts[1].productive == 200s);
  CHECK(starts[2].productive == 100s);
  CHECK(job.account.summary(job.now).of(Bucket::Productive) == 800s);
}

TEST_CASE("starts: whatever happens, their shares add up to what the whole job has") {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    RandomStarts job(seed);
    for (int i = 0; i < 60; ++i) {
      seed % 2 == 0 ? job.go_on() : job.stumble();
      CAPTURE(seed);
      CAPTURE(i);
      const auto productive = job.account.summary(job.now).of(Bucket::Productive);
      Duration sum{};
      bool possible = true;
      for (const auto& start : job.account.starts(job.now)) {
        sum += start.productive;
        possible = possible && start.productive >= 0s && start.productive <= start.ran;
      }
      REQUIRE(sum == productive);
      REQUIRE(possible);
    }
  }
}

TEST_CASE("starts: a signal and the death of a machine are told apart, and only one is a failure") {
  StartedJob job;
  job.start();
  job.steps(1, 2);
  job.account.phase(NodePhase::Stopping, job.now);
  job.account.stopped(true, job.now);  // killed by us
  job.account.ended(false, job.now);
  job.account.left(job.now);
  job.account.submitted_again(job.now += 60s);
  CHECK(job.account.summary(job.now).work.failures == 0);
  job.start();
  job.steps(3, 4);
  job.account.died(job.now);
  CHECK(job.account.summary(job.now).work.failures == 1);
  CHECK(job.starts()[0].ended == "stopped");
  CHECK(job.starts()[1].ended == "agent or machine died");
}

TEST_CASE("starts: a node that joins is no failure") {
  StartedJob job;
  job.start();
  job.steps(1, 3);
  job.account.restarting("node b joined", false, job.now);
  job.account.phase(NodePhase::Stopping, job.now);
  job.account.stopped(true, job.now += 1s);
  CHECK(job.starts()[0].ended == "node b joined");
  CHECK(job.account.summary(job.now).work.failures == 0);
}

TEST_CASE("starts: the last 256 are kept, with their numbers") {
  StartedJob job;
  for (int i = 0; i < 300; ++i) {
    job.start();
    job.steps(1, 2);
    job.fail("again");
  }
  const auto starts = job.starts();
  CHECK(starts.size() == StartLog::kMost);
  CHECK(starts.front().number == 45);
  CHECK(starts.back().number == 300);
  CHECK(start_table(starts, 8).ends_with("  and 292 before these\n"));
}

TEST_CASE("starts: people see the last ones in 80 columns, of one start nothing") {
  StartedJob job;
  job.start();
  CHECK(start_table(job.starts(), 8, 80).empty());
  job.steps(1'000'001, 1'000'003);
  job.fail("rank 12345 ended with a very long sentence\x1b[2J about what it did");
  job.start();
  const auto text = start_table(job.starts(), 8, 80);
  CHECK(text ==
        "  attempt       at      ran         steps goodput  ended\n"
        "        1    1.0 s   31.0 s 1000001-1000003  96.8 %  rank 12345 ended with a..\n"
        "        2   33.0 s        -             -       -  it runs\n");
  CHECK(start_table(job.starts(), 8).contains(" a very long sentence[2J about what it did\n"));
  const auto rows = starts_json(job.starts());
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("first_step") == 1'000'001);
  CHECK(rows[1].at("goodput").is_null());
  CHECK(rows[1].at("ended").is_null());
}
