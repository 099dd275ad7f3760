// SPDX-License-Identifier: Apache-2.0
#include "telemetry/exact_windows.hpp"

#include <iterator>

namespace elastrun::telemetry {

void ExactWindows::add(double value) noexcept {
  const TimePoint now = clock_.now();
  const std::lock_guard lock(mutex_);
  windows_.add(value, now, closing_);
  for (auto& window : closing_) closed_.push_back(std::move(window));
  closing_.clear();
  // Windows that no collection takes must not fill the memory.
  while (closed_.size() > kMost) {
    closed_.pop_front();
    lost_ += 1;
  }
}

std::vector<ExactWindows::Closed> ExactWindows::take_closed(TimePoint now) {
  const std::lock_guard lock(mutex_);
  windows_.advance(now, closing_);
  std::vector<Closed> all(std::make_move_iterator(closed_.begin()),
                          std::make_move_iterator(closed_.end()));
  all.insert(all.end(), closing_.begin(), closing_.end());
  closed_.clear();
  closing_.clear();
  return all;
}

std::uint64_t ExactWindows::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

}  // namespace elastrun::telemetry
