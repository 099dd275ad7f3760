// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/what_if.hpp"

#include "core/text.hpp"
#include "goodput/reports/exponential.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <random>

namespace elastrun::goodput {
namespace {

// So many courses of the job are played: failures are few, and a single course would be chance.
constexpr int kJobs = 20;
// Fixed: the same question has the same answer.
constexpr std::uint64_t kSeed = 1974;
// Pieces of work, over all jobs of one simulation: a second of computing at most.
constexpr double kMostPieces = 5e6;

/// Failures with the same probability at any time.
class Failures {
 public:
  explicit Failures(double mtbf) : mtbf_(mtbf) {}
  /// Until the next one.
  double next() {
    // By hand: the distributions of the library differ from one to the other.
    const double uniform = (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53;
    // The half keeps it above 0, which has no logarithm.
    return -mtbf_ * natural_log(uniform);
  }

 private:
  double mtbf_;
  std::mt19937_64 random_{kSeed};
};

/// Of what is not negative; beyond 1e15 that. std::round and llround would bring libm into both
/// programs.
double nearest_whole(double number) {
  return number < 1e15 ? static_cast<double>(static_cast<std::int64_t>(number + 0.5)) : 1e15;
}

/// The share of the time that is kept work. As failures have no memory, each attempt of a piece,
/// and each restart, draws again.
double simulate(const CheckpointPolicy& policy, double interval, double work) {
  const double pieces = std::clamp(nearest_whole(work / interval), 1.0, kMostPieces / kJobs / 2);
  Failures failures(policy.mtbf);
  double kept = 0, wall = 0, budget = kMostPieces;
  const auto last = [&](double needs) {  // the time of an attempt, and whether it came to its end
    const double until = failures.next();
    wall += std::min(until, needs);
    return until >= needs || --budget < 0;
  };
  for (double piece = 0; piece < pieces * kJobs && budget > 0; ++piece, --budget) {
    while (!last(interval + policy.save)) {
      while (!last(policy.restart)) continue;
    }
    kept += interval;
  }
  // Where hardly any attempt comes to its end, what was drawn says nothing but that.
  return wall > 0 && budget > 0 ? kept / wall : 0;
}

IntervalOutcome outcome(const WhatIf& job, double steps) {
  const double work = static_cast<double>(job.steps) * job.step_time;
  // An interval that is longer than the job is a checkpoint at its end.
  const double interval = std::min(steps * job.step_time, work);
  const double goodput = job.policy.goodput(interval);
  return {steps, goodput, goodput > 0 ? work / goodput : INFINITY,
          simulate(job.policy, interval, work)};
}

std::unexpected<Error> missing(std::string_view what) {
  return fail(Code::Usage, std::string(what));
}

/// From a failure to the first step again, on average; of a job without a restart as long as its
/// start, which has the same parts.
double restart_time(const Ledger::Summary& summary) {
  Duration of_starts{};
  for (const auto bucket :
       {Bucket::Rendezvous, Bucket::Running, Bucket::Initialization, Bucket::Preparation}) {
    of_starts += summary.of(bucket);
  }
  if (summary.restarts == 0) return to_seconds(of_starts + summary.of(Bucket::Startup));
  return to_seconds(summary.of(Bucket::Restart)) / summary.restarts +
         to_seconds(of_starts) / (summary.restarts + 1);
}

/// Of the steps whose time is known: those that were done again are no work of the job.
std::int64_t kept_steps(const Ledger::Summary& recorded) {
  const double kept = to_seconds(recorded.of(Bucket::Productive));
  const double done = kept + to_seconds(recorded.of(Bucket::Lost));
  const auto steps = static_cast<double>(recorded.work.steps);
  if (done <= 0) return recorded.work.steps;
  return static_cast<std::int64_t>(nearest_whole(steps * kept / done));
}

json::object outcome_json(const IntervalOutcome& one) {
  return {{"steps", one.steps},
          {"goodput", one.goodput},
          {"simulated_goodput", one.simulated},
          {"elapsed_s", std::isfinite(one.seconds) ? json::value(one.seconds) : nullptr}};
}

}  // namespace

Result<WhatIf> what_if(const Ledger::Summary& recorded, const WhatIfQuestion& question) {
  const auto& work = recorded.work;
  const auto step = work.mean_step();
  if (!step || *step <= Duration::zero()) {
    return missing(
        "the journal has no two steps of one start of the workers, so their time is "
        "not known");
  }
  WhatIf answer;
  answer.steps = kept_steps(recorded);
  answer.step_time = to_seconds(work.stepping) / static_cast<double>(work.steps);
  answer.restart_recorded = recorded.restarts > 0;
  if (!question.mtbf && work.failures == 0) {
    return missing("the job never failed: say with --mtbf how often it would");
  }
  auto save = question.save_time;
  if (!save && work.mean_save()) save = to_seconds(*work.mean_save());
  answer.save_observed = !save && question.observed_save;
  if (!save) save = question.observed_save;
  if (!save) {
    return missing("the journal does not tell how long a checkpoint took: say it with --save-time");
  }
  auto& policy = answer.policy;
  // A job that waits in the queue cannot fail.
  policy.mtbf = question.mtbf
                    ? *question.mtbf
                    : to_seconds(recorded.elapsed - recorded.of(Bucket::Queued)) / work.failures;
  policy.save = *save;
  policy.restart = restart_time(recorded);
  // An interval longer than the job cannot be kept: then one checkpoint, at the end, is best.
  const double best = std::clamp(nearest_whole(policy.best_interval() / answer.step_time), 1.0,
                                 std::max(static_cast<double>(answer.steps), 1.0));
  answer.best = outcome(answer, best);
  if (question.interval) answer.asked = outcome(answer, static_cast<double>(*question.interval));
  if (const auto every = work.checkpoint_interval()) answer.recorded = outcome(answer, *every);
  return answer;
}

std::string what_if_text(const WhatIf& answer) {
  const auto time = [](double seconds) { return format_duration(from_seconds(seconds)); };
  std::string text =
      fmt::format("{} steps of {}, a failure every {}, {} for a checkpoint, {} for a restart\n",
                  answer.steps, time(answer.step_time), time(answer.policy.mtbf),
                  time(answer.policy.save), time(answer.policy.restart));
  if (!answer.restart_recorded) {
    text += "  no restart was recorded: it is taken to last as long as the start of the job\n";
  }
  if (answer.save_observed) {
    text += "  a checkpoint takes what passed from the step before it until it was told complete\n";
  }
  text += fmt::format("  {:<10}{:>12}{:>12}{:>12}{:>16}\n", "checkpoint", "every", "goodput",
                      "simulated", "whole job");
  const auto line = [&](std::string_view name, const IntervalOutcome& one) {
    // Centuries do not help, and nanoseconds cannot hold them.
    const auto whole = one.seconds < 3e9 ? time(one.seconds) : std::string("never");
    text += fmt::format("  {:<10}{:>12}{:>10.1f} %{:>10.1f} %{:>16}\n", name,
                        fmt::format("{:.0f} steps", one.steps), one.goodput * 100,
                        one.simulated * 100, whole);
  };
  if (answer.asked) line("asked", *answer.asked);
  if (answer.recorded) line("recorded", *answer.recorded);
  line("best", answer.best);
  if (answer.best.steps >= static_cast<double>(answer.steps)) {
    text += "  the best interval is at least as long as the job: a checkpoint at its end\n";
  }
  return text;
}

json::object what_if_json(const WhatIf& answer) {
  const auto or_null = [](const std::optional<IntervalOutcome>& one) {
    return one ? json::value(outcome_json(*one)) : json::value(nullptr);
  };
  return {{"steps", answer.steps},
          {"step_s", answer.step_time},
          {"mtbf_s", answer.policy.mtbf},
          {"save_s", answer.policy.save},
          {"restart_s", answer.policy.restart},
          {"restart_recorded", answer.restart_recorded},
          {"save_observed", answer.save_observed},
          {"asked", or_null(answer.asked)},
          {"recorded", or_null(answer.recorded)},
          {"best", outcome_json(answer.best)}};
}

}  // namespace elastrun::goodput
