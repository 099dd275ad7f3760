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

std::string rejoined_text(const Node& node) {
  return fmt::format("node {} wants to start again", node.id);
}

std::string departed_text(const Member& member, Cause::Kind kind, const std::string& why) {
  const bool left = kind == Cause::Kind::NodeLeft;
  const std::string rank =
      member.node.node_rank >= 0 ? fmt::format(" (node rank {})", member.node.node_rank) : "";
  return fmt::format("node {}{} {}{}{}", member.node.id, rank, left ? "has left" : "was lost",
                     why.empty() ? "" : ": ", why);
}

/// Of --rdzv-conf, under which its user finds join_timeout.
static std::string_view limit_key(const Rules& rules) {
  return rules.fixed_ranks ? "timeout" : "join_timeout";
}

std::string stuck_text(const Rules& rules) {
  return fmt::format(
      "this node did not stop its workers and come back within {} ({}); the others have gone on "
      "without it",
      format_duration(rules.join_timeout), limit_key(rules));
}

std::string missing_role_text(const std::string& role, const std::vector<std::string>& there) {
  return fmt::format(
      "--role-restart {}=own: no agent of this job has that role, only {}; start agents with "
      "--role {}, or correct the name",
      printable(role), printable(join(there, ", ")), printable(role));
}

std::string join_timeout_text(const Rules& rules, const Quorum& there,
                              const WorldFence& world_fence, const std::string& hosts,
                              TimePoint now) {
  if (world_fence.held()) {
    return fmt::format("the coordinator could not renew its election within {} ({})",
                       format_duration(rules.join_timeout), limit_key(rules));
  }
  if (world_fence.is_up(now) && there.returning + there.fresh >= rules.min_nodes) {
    return fmt::format("none of the {} of the last round came within {} ({})",
                       nodes_text(there.previous_size), format_duration(rules.join_timeout),
                       limit_key(rules));
  }
  return fmt::format("{}{} of at least {} came within {} ({})",
                     nodes_text(there.returning + there.fresh), hosts, rules.min_nodes,
                     format_duration(rules.join_timeout), limit_key(rules));
}

std::string waiting_hosts_text(Roster& roster) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> hosts;
  for (const auto* member : roster.with(MemberState::Waiting)) {
    const auto& node = member->node;
    if (const auto& name = node.host.empty() ? node.address : node.host; !name.empty()) {
      hosts.push_back(name);
    }
  }
  if (hosts.empty()) return {};
  const bool more = hosts.size() > kShown;
  hosts.resize(std::min(hosts.size(), kShown));
  return fmt::format(" ({}{})", join(hosts, ", "), more ? ", .." : "");
}

std::string progress_text(const Rules& rules, const Quorum& there, const JoinPhase& join_phase,
                          const WorldFence& world_fence, const std::string& hosts, TimePoint now) {
  const int here = there.returning + there.fresh;
  if (there.stopping > 0) {
    auto end = join_phase.given_up(rules, there);
    if (here >= rules.min_nodes) end = std::max(end, world_fence.fence_limit(now).value_or(end));
    return fmt::format("{} here; waiting for {} to stop their workers, at most {}",
                       nodes_text(here), there.stopping,
                       format_duration(std::max<Duration>(end - now, Duration::zero())));
  }
  if (here >= rules.min_nodes && world_fence.held()) {
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
