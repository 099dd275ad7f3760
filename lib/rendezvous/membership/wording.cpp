// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/wording.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::rendezvous {
std::string nodes_text(int count) {
  return fmt::format("{} node{}", count, count == 1 ? "" : "s");
}

std::string restarts_text(int spent, int left, int most) {
  if (spent + left == most) return fmt::format("{} of {} restarts used", spent, most);
  return fmt::format("{} restart{}, {} of {} left", spent, spent == 1 ? "" : "s", left, most);
}

std::string progress_text(const Rules& rules, const Quorum& there, const JoinPhase& join_phase,
                          const WorldFence& world_fence, bool held, const std::string& hosts,
                          TimePoint now) {
  const int here = there.returning + there.fresh;
  if (there.stopping > 0) {
    auto end = join_phase.given_up(rules, there);
    if (here >= rules.min_nodes) end = std::max(end, world_fence.fence_limit(now).value_or(end));
    return fmt::format("{} here; waiting for {} to stop their workers, at most {}",
                       nodes_text(here), there.stopping,
                       format_duration(std::max<Duration>(end - now, Duration::zero())));
  }
  if (here >= rules.min_nodes && held) {
    return fmt::format("{} here, enough to start; the coordinator cannot renew its election",
                       nodes_text(here));
  }
  if (const auto end = world_fence.fence_limit(now); end && here >= rules.min_nodes) {
    const int known = world_fence.fence.stopping_groups().count,
              unheard = world_fence.fence.unheard();
    return fmt::format("{} here, enough to start; waiting for {} to stop {} workers, at most {}",
                       nodes_text(here), nodes_text(known + unheard),
                       known + unheard == 1 ? "its" : "their", format_duration(*end - now));
  }
  if (here >= rules.min_nodes && world_fence.is_up(now)) {
    return fmt::format(
        "{} here; none of the {} of the last round, which may still be at work out of reach: "
        "waiting for one of them, at most {}",
        nodes_text(here), nodes_text(there.previous_size),
        format_duration(*world_fence.limit() - now));
  }
  const auto last_call = join_phase.last_call(rules);
  if (here >= rules.min_nodes && last_call) {
    const Duration left = std::max(*last_call - now, Duration::zero());
    return fmt::format("{} here, enough to start; last call for up to {} more ends in {}",
                       nodes_text(here), rules.max_nodes - here, format_duration(left));
  }
  const Duration left = std::max(join_phase.since() + rules.join_timeout - now, Duration::zero());
  return fmt::format("{} of {} nodes here{}; waiting for {} more, at most {}", here,
                     rules.min_nodes, hosts, rules.min_nodes - here, format_duration(left));
}

}  // namespace elastrun::rendezvous
