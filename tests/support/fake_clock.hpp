// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace elastrun::test {

/// Time that passes only when a test says so. Alarms ring inside `advance`, in order of their time.
class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  WallTime wall() const override {
    return WallTime(std::chrono::seconds(1'767'323'045)) + passed();
  }
  std::unique_ptr<Alarm> make_alarm() override { return std::make_unique<FakeAlarm>(*this); }

  void advance(Duration time) {
    const auto until = now_ + time;
    while (true) {
      const auto next = std::ranges::min_element(pending_, {}, &Pending::when);
      if (next == pending_.end() || next->when > until) break;
      now_ = std::max(now_, next->when);
      const auto ring = std::move(next->ring);
      pending_.erase(next);
      ring();
    }
    now_ = until;
  }
  /// Nobody runs: what should have rung meanwhile rings when time advances again.
  void pause(Duration time) { now_ += time; }
  std::size_t armed() const { return pending_.size(); }

 private:
  struct Pending {
    const Alarm* owner;
    TimePoint when;
    std::function<void()> ring;
  };
  class FakeAlarm final : public Alarm {
   public:
    explicit FakeAlarm(FakeClock& clock) : clock_(clock) {}
    ~FakeAlarm() override { disarm(); }
    void arm(TimePoint when, std::function<void()> ring) override {
      disarm();
      clock_.pending_.push_back({this, when, std::move(ring)});
    }
    void disarm() override {
      std::erase_if(clock_.pending_, [this](const Pending& one) { return one.owner == this; });
    }

   private:
    FakeClock& clock_;
  };
  Duration passed() const { return now_.time_since_epoch() - kStart; }

  static constexpr Duration kStart = std::chrono::hours(1);
  TimePoint now_{kStart};
  std::vector<Pending> pending_;
};

}  // namespace elastrun::test
