// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/waiting_warning.hpp"

#include "core/log.hpp"

#include <algorithm>

namespace elastrun::agent {
namespace {

// Nodes that are started together come within a few seconds of each other.
constexpr Duration kFirstWarning = std::chrono::seconds(10);
// A job may wait for days: its log must not fill up meanwhile.
constexpr Duration kLongestPause = std::chrono::minutes(10);

}  // namespace

WaitingWarning::WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen)
    : clock_(clock), wanted_(job.max_nodes > 1 && !is_seen), endpoint_(job.rdzv_endpoint) {}

void WaitingWarning::phase(Phase phase, TimePoint now) {
  alarm_.reset();
  if (!wanted_ || phase != Phase::Joining) return;
  text_.clear();
  pause_ = kFirstWarning;
  alarm_ = clock_.make_alarm();
  alarm_->arm(now + pause_, [this] { warn(); });
}

void WaitingWarning::warn() {
  log::warning("rendezvous", "{}; nodes meet at {}",
               text_.empty() ? "waiting for other nodes" : text_, endpoint_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  alarm_->arm(clock_.now() + pause_, [this] { warn(); });
}

}  // namespace elastrun::agent
