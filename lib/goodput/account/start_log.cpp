// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/start_log.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::goodput {

double WorkersStart::goodput() const {
  if (ran <= Duration::zero()) return 0;
  return std::clamp(static_cast<double>(productive.count()) / static_cast<double>(ran.count()), 0.0,
                    1.0);
}

void StartLog::begin(TimePoint now, Duration productive) {
  end(now, productive);
  if (starts_.size() == kMost) starts_.pop_front();
  WorkersStart start;
  start.number = ++count_;
  start.at = now - job_start_;
  starts_.push_back(std::move(start));
  taken_.assign(starts_.size(), {});
  begun_ = now;
  open_ = true;
}

/// The last work goes first: a job resumes at a step, and what came after it is done again.
void StartLog::lose(Duration lost) {
  for (std::size_t i = starts_.size(); i-- > 0;) {
    const Duration here = std::min(lost, starts_[i].productive);
    starts_[i].productive -= here;
    taken_[i] += here;
    lost -= here;
  }
}

/// Of the oldest first: what is kept lies before what is lost.
void StartLog::regain(Duration time) {
  productive_ += time;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const Duration here = std::min(time, taken_[i]);
    starts_[i].productive += here;
    taken_[i] -= here;
    time -= here;
  }
}

void StartLog::settle(Duration productive) {
  const Duration gained = productive - std::exchange(productive_, productive);
  if (gained < Duration::zero()) return lose(-gained);
  if (!starts_.empty()) starts_.back().productive += gained;
}

void StartLog::step(std::int64_t number, Duration productive) {
  settle(productive);
  if (!open_) return;
  auto& start = starts_.back();
  if (!start.first_step) start.first_step = number;
  start.last_step = number;
}

void StartLog::end(TimePoint now, Duration productive) {
  if (!open_) return;
  settle(productive);
  open_ = false;
  starts_.back().ran = std::max(now - begun_, Duration::zero());
}

void StartLog::why(std::string text, bool better) {
  if (starts_.empty() || (!starts_.back().ended.empty() && !better)) return;
  starts_.back().ended = std::move(text);
}

std::vector<WorkersStart> StartLog::starts(TimePoint now, Duration productive) const {
  StartLog copy = *this;
  copy.settle(productive);
  if (open_) copy.starts_.back().ran = std::max(now - begun_, Duration::zero());
  // Steps that are told when the group has gone are of that start, too.
  for (auto& start : copy.starts_) start.ran = std::max(start.ran, start.productive);
  return {copy.starts_.begin(), copy.starts_.end()};
}

}  // namespace elastrun::goodput
