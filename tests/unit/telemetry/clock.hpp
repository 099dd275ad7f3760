// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "telemetry/route.hpp"

/// A clock that is set by hand. Has no alarms: nothing in telemetry sleeps.
struct SetClock final : elastrun::Clock {
  elastrun::TimePoint now() const override { return mono; }
  elastrun::WallTime wall() const override { return wall_time; }
  std::unique_ptr<elastrun::Alarm> make_alarm() override { return nullptr; }
  elastrun::TimePoint mono{};
  elastrun::WallTime wall_time{std::chrono::seconds(1767323045)};
};

struct OnePipeline {
  SetClock clock;
  elastrun::telemetry::Pipeline pipeline{clock};
};
