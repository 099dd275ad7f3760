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

void AwakeClock::expect_next() {
  if (pending_.empty()) {
    time_.rest(clock_.now());
    return look_->disarm();
  }
  const auto next = std::ranges::min_element(pending_, {}, &Pending::due);
  look_->arm(time_.expect(clock_.now(), next->due), [this] { look(); });
}

/// One alarm rings at most; it may destroy this clock.
void AwakeClock::look() {
  time_.rest(clock_.now());
  const auto next = std::ranges::min_element(pending_, {}, &Pending::due);
  if (next == pending_.end() || next->due > now()) return expect_next();
  const auto ring = std::move(next->ring);
  pending_.erase(next);
  expect_next();
  ring();
}

}  // namespace elastrun
