// SPDX-License-Identifier: Apache-2.0
// What does a decision of the restart policy cost after 100,000 others? One JSON line with its
// processor time.
#include "rendezvous/membership/restart_rule.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <time.h>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;

namespace {

constexpr int kDecisions = 1'000, kRounds = 7;
constexpr std::int64_t kBefore = 100'000;

double processor_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

/// As many rules and nodes as a job may have.
RestartRule rule_of_a_large_job() {
  RestartSettings settings{1 << 30, spec::RestartPolicy::Auto};
  for (int i = 0; i < 63; ++i) {
    settings.rules.push_back(
        *spec::parse_restart_rule("exception=Error" + std::to_string(i) + ":1000/1h"));
  }
  settings.rules.push_back(*spec::parse_restart_rule("gpu:1000/1h"));
  return RestartRule(settings);
}

/// Each at another step, of one of a thousand nodes.
void fail(RestartRule& rule, std::int64_t number, TimePoint now) {
  Cause cause;
  cause.what = number % 2 == 0 ? spec::CauseClass::Gpu : spec::CauseClass::Error;
  cause.text = "rank 3 was killed by SIGABRT";
  cause.fingerprint = "RuntimeError@train.py:" + std::to_string(number % 50);
  cause.step = number;
  rule.decide(cause, now, "node" + std::to_string(number % 1000) + " (10.0.0.1)");
}

}  // namespace

int main() {
  auto rule = rule_of_a_large_job();
  TimePoint now{};
  std::int64_t number = 0;
  for (; number < kBefore; ++number) fail(rule, number, now += 1min);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = processor_us();
    for (int i = 0; i < kDecisions; ++i) fail(rule, ++number, now += 1min);
    best = std::min(best, (processor_us() - begin) / kDecisions);
  }
  std::printf("{\"row\": \"decision\", \"launcher\": \"elastrun\", \"cpu_us\": %.3f}\n", best);
}
