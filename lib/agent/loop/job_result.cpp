// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/job_result.hpp"

#include "core/text.hpp"

#include <fmt/format.h>

namespace elastrun::agent {

std::string ExpiredTimer::sentence() const {
  if (after <= Duration::zero()) return fmt::format("timer '{}' had expired when it came", scope);
  return fmt::format("expired timer '{}' after {}", scope, format_duration(after));
}

}  // namespace elastrun::agent
