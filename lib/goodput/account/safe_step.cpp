// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/safe_step.hpp"

#include <algorithm>
#include <ranges>

namespace elastrun::goodput {

std::optional<std::int64_t> SafeStep::done(std::int64_t rank, std::int64_t step) {
  if (done_.size() < kMost || done_.contains(rank)) done_[rank] = step;
  if (done_.size() == 1) return rank == 0 ? std::optional(step) : std::nullopt;
  return std::ranges::min(done_ | std::views::values);
}

}  // namespace elastrun::goodput
