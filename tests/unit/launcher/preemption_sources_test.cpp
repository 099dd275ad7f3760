// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_signals.hpp"
#include "support/fake_run.hpp"
#include "support/logged_text.hpp"

#include <chrono>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

/// A job in an allocation of which so much time is left.
struct SlurmJob : test::FakeRun {
  explicit SlurmJob(Duration left, std::optional<Duration> timeout = {}) {
    job.preempt_signals = {"SIGTERM"};
    job.preempt_timeout = timeout;
    const WallTime end = clock.wall() + left;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(end).time_since_epoch().count();
    sources.emplace(*this, std::to_string(seconds));
  }
  void post(Fact fact) override { asked.push_back(std::get<PreemptCame>(fact).deadline); }
  test::FakeClock& clock = time;
  std::vector<Duration> asked;
  std::optional<PreemptionSources> sources;
};

TEST_CASE("preemption sources: a job begins to save a minute before its end, or twice a save") {
  SlurmJob unknown(1h);
  unknown.clock.advance(59min - 1s);
  CHECK(unknown.asked.empty());
  unknown.clock.advance(1s);
  CHECK(unknown.asked == std::vector<Duration>{1min});
  SlurmJob known(1h);
  known.sources->save_takes(50s);
  known.clock.advance(1h - 100s);
  CHECK(known.asked == std::vector<Duration>{100s});
  SlurmJob quick(1h);
  quick.sources->save_takes(1ms);
  quick.clock.advance(1h - PreemptionSources::kLeast);
  CHECK(quick.asked == std::vector<Duration>{PreemptionSources::kLeast});
}

TEST_CASE("preemption sources: an end that is over, or is none, is ignored with a warning") {
  const test::LoggedText log;
  SlurmJob over(-3h);
  over.clock.advance(24h);
  over.sources->save_takes(1s);
  over.sources.emplace(over, "soon");
  over.clock.advance(24h);
  CHECK(over.asked.empty());
  CHECK(log.text.contains(": in the past, ignored; "));
  CHECK(
      log.text.contains("SLURM_JOB_END_TIME=soon: no time in seconds since the epoch, ignored; "));
}

TEST_CASE("preemption sources: a save that seemed long does not end the job early") {
  SlurmJob job(2h);
  job.sources->save_takes(1h);
  job.clock.advance(2h - PreemptionSources::kMost);
  CHECK(job.asked == std::vector<Duration>{PreemptionSources::kMost});
  SlurmJob limited(2h, 20min);
  limited.sources->save_takes(1h);
  limited.clock.advance(100min);
  CHECK(limited.asked == std::vector<Duration>{20min});
  // Each start of a short job does half of what it could, and not the work up to its first save.
  SlurmJob brief(40s);
  brief.clock.advance(5s);
  brief.sources->save_takes(1min);
  CHECK(brief.asked.empty());
  brief.clock.advance(14s);
  CHECK(brief.asked.empty());
  brief.clock.advance(1s);
  CHECK(brief.asked == std::vector<Duration>{20s});
}

}  // namespace
}  // namespace elastrun::agent
