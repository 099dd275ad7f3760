// SPDX-License-Identifier: Apache-2.0
// What does it cost to have instruments in hot code? One JSON object on stdout, name -> nanoseconds
// of one call (or of one whole collection), the best of several rounds. telemetry_bench.py puts
// other libraries beside it.
#include "export/exposition.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/registry.hpp"

#include <barrier>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <thread>
#include <time.h>
#include <vector>

using namespace elastrun;
using namespace elastrun::telemetry;

namespace {

constexpr int kRounds = 7, kCalls = 4'000'000;

/// Of the CPU, for this thread: others on the machine count as little as they can.
double nanoseconds(auto&& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// Best time of one call of `work(i)` with so many threads that all call it.
double per_call(int threads, auto&& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> times(static_cast<std::size_t>(threads));
    std::barrier ready(threads);
    {
      std::vector<std::jthread> all;
      for (auto& time : times) {
        all.emplace_back([&] {
          work(0);
          ready.arrive_and_wait();
          time = nanoseconds([&] {
            for (int i = 0; i < kCalls; ++i) {
              work(i);
              asm volatile("" ::: "memory");
            }
          });
        });
      }
    }
    double slowest = 0;
    for (const double time : times) slowest = std::max(slowest, time / kCalls);
    best = std::min(best, slowest);
  }
  return best;
}

class Results {
 public:
  void add(std::string_view name, double value) {
    text_ += fmt::format("{}\"{}\": {:.2f}", text_.empty() ? "{" : ", ", name, value);
  }
  void print() const { fmt::print("{}}}\n", text_); }

 private:
  std::string text_;
};

struct Ignored final : metrics::MetricHandler {
  void emit(const metrics::MetricData&) override {}
};

/// Collection of 1000 stats.
double collection() {
  Registry registry(process_pipeline().clock());
  const Stat all({.name = "s", .label_keys = {"n"}}, registry);
  for (int i = 0; i < 1000; ++i) all.with({std::to_string(i)}).add(1);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, nanoseconds([&] { registry.collect(); }));
  }
  return best;
}

/// Collecting and writing a page.
double page_of(Registry& registry) {
  double best = 1e12;
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, nanoseconds([&] {
                      const auto text =
                          exporter::page_of(registry.collect(), exporter::PageForm::Prometheus);
                      if (text.size() < 100'000) std::abort();
                    }));
  }
  return best;
}

/// 10,000 metrics of workers: a gauge each, and the count and the sum of what was put.
double page_of_workers() {
  Registry registry(process_pipeline().clock());
  for (int i = 0; i < 10'000; ++i) {
    Record record;
    record.kind = Record::Kind::Sample;
    record.scope = "model";
    record.name = std::string("bench.") + "abcde"[i % 5];
    record.value = 0.125 * i;
    record.attributes = {{"rank", std::int64_t{i / 5}}};
    registry.take(record);
  }
  return page_of(registry);
}

/// 10,000 series.
double page() {
  Registry registry(process_pipeline().clock());
  std::vector<Counter> counters;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    const Counter all(
        {.name = std::string("bench.") + name, .help = "Help.", .label_keys = {"rank", "host"}},
        registry);
    for (int i = 0; i < 2000; ++i) counters.push_back(all.with({std::to_string(i), "node-1"}));
  }
  for (const auto& counter : counters) counter.add(7);
  return page_of(registry);
}

}  // namespace

int main() {
  const Counter counter({.name = "bench.counter"});
  const Gauge gauge({.name = "bench.gauge"});
  const Stat stat({.name = "bench.stat"});
  const Histogram histogram({.name = "bench.histogram"});
  Results results;
  // Instruments belong to one thread, the agent's loop; put_metric is for all.
  results.add("counter", per_call(1, [&](int) { counter.add(1); }));
  results.add("gauge", per_call(1, [&](int i) { gauge.set(i); }));
  results.add("stat", per_call(1, [&](int i) { stat.add(i & 1023); }));
  results.add("histogram", per_call(1, [&](int i) { histogram.add(1 + (i & 1023)); }));
  for (const int threads : {1, 2}) {
    results.add(fmt::format("put_metric_null_{}", threads),
                per_call(threads, [](int i) { metrics::put_metric("bench.metric", i); }));
  }
  metrics::configure(std::make_shared<Ignored>());
  results.add("put_metric_handler", per_call(1, [](int i) { metrics::put_metric("bench", i); }));
  results.add("collect_1000_series", collection());
  results.add("page_10000_series", page());
  results.add("page_10000_metrics_of_workers", page_of_workers());
  results.print();
}
