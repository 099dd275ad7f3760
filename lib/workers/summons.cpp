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

struct Summons::Family {
  explicit Family(const ProcessTable& job, const ProcessTable* below = nullptr) : roots(below) {
    for (const auto& one : job) by_pid.emplace(one.pid, &one);
  }
  const ProcessEntry* find(pid_t pid) const {
    const auto at = by_pid.find(pid);
    return at == by_pid.end() ? nullptr : at->second;
  }
  bool is_root(pid_t pid) const {
    return std::ranges::any_of(*roots, [&](const auto& one) { return one.pid == pid; });
  }
  bool has_child(const ProcessEntry& parent) const {
    return std::ranges::any_of(by_pid, [&](const auto& one) {
      return one.second->parent == parent.pid && one.second->group == parent.group;
    });
  }
  std::unordered_map<pid_t, const ProcessEntry*> by_pid;
  const ProcessTable* roots;  // null: the workers
};

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
  return std::ranges::find(workers_, pid) != workers_.end();
}

/// Whether every process above it, as far as those of its group go, is a wrapper. An orphan counts
/// as a child of its worker. A table is not a snapshot: the way up may even be a circle, by pids
/// that were used again.
bool Summons::reached(const Family& family, const ProcessEntry& one) {
  const bool of_workers = family.roots == nullptr;
  const auto is_root = [&](pid_t pid) { return of_workers ? leads(pid) : family.is_root(pid); };
  const ProcessEntry* at = &one;
  for (std::size_t steps = 0; steps <= family.by_pid.size(); ++steps) {
    if (is_root(at->pid)) return true;
    const auto* above = family.find(at->parent);
    if (above == nullptr || above->group != one.group) {
      if (!of_workers) return false;
      above = family.find(one.group);
      if (above == nullptr) return true;
    }
    if (processes_.wrapper_of(*above) == Wrapper::None) return false;
    at = above;
  }
  return false;
}

bool Summons::was_begun_since(const ProcessEntry& one) {
  const bool cannot_be = mute_.contains(one.group) && trainers_.contains(one.group);
  return !known_.contains(key_of(one)) && one.start_time >= began_ && !cannot_be;
}

/// Not timeout(1), as long as there is one below it to be asked in its place.
bool Summons::is_due(const Family& family, const ProcessEntry& one) {
  if (told_.contains(key_of(one)) || was_begun_since(one) || !reached(family, one)) return false;
  return processes_.wrapper_of(one) != Wrapper::Relay || !family.has_child(one);
}

ProcessTable Summons::next(const ProcessTable& job) {
  ProcessTable of_workers;
  std::ranges::copy_if(job, std::back_inserter(of_workers),
                       [this](const ProcessEntry& one) { return leads(one.group); });
  return due(Family(job), of_workers);
}

ProcessTable Summons::below(const ProcessTable& roots, const ProcessTable& job) {
  return due(Family(job, &roots), job);
}

ProcessTable Summons::due(const Family& family, const ProcessTable& among) {
  ProcessTable found;
  std::ranges::copy_if(among, std::back_inserter(found),
                       [&](const ProcessEntry& one) { return is_due(family, one); });
  for (const auto& one : found) told_.insert(key_of(one));
  return found;
}

ProcessTable Summons::waited_for(const ProcessTable& job) {
  const Family family(job);
  ProcessTable found;
  for (const auto& one : job) {
    const auto* above = family.find(one.parent);
    // A child of one that was asked, in its group: say an upload that the trainer has begun and
    // waits for.
    const bool of_asked = above != nullptr && above->group == one.group && leads(one.group) &&
                          told_.contains(key_of(*above)) && !told_.contains(key_of(one));
    if (of_asked && !was_begun_since(one) && processes_.leaves_to(*above, one))
      found.push_back(one);
  }
  for (const auto& one : found) told_.insert(key_of(one));
  return found;
}

ProcessTable Summons::rest(const ProcessTable& job) {
  ProcessTable found;
  for (const auto& one : job) {
    if (!leads(one.group) || was_begun_since(one)) continue;
    if (told_.insert(key_of(one)).second) found.push_back(one);
  }
  return found;
}

ProcessTable set_apart(const ProcessTable& job, const std::vector<pid_t>& workers,
                       const process::JobProcesses& processes) {
  std::unordered_map<pid_t, const ProcessEntry*> by_pid;
  std::set<pid_t> manned;  // groups of workers with a living process
  for (const auto& one : job) {
    by_pid.emplace(one.pid, &one);
    if (one.group == one.session) manned.insert(one.group);
  }
  ProcessTable found;
  for (const auto& one : job) {
    // A worker leads its session and its group: both have its pid.
    if (one.group == one.session || std::ranges::find(workers, one.session) == workers.end()) {
      continue;
    }
    const auto parent = by_pid.find(one.parent);
    const bool orphan = parent == by_pid.end() || parent->second->session != one.session;
    const bool below_group = !orphan && parent->second->group == one.session;
    if (orphan ? !manned.contains(one.session) : below_group && processes.waits(*parent->second)) {
      found.push_back(one);
    }
  }
  return found;
}

}  // namespace elastrun::workers
