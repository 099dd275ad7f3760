// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <cmath>

/// One of everything, for tests of formats.
struct SamplePoints {
  struct SetClock final : elastrun::Clock {
    elastrun::TimePoint now() const override { return mono; }
    elastrun::WallTime wall() const override {
      return elastrun::WallTime(std::chrono::seconds(1763690000)) + mono.time_since_epoch();
    }
    std::unique_ptr<elastrun::Alarm> make_alarm() override { return nullptr; }
    elastrun::TimePoint mono{};
  };

  SamplePoints() {
    using namespace elastrun::telemetry;
    const Counter restarts({.name = "elastrun.worker.restarts",
                            .unit = "{restart}",
                            .help = "Restarts of \"the\" group.\nAll\\of them.",
                            .label_keys = {"role"}},
                           registry);
    restarts.with({"trainer"}).add(2);
    restarts.with({"a \"b\"\\\nc \xc3\xa9 \xff"}).add(1);
    const Instrument<Kind::Counter> energy(
        {.name = "hw.energy", .unit = "J", .help = "Energy.", .scope = "hw"}, registry);
    energy.add(0.5);
    const Gauge load({.name = "load.share", .unit = "1", .help = "Share.", .label_keys = {"cpu"}},
                     registry);
    load.with({"0"}).set(0.25);
    load.with({"1"}).set(std::nan(""));
    load.with({"2"}).set(HUGE_VAL);
    static_cast<void>(load.with({"3"}));  // nobody has said anything
    const Stat batch({.name = "batch.time", .unit = "ms", .help = "Time of a batch."}, registry);
    for (const double value : {1.0, 2.0, 4.5}) batch.add(value);
    const Histogram duration({.name = "elastrun.rendezvous.duration",
                              .unit = "s",
                              .help = "Time in one rendezvous round."},
                             registry);
    for (const double value : {0.2, 0.3, 0.75, 2.5}) duration.add(value);
    const Histogram drift({.name = "clock.drift", .unit = "s", .help = "Drift."}, registry);
    for (const double value : {-1.0, 0.0, 3.0}) drift.add(value);
    const Stat skew({.name = "clock.skew", .unit = "s", .help = "Skew."}, registry);
    skew.add(-2);
    const UpDown queue({.name = "queue.length", .help = "Waiting."}, registry);
    queue.add(-3);
    clock.mono += std::chrono::milliseconds(1500);
  }
  elastrun::telemetry::Snapshot snapshot() { return registry.collect(); }

  SetClock clock;
  elastrun::telemetry::Registry registry{clock};
};
