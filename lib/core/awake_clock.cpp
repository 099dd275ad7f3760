// SPDX-License-Identifier: Apache-2.0
#include "core/awake_clock.hpp"

#include <utility>

namespace elastrun {

class AwakeClock::AwakeAlarm final : public Alarm {
 public:
  explicit AwakeAlarm(AwakeClock& clock) : clock_(clock) {}
  ~AwakeAlarm() override { disarm(); }

  void arm(TimePoint when, Ring ring) override {
    forget();
    clock_.pending_.push_back({this, when, std::move(ring)});
    clock_.expect_next();
  }
  void disarm() override {
    if (forget()) clock_.expect_next();
  }

 private:
  bool forget() {
    return std::erase_if(clock_.pending_,
                         [this](const Pending& one) { return one.owner == this; }) > 0;
  }

  AwakeClock& clock_;
};

std::unique_ptr<Alarm> AwakeClock::make_alarm() {
  return std::make_unique<AwakeAlarm>(*this);
}

/// The alarm has rung, gets another time, or has nothing left to ring for.
void AwakeClock::rest() {
  lost_ += std::max<Duration>(clock_.now() - expected_, Duration::zero());
  expected_ = TimePoint::max();
}

void AwakeClock::expect_next() {
  rest();
  if (pending_.empty()) return look_->disarm();
  const auto next = std::ranges::min_element(pending_, {}, &Pending::due);
  expected_ = clock_.now() + std::clamp<Duration>(next->due - now(), Duration::zero(), kLook);
  look_->arm(expected_, [this] { look(); });
}

/// One alarm rings at most; it may destroy this clock.
void AwakeClock::look() {
  rest();
  const auto next = std::ranges::min_element(pending_, {}, &Pending::due);
  if (next == pending_.end() || next->due > now()) return expect_next();
  const auto ring = std::move(next->ring);
  pending_.erase(next);
  expect_next();
  ring();
}

}  // namespace elastrun
