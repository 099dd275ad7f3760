// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"

#include <boost/asio/steady_timer.hpp>

namespace elastrun {
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
