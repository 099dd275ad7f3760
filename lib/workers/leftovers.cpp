// SPDX-License-Identifier: Apache-2.0
#include "workers/leftovers.hpp"

#include "process/descendants.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::workers {
namespace {

constexpr Duration kFirstPause = std::chrono::microseconds(500);
// Deaths of orphans are told to us at once; only what has a parent outside of the job is not.
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
// What ends within this time needs no word.
constexpr Duration kUnnamed = std::chrono::milliseconds(500);
constexpr std::size_t kMostNames = 8;

}  // namespace

Leftovers::Leftovers(TimePoint now, TimePoint until, bool asked, Duration last_grace)
    : until_(until),
      name_at_(now + kUnnamed),
      asked_(asked),
      last_grace_(last_grace),
      pause_(kFirstPause) {}

void Leftovers::asked(TimePoint until) {
  asked_ = true;
  until_ = std::min(until_, until);
  pause_ = kFirstPause;
}

void Leftovers::have_been_told(const process::ProcessTable& table) {
  for (const auto& one : table) told_.emplace(one.pid, one.start_time);
}

Leftovers::Orders Leftovers::look(TimePoint now, const Left& left) {
  Orders orders;
  orders.over = !left.groups_alive && left.escaped.empty();
  if (orders.over) return orders;
  if (now >= until_ && asked_) {
    orders.over = orders.kill = true;
    return orders;
  }
  if (now >= until_) {
    orders.ask_groups = true;
    // Set first: asked() takes the earlier of the two.
    asked(until_ = now + last_grace_);
  }
  // What has left the groups has had no signal yet. It gets one when no process of the groups is
  // there to use it any more: a logging service of the trainer must not end before the trainer.
  if (asked_ && (orders.ask_groups || !left.groups_alive)) {
    orders.ask = newly_orphaned(left);
  }
  orders.name = !named_ && now >= name_at_;
  named_ = named_ || orders.name;
  orders.look_again = std::min(now + pause_, until_);
  if (!named_) orders.look_again = std::min(orders.look_again, name_at_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  return orders;
}

/// Those whose parents are not left: timeout(1) passes the signal on to the trainer below it, which
/// needs no second one.
process::ProcessTable Leftovers::newly_orphaned(const Left& left) {
  std::set<pid_t> parents;
  for (const auto* table : {&left.in_groups, &left.escaped}) {
    for (const auto& one : *table) parents.insert(one.pid);
  }
  process::ProcessTable found;
  for (const auto& one : left.escaped) {
    if (parents.contains(one.parent) || one.start_time >= spared_since_) continue;
    if (told_.emplace(one.pid, one.start_time).second) found.push_back(one);
  }
  return found;
}

bool is_out_of_reach(const Leftovers::Left& left) {
  process::KillResult all{.killed = 0, .alive = left.in_groups};
  all.alive.insert(all.alive.end(), left.escaped.begin(), left.escaped.end());
  return all.out_of_reach();
}

std::string names_of(const Leftovers::Left& left) {
  auto all = left.in_groups;
  all.insert(all.end(), left.escaped.begin(), left.escaped.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kMostNames); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", all[i].pid, process::command_of(all[i]));
  }
  if (all.size() > kMostNames) text += fmt::format(" and {} more", all.size() - kMostNames);
  return text;
}

}  // namespace elastrun::workers
