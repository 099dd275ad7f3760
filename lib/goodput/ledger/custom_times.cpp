// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/custom_times.hpp"

#include "core/text.hpp"

#include <algorithm>

namespace elastrun::goodput {

void CustomTimes::enter(std::string_view name, Duration so_far) {
  times_ = times(so_far);
  entered_ = so_far;
  name_ = name.empty() ? std::string(kOther) : to_lower(cut(name, kLongest));
  // The names are the script's: those that do not fit count together.
  if (times_.size() >= kMost && !times_.contains(name_)) name_ = kOther;
}

std::map<std::string, Duration> CustomTimes::times(Duration so_far) const {
  auto all = times_;
  if (so_far > entered_) {
    all[name_.empty() ? std::string(kOther) : name_] += so_far - entered_;
    return all;
  }
  // Time was taken out of the bucket again, and of which name is not known.
  Duration taken = entered_ - so_far;
  for (auto& [name, time] : all) {
    const Duration part = std::min(time, taken);
    time -= part;
    taken -= part;
  }
  std::erase_if(all, [](const auto& one) { return one.second == Duration::zero(); });
  return all;
}

}  // namespace elastrun::goodput
