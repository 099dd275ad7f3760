// SPDX-License-Identifier: Apache-2.0
#include "timer/api.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <exception>

namespace elastrun::timer {
namespace {

constexpr std::string_view kArea = "timer";

std::string scopes_of(const std::vector<TimerRequest>& timers) {
  std::vector<std::string> scopes;
  for (const auto& timer : timers) scopes.push_back("'" + timer.scope_id + "'");
  return "[" + join(scopes, ", ") + "]";
}

}  // namespace

TimerServer::TimerServer(RequestQueue& queue, Clock& clock, Duration max_interval)
    : queue_(queue), clock_(clock), max_interval_(max_interval), alarm_(clock.make_alarm()) {}

void TimerServer::start() {
  alarm_->arm(clock_.now() + max_interval_, [this] {
    start();  // first: a pass may stop it
    run_watchdog();
  });
}

void TimerServer::stop() {
  alarm_->disarm();
}

void TimerServer::run_watchdog() {
  register_timers(queue_.get(std::max<std::size_t>(1, queue_.size()), Duration::zero()));
  std::set<std::int64_t> reaped;
  for (const auto& [worker, timers] : get_expired_timers(to_seconds(clock_.wall()))) {
    log::info(kArea, "Reaping worker_id=[{}]. Expired timers: {}", worker, scopes_of(timers));
    bool done = true;
    try {
      done = reap_worker(worker);
    } catch (const std::exception& error) {
      log::error(kArea, "Reaping worker {} has thrown: {}", worker, error.what());
    }
    if (done) {
      log::info(kArea, "Successfully reaped worker=[{}]", worker);
      reaped.insert(worker);
    } else {
      log::error(kArea, "Error reaping worker=[{}]. Will retry on next watchdog.", worker);
    }
  }
  // After the pass, and only of those that ended: the timers of others are what the next pass tries
  // again by.
  clear_timers(reaped);
}

}  // namespace elastrun::timer
