// SPDX-License-Identifier: Apache-2.0
#include "workers/apart.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace elastrun::workers {

process::ProcessTable set_apart(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                const std::function<bool(const process::ProcessEntry&)>& waits) {
  std::unordered_map<pid_t, const process::ProcessEntry*> by_pid;
  std::set<pid_t> manned;  // groups of workers with a living process
  for (const auto& one : job) {
    by_pid.emplace(one.pid, &one);
    if (one.group == one.session) manned.insert(one.group);
  }
  process::ProcessTable found;
  for (const auto& one : job) {
    // A worker leads its session and its group: both have its pid.
    if (one.group == one.session || std::ranges::find(workers, one.session) == workers.end()) {
      continue;
    }
    const auto parent = by_pid.find(one.parent);
    const bool orphan = parent == by_pid.end() || parent->second->session != one.session;
    const bool below_group = !orphan && parent->second->group == one.session;
    if (orphan ? !manned.contains(one.session) : below_group && waits(*parent->second)) {
      found.push_back(one);
    }
  }
  return found;
}

}  // namespace elastrun::workers
