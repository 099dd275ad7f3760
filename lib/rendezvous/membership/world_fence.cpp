// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/membership/world_fence.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {

void MemberFence::hold(const std::string& member, Peer peer, TimePoint until, bool of_last_world) {
  release(member);
  held_[member] = {peer, until, of_last_world};
  ends_.insert(until);
}

void MemberFence::erase(Entries::iterator entry) {
  ends_.erase(ends_.find(entry->second.until));
  held_.erase(entry);
}

void MemberFence::release(const std::string& member) {
  if (const auto entry = held_.find(member); entry != held_.end()) erase(entry);
}

std::optional<bool> MemberFence::left(Peer peer, const WorldId& last) {
  const auto entry =
      std::ranges::find_if(held_, [peer](const auto& held) { return held.second.peer == peer; });
  if (entry == held_.end()) return std::nullopt;
  const bool of_last_world = entry->second.of_last_world;
  if (of_last_world) ended(entry->first, last);
  erase(entry);
  return of_last_world;
}

void MemberFence::shorten(Peer peer, TimePoint until) {
  for (auto& [member, entry] : held_) {
    if (entry.peer != peer || entry.until <= until) continue;
    ends_.erase(ends_.find(entry.until));
    ends_.insert(entry.until = until);
  }
}

void MemberFence::expect(const WorldId& world, int members, int may_miss,
                         std::set<std::string> chosen) {
  world_ = world;
  expected_ = members;
  may_miss_ = may_miss;
  chosen_ = std::move(chosen);
  heard_.clear(), ended_.clear();
  all_by_.reset();
  most_by_.reset();
}

void MemberFence::expect(const WorldId& world, const Remnant& remnant, int may_miss) {
  // A member that comes may be one whose group had ended before: only all of them prove it.
  expect(world, remnant.at_work.count > 0 ? remnant.members : 0, may_miss);
  if (expected_ > 0) all_by_ = remnant.at_work.until;
}

void MemberFence::ended(const std::string& member, const WorldId& world) {
  if (world.is_same(world_)) ended_.insert(member);
}

void MemberFence::expect_rest(const WorldId& world, int members) {
  if (!world.is_same(world_)) return expect(world, members, 0);
  expected_ = members;
  may_miss_ = 0;
  // Members whose groups have ended prove nothing about the others, but are not waited for.
  heard_ = ended_;
}

const WorldId& MemberFence::world_of(const std::string& member, const WorldId& told) const {
  // One that was chosen for the recorded world and comes out of an earlier one never got that
  // round: so the recorded world does not run as a whole.
  return chosen_.contains(member) && world_.is_later_than(told) ? world_ : told;
}

void MemberFence::hear(const std::string& member, const WorldId& world, TimePoint now,
                       TimePoint until) {
  if (!world.is_same(world_) || unheard() == 0) return;
  heard_.insert(member);
  begin(now, until);
}

void MemberFence::begin(TimePoint now, TimePoint until) {
  if (expected_ == 0 || most_by_) return;
  all_by_ = std::min(all_by_.value_or(until), until);
  // All members notice the same end, so those that live follow the first one soon.
  most_by_ = std::min<TimePoint>(now + kTimeToFollow, *all_by_);
}

int MemberFence::unheard() const {
  return std::max(expected_ - static_cast<int>(heard_.size()), 0);
}

void MemberFence::pass(TimePoint now) {
  if (!ends_.empty() && *ends_.begin() <= now) {
    for (auto entry = held_.begin(); entry != held_.end();) {
      const auto next = std::next(entry);
      if (entry->second.until <= now) erase(entry);
      entry = next;
    }
  }
  if (!strangers_.are_at_work(now)) strangers_ = {};
  if (unheard_limit() && now >= *unheard_limit()) expect({}, 0, 0);
}

std::optional<TimePoint> MemberFence::unheard_limit() const {
  const int missing = unheard();
  if (missing == 0) return std::nullopt;
  return missing <= may_miss_ && most_by_ ? most_by_ : all_by_;
}

std::optional<TimePoint> MemberFence::limit() const {
  std::optional<TimePoint> end = unheard_limit();  // none is before all others
  if (!ends_.empty()) end = std::max(end, std::optional(*ends_.rbegin()));
  if (strangers_.count > 0) end = std::max(end, std::optional(strangers_.until));
  return end;
}

Leavers MemberFence::leavers() const {
  Leavers all = strangers_;
  all.count += static_cast<int>(held_.size());
  if (!ends_.empty()) all.until = std::max(all.until, *ends_.rbegin());
  return all;
}

}  // namespace elastrun::rendezvous
