// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/agent.hpp"
#include "support/fake_clock.hpp"

#include <doctest/doctest.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

struct Leaving {
  test::FakeClock clock{};
  std::uint64_t written = 0;
  int overs = 0;
  LeaveTime time{clock, [this] { return written; }, [this] { ++overs; }};
};

TEST_CASE("leave time: after the save workers have a moment to end by themselves") {
  Leaving job;
  job.time.begin(60s);
  job.clock.advance(10s);
  job.time.saved();
  job.clock.advance(LeaveTime::kMoment - 100ms);
  CHECK(job.overs == 0);
  job.clock.advance(100ms);
  CHECK(job.overs == 1);
}

TEST_CASE("leave time: who writes goes on, until the time is over") {
  Leaving job;
  job.time.begin(10s);
  job.time.saved();
  for (int second = 0; second < 9; ++second) {
    job.written += LeaveTime::kWrites;
    job.clock.advance(1s);
    CHECK(job.overs == 0);
  }
  job.written += LeaveTime::kWrites;
  job.clock.advance(1s);
  CHECK(job.overs == 1);
}

TEST_CASE("leave time: a log is no checkpoint") {
  Leaving job;
  job.time.begin(60s);
  job.time.saved();
  job.written += 1000;
  job.clock.advance(LeaveTime::kMoment);
  CHECK(job.overs == 1);
}

TEST_CASE("leave time: without a word of the coordinator it is over after the time to save") {
  Leaving job;
  job.time.begin(10s);
  job.clock.advance(10s);
  CHECK(job.overs == 0);
  job.clock.advance(LeaveTime::kSilence);
  CHECK(job.overs == 1);
}

TEST_CASE("leave time: at the end of the time there is no moment left") {
  Leaving job;
  job.time.begin(10s);
  job.clock.advance(10s);
  job.time.saved();
  job.clock.advance(0s);
  CHECK(job.overs == 1);
}

}  // namespace
}  // namespace elastrun::agent
