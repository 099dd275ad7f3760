// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/agent.hpp"
#include "support/fake_run.hpp"

#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

struct Leaving : test::FakeRun {
  LeaveTime leave{*this};
  std::size_t overs() const { return facts.size(); }
};

TEST_CASE("leave time: after the save workers have a moment to end by themselves") {
  Leaving job;
  job.leave.begin(60s);
  job.time.advance(10s);
  job.leave.saved();
  job.time.advance(LeaveTime::kMoment - 100ms);
  CHECK(job.overs() == 0);
  job.time.advance(100ms);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: who writes goes on, until the time is over") {
  Leaving job;
  job.leave.begin(10s);
  job.leave.saved();
  for (int second = 0; second < 9; ++second) {
    job.bytes += LeaveTime::kWrites;
    job.time.advance(1s);
    CHECK(job.overs() == 0);
  }
  job.bytes += LeaveTime::kWrites;
  job.time.advance(1s);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: a log is no checkpoint") {
  Leaving job;
  job.leave.begin(60s);
  job.leave.saved();
  job.bytes += 1000;
  job.time.advance(LeaveTime::kMoment);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: without a word of the coordinator it is over after the time to save") {
  Leaving job;
  job.leave.begin(10s);
  job.time.advance(10s);
  CHECK(job.overs() == 0);
  job.time.advance(LeaveTime::kSilence);
  CHECK(job.overs() == 1);
}

TEST_CASE("leave time: at the end of the time there is no moment left") {
  Leaving job;
  job.leave.begin(10s);
  job.time.advance(10s);
  job.leave.saved();
  job.time.advance(0s);
  CHECK(job.overs() == 1);
}

}  // namespace
}  // namespace elastrun::agent
