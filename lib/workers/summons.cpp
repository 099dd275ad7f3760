// SPDX-License-Identifier: Apache-2.0

#include "workers/summons.hpp"

#include "process/process_table.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace elastrun::workers {
namespace {

// As long as a guardian's word may be late for process::SignalEscalation.
constexpr auto kEcho = std::chrono::seconds(10);

}  // namespace

void PassingSignals::heard(const process::SignalEvent& event, TimePoint now) {
  std::erase_if(orders_, [now](const Order& one) { return now - one.since >= kEcho; });
  const bool by_agent = event.route == process::Route::Process;
  const auto order = std::ranges::find_if(orders_, [&](const Order& one) {
    const bool known = by_agent ? one.by_agent : one.by_guardian;
    return one.number == event.number && one.sender == event.sender_pid && (one.waits || !known);
  });
  if (order != orders_.end()) {
    (by_agent ? order->by_agent : order->by_guardian) = true;
    return;
  }
  // A process may send as many signals as it likes, and each would be kept for ten seconds.
  if (orders_.size() >= kMostOrders) orders_.pop_front();
  orders_.push_back({event.number, event.sender_pid, now, by_agent, !by_agent});
}

std::optional<TimePoint> PassingSignals::due(int number) const {
  const auto order = std::ranges::find_if(
      orders_, [number](const Order& one) { return one.number == number && one.waits; });
  if (order == orders_.end()) return std::nullopt;
  return order->since + kWait;
}

bool PassingSignals::is_for_workers(int number, TimePoint now) {
  bool is_for_them = false;
  for (auto& one : orders_) {
    if (one.number != number || !one.waits || now < one.since + kWait) continue;
    one.waits = false;
    // Where both have it every process was signalled, and the workers have theirs.
    is_for_them = is_for_them || !(one.by_agent && one.by_guardian);
  }
  return is_for_them;
}

process::ProcessTable receivers(const process::JobProcesses& processes,
                                const std::vector<pid_t>& workers, int signal) {
  const auto job = processes.processes();
  auto found = Summons(processes, workers, job, process::kNever).next(job);
  std::erase_if(
      found, [signal](const auto& one) { return !process::read_status(one.pid).survives(signal); });
  return found;
}

using process::ProcessEntry;
using process::ProcessTable;
using process::Wrapper;

namespace {

/// A table by pid.
struct Family {
  explicit Family(const ProcessTable& job) {
    for (const auto& one : job) by_pid.emplace(one.pid, &one);
  }
  const ProcessEntry* find(pid_t pid) const {
    const auto at = by_pid.find(pid);
    return at == by_pid.end() ? nullptr : at->second;
  }
  bool has_child(const ProcessEntry& parent) const {
    return std::ranges::any_of(by_pid, [&](const auto& one) {
      return one.second->parent == parent.pid && one.second->group == parent.group;
    });
  }
  std::unordered_map<pid_t, const ProcessEntry*> by_pid;
};

bool has(const std::vector<pid_t>& pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

}  // namespace

Summons::Summons(const process::JobProcesses& processes, std::vector<pid_t> workers,
                 const ProcessTable& job, std::uint64_t now)
    : processes_(processes), workers_(std::move(workers)), began_(now) {
  for (const auto& one : job) {
    known_.insert(key_of(one));
    if (leads(one.pid) && processes_.wrapper_of(one) == Wrapper::None) trainers_.insert(one.pid);
    any_wrapped_ = any_wrapped_ || (leads(one.pid) && !trainers_.contains(one.pid));
  }
}

bool Summons::leads(pid_t pid) const {
  return has(workers_, pid);
}

/// Those among which it is due, each once.
template <class Due>
ProcessTable Summons::take(const ProcessTable& among, Due due) {
  ProcessTable found;
  std::ranges::copy_if(among, std::back_inserter(found), [&](const ProcessEntry& one) {
    const bool cannot_have_begun = mute_.contains(one.group) && trainers_.contains(one.group);
    const bool begun_since =
        !known_.contains(key_of(one)) && one.start_time >= began_ && !cannot_have_begun;
    return !begun_since && !told_.contains(key_of(one)) && due(one);
  });
  for (const auto& one : found) told_.insert(key_of(one));
  return found;
}

/// Takes each of which every process above it, as far as those of its group go, is a wrapper, up to
/// one of `roots`, or to a worker if there are none. An orphan counts as a child of its worker. A
/// table is not a snapshot: the way up may even be a circle, by pids that were used again. Not
/// timeout(1), as long as there is one below it to be asked in its place.
ProcessTable Summons::take_first(const ProcessTable& among, const ProcessTable& job,
                                 const std::vector<pid_t>& roots) {
  const Family family(job);
  const auto reached = [&](const ProcessEntry& one) {
    const ProcessEntry* at = &one;
    for (std::size_t steps = 0; steps <= job.size(); ++steps) {
      if (roots.empty() ? leads(at->pid) : has(roots, at->pid)) return true;
      const auto* above = family.find(at->parent);
      if (above == nullptr || above->group != one.group) {
        if (!roots.empty()) return false;
        above = family.find(one.group);
        if (above == nullptr) return true;
      }
      if (processes_.wrapper_of(*above) == Wrapper::None) return false;
      at = above;
    }
    return false;
  };
  return take(among, [&](const ProcessEntry& one) {
    return reached(one) && (processes_.wrapper_of(one) != Wrapper::Relay || !family.has_child(one));
  });
}

ProcessTable Summons::next(const ProcessTable& job) {
  ProcessTable of_workers;
  std::ranges::copy_if(job, std::back_inserter(of_workers),
                       [this](const ProcessEntry& one) { return leads(one.group); });
  return take_first(of_workers, job, {});
}

ProcessTable Summons::below(const ProcessTable& roots, const ProcessTable& job) {
  std::vector<pid_t> pids;
  for (const auto& one : roots) pids.push_back(one.pid);
  return roots.empty() ? ProcessTable() : take_first(job, job, pids);
}

ProcessTable Summons::waited_for(const ProcessTable& job) {
  const Family family(job);
  return take(job, [&](const ProcessEntry& one) {
    const auto* above = family.find(one.parent);
    // A child of one that was asked, in its group: say an upload that the trainer has begun and
    // waits for.
    return above != nullptr && above->group == one.group && leads(one.group) &&
           told_.contains(key_of(*above)) && processes_.leaves_to(*above, one);
  });
}

ProcessTable Summons::rest(const ProcessTable& job) {
  return take(job, [this](const ProcessEntry& one) { return leads(one.group); });
}

ProcessTable set_apart(const ProcessTable& job, const std::vector<pid_t>& workers,
                       const process::JobProcesses& processes) {
  const Family family(job);
  std::set<pid_t> manned;  // groups of workers with a living process
  for (const auto& one : job) {
    if (one.group == one.session) manned.insert(one.group);
  }
  ProcessTable found;
  for (const auto& one : job) {
    // A worker leads its session and its group: both have its pid.
    if (one.group == one.session || !has(workers, one.session)) continue;
    const auto* parent = family.find(one.parent);
    const bool orphan = parent == nullptr || parent->session != one.session;
    const bool is_apart = orphan ? !manned.contains(one.session)
                                 : parent->group == one.session && processes.waits(*parent);
    if (is_apart) found.push_back(one);
  }
  return found;
}

}  // namespace elastrun::workers
