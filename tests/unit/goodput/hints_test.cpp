// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <map>
#include <numeric>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

using Times = std::map<Bucket, Duration>;

Ledger::Summary summary_of(const Times& times, WorkCounts work = {}) {
  Ledger::Summary summary;
  for (const auto& [bucket, time] : times) {
    summary.buckets[static_cast<std::size_t>(bucket)] = time;
    summary.elapsed += time;
  }
  summary.work = work;
  summary.last_step = 1000;
  return summary;
}

/// A job that saves every `every` steps of a second, 10 s each, and fails `failures` times in 10 h.
Ledger::Summary saving_every(std::int64_t every, int failures) {
  const std::int64_t steps = 30'000;
  const auto saves = steps / every;
  const auto lost = std::chrono::seconds(every / 2 * failures);
  const WorkCounts work{failures, saves, saves, saves * 10s, steps, steps * 1s};
  return summary_of({{Bucket::Productive, steps * 1s - lost},
                     {Bucket::Lost, lost},
                     {Bucket::Checkpoint, saves * 10s},
                     {Bucket::Restart, 6000s}},
                    work);
}

std::string first(const Ledger::Summary& summary, const std::vector<RestartPath>& restarts = {}) {
  const auto all = hints(summary, restarts);
  return all.empty() ? "" : all[0].text;
}

}  // namespace

TEST_CASE("hints: saves that come too often get the interval that costs least") {
  const auto summary = saving_every(100, 3);
  const auto text = first(summary);
  CHECK(text.starts_with("checkpoints took 7.7 %: a checkpoint every "));
  CHECK(text.contains(" steps instead of 100 would cost "));
  CHECK(text.ends_with("(Young's formula, 3 failures in 10 h 50 min)"));
  CHECK(first(saving_every(100, 2)).find("Young") == std::string::npos);
}

TEST_CASE("hints: saves that come too seldom, and an interval that is about right") {
  CHECK(first(saving_every(3000, 10)).starts_with("lost work "));
  CHECK(first(saving_every(3000, 10)).contains("instead of 3000"));
  const auto best = static_cast<std::int64_t>(std::sqrt(2 * 10 * 30'000.0 / 10));
  for (const auto& hint : hints(saving_every(best, 10), {})) {
    CHECK(hint.kind != HintKind::CheckpointInterval);
    CHECK(hint.kind != HintKind::LostWork);
  }
}

TEST_CASE("hints: each bucket has its own, from the threshold on and not before") {
  const WorkCounts stepped{.steps = 100, .stepping = 100s};
  const auto with = [&](Bucket bucket, Duration time, WorkCounts work) {
    return first(summary_of({{Bucket::Productive, 1000s - time}, {bucket, time}}, work));
  };
  CHECK(with(Bucket::DataLoading, 120s, stepped).starts_with("12.0 % waiting for data"));
  CHECK(with(Bucket::DataLoading, 49s, stepped).empty());
  CHECK(with(Bucket::DataLoading, 120s, {.steps = 5}).empty());
  CHECK(with(Bucket::Rendezvous, 80s, stepped).starts_with("rendezvous 8.0 %: a node came late"));
  CHECK(with(Bucket::Hang, 80s, stepped).starts_with("hangs took 8.0 %"));
  CHECK(with(Bucket::Preparation, 410s, stepped)
            .starts_with("41.0 % before the first step: imports and setting up take 6 min 50 s in "
                         "each of 1 start: "));
  CHECK(with(Bucket::Preparation, 90s, stepped).empty());
  WorkCounts lost = stepped;
  lost.failures = 1;
  CHECK(with(Bucket::Lost, 150s, lost).contains("no checkpoint was seen"));
  CHECK(with(Bucket::Lost, 150s, stepped).empty());
  CHECK(with(Bucket::Queued, 500s, stepped).empty());
}

TEST_CASE("hints: each names what to change: an option, a call, a setting") {
  const WorkCounts stepped{.steps = 100, .stepping = 100s};
  const WorkCounts failing{.failures = 1, .steps = 100, .stepping = 100s};
  const WorkCounts saved{
      .failures = 1, .checkpoints = 5, .saves = 5, .saving = 1s, .steps = 100, .stepping = 100s};
  const WorkCounts saves{.checkpoints = 5, .saves = 5, .saving = 300s};
  const auto with = [&](Bucket bucket, const WorkCounts& work) {
    return first(summary_of({{Bucket::Productive, 700s}, {bucket, 300s}}, work));
  };
  CHECK(with(Bucket::Lost, failing).ends_with("say so by elastrun.checkpoint_done(step)"));
  CHECK(with(Bucket::Lost, saved).contains("torch.distributed.checkpoint.async_save"));
  CHECK(with(Bucket::Checkpoint, saves).contains("torch.distributed.checkpoint.async_save"));
  CHECK(with(Bucket::Preparation, stepped).contains("TORCHINDUCTOR_CACHE_DIR"));
  CHECK(with(Bucket::Initialization, stepped).contains("elastrunctl stacks"));
  CHECK(with(Bucket::Running, stepped).ends_with("a recorder tells for what"));
  CHECK(with(Bucket::DataLoading, stepped).contains("num_workers"));
  CHECK(with(Bucket::Rendezvous, stepped).contains("--nnodes MIN:MAX"));
  CHECK(with(Bucket::Rendezvous, stepped).contains("--rdzv-conf last_call_timeout=SECONDS"));
  CHECK(with(Bucket::Hang, stepped).contains("--hang-timeout"));
}

TEST_CASE("hints: a rendezvous tells the longest wait, slow ends of workers their time") {
  std::vector<RestartPath> restarts(3);
  restarts[1].stages[static_cast<std::size_t>(RestartStage::Rendezvous)] = 42s;
  for (auto& path : restarts) path.stages[static_cast<std::size_t>(RestartStage::Stop)] = 30s;
  const auto summary =
      summary_of({{Bucket::Productive, 800s}, {Bucket::Rendezvous, 100s}, {Bucket::Restart, 100s}});
  const auto all = hints(summary, restarts);
  REQUIRE(all.size() == 2);
  CHECK(all[0].text.starts_with("rendezvous 10.0 %, 42.0 s in the longest of 3 restarts: "));
  CHECK(all[1].text.starts_with("stopping workers took 9.0 %, 30.0 s in each restart: "));
}

TEST_CASE("hints: a short run has none, no run has more than three") {
  CHECK(hints(summary_of({{Bucket::DataLoading, 59s}}, {.steps = 100}), {}).empty());
  const WorkCounts work{.failures = 1, .steps = 100, .stepping = 100s};
  const auto all = hints(summary_of({{Bucket::Productive, 1000s},
                                     {Bucket::DataLoading, 300s},
                                     {Bucket::Hang, 500s},
                                     {Bucket::Rendezvous, 400s},
                                     {Bucket::Preparation, 350s}},
                                    work),
                         {});
  REQUIRE(all.size() == kMostHints);
  CHECK(all[0].kind == HintKind::Hang);
  CHECK(all[1].kind == HintKind::Rendezvous);
  CHECK(all[2].kind == HintKind::Start);
}

TEST_CASE("hints: none claims to save more than the time that it is about, whatever the numbers") {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t most) {
      return static_cast<std::int64_t>(random() % most);
    };
    Times times;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      times[static_cast<Bucket>(i)] = std::chrono::milliseconds(below(1 << below(24)));
    }
    WorkCounts work;
    work.failures = static_cast<int>(below(8));
    work.checkpoints = below(50);
    work.saves = below(50);
    if (work.saves > 0) {
      work.saving =
          Duration(below(static_cast<std::uint64_t>(times[Bucket::Checkpoint].count()) + 1));
    }
    work.steps = below(10'000);
    if (work.steps > 0) work.stepping = times[Bucket::Productive];
    auto summary = summary_of(times, work);
    summary.restarts = static_cast<int>(below(10));
    std::vector<RestartPath> restarts(random() % 4);
    for (auto& path : restarts) {
      for (auto& stage : path.stages) stage = std::chrono::milliseconds(below(100'000));
    }
    const auto all = hints(summary, restarts);
    REQUIRE(all.size() <= kMostHints);
    for (const auto& hint : all) {
      REQUIRE(hint.share <= 1);
      REQUIRE(hint.saving <= hint.share);
      REQUIRE(hint.saving >= 0);
      REQUIRE(hint.text.find("nan") == std::string::npos);
      REQUIRE(hint.text.find("inf") == std::string::npos);
    }
    const auto text = hints_text(all);
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      REQUIRE(end - begin <= 80);
    }
  }
}

TEST_CASE("hints: people get paragraphs, machines objects") {
  const auto all = hints(summary_of({{Bucket::Productive, 900s}, {Bucket::DataLoading, 100s}},
                                    {.steps = 100, .stepping = 900s}),
                         {});
  CHECK(hints_text(all) ==
        "  hint: 10.0 % waiting for data: more DataLoader workers (num_workers,\n"
        "        prefetch_factor), or faster storage\n");
  CHECK(hints_text({}).empty());
  const auto rows = hints_json(all);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].at("kind") == "data");
  CHECK(rows[0].at("share").as_double() == doctest::Approx(0.1));
  CHECK(rows[0].at("saving").as_double() == doctest::Approx(0.1));
}
