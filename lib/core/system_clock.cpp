// SPDX-License-Identifier: Apache-2.0

#include "core/system_clock.hpp"

#include <boost/asio/steady_timer.hpp>
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

namespace {

class TimerAlarm final : public Alarm {
 public:
  explicit TimerAlarm(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  ~TimerAlarm() override { *generation_ += 1; }

  void arm(TimePoint when, Ring ring) override {
    // A completion that is already queued cannot be cancelled any more, so each carries its number.
    const auto mine = ++*generation_;
    timer_.expires_at(when);
    timer_.async_wait([current = generation_, mine, ring = std::move(ring)](auto error) {
      if (!error && *current == mine) ring();
    });
  }

  void disarm() override {
    *generation_ += 1;
    timer_.cancel();
  }

 private:
  boost::asio::steady_timer timer_;
  // Shared with queued completions, which may run after this object has gone.
  std::shared_ptr<unsigned long> generation_ = std::make_shared<unsigned long>(0);
};

class SystemClock final : public Clock {
 public:
  explicit SystemClock(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall() const override { return std::chrono::system_clock::now(); }
  std::unique_ptr<Alarm> make_alarm() override { return std::make_unique<TimerAlarm>(executor_); }

 private:
  boost::asio::any_io_executor executor_;
};

}  // namespace

std::unique_ptr<Clock> make_system_clock(boost::asio::any_io_executor executor) {
  return std::make_unique<SystemClock>(std::move(executor));
}

}  // namespace elastrun
