// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace elastrun::agent {

/// A page that costs the loop time: requests soon after another get the same one, so that
/// rendering takes at most a tenth of the loop's time, however many ask. Pure.
class RenderedPage {
 public:
  static constexpr Duration kOldest = std::chrono::seconds(5);  // less than scrapers' intervals

  bool is_fresh(TimePoint now) const { return now < fresh_until_; }
  const std::string& text() const { return text_; }
  void put(std::string text, TimePoint begun, TimePoint done) {
    text_ = std::move(text);
    fresh_until_ = done + std::min(9 * (done - begun), kOldest);
  }

 private:
  std::string text_;
  TimePoint fresh_until_ = TimePoint::min();
};

}  // namespace elastrun::agent
