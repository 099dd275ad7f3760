// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace elastrun::rendezvous {

/// What a register is told of a world before anybody works in it. A successor that finds nobody of
/// it learns from this what may still be at work, and where to ask.
struct WorldNote {
  std::int64_t round = 0;
  int nodes = 0;
  std::string address;  // of group rank 0's store, which is open as long as its agent lives
  std::uint16_t port = 0;
  bool operator==(const WorldNote&) const = default;
};

/// Members that have said goodbye, and when the last of their groups has ended.
struct Leavers {
  int count = 0;
  TimePoint until;
  bool are_at_work(TimePoint now) const { return count > 0 && now < until; }
};

/// Whether a new world may be formed, as far as the last one is concerned: no two may be at work at
/// once. A world is at work while all of its members are, so a single one whose group has ended is
/// enough. Without any such word the last world was cut off whole; then the time must have passed
/// after which its members stop by themselves. A member that has said goodbye is waited for in any
/// case: it may be saving its last checkpoint. Pure.
///
/// An elected coordinator must also be able to prove that it still is, and needs a licence for each
/// world: the register's word that it has noted it.
class Clearance {
 public:
  /// A world has been formed.
  void formed() {
    at_work_until_ = TimePoint::max();
    leavers_.clear();
    strangers_ = {};
  }
  /// A member's group has ended.
  void broken() { at_work_until_.reset(); }
  /// A member was lost, whose group has ended by then.
  void doubtful(TimePoint until) {
    if (at_work_until_) at_work_until_ = std::min(*at_work_until_, until);
  }
  /// That member has said goodbye; its group ends by then, if `left` is not told before.
  void leaving(std::uint64_t member, TimePoint until) {
    leavers_[member] = {until, true};
    doubtful(until);
  }
  /// The same of one that has not come back since it was told to stop: this says nothing of a world
  /// that has been formed meanwhile.
  void leaving_late(std::uint64_t node, TimePoint until) { leavers_[node] = {until, false}; }
  /// The group of a member has ended; whether that one had said goodbye.
  bool left(std::uint64_t member) {
    const auto leaver = leavers_.find(member);
    if (leaver == leavers_.end()) return false;
    if (leaver->second.of_last_world) broken();
    leavers_.erase(leaver);
    return true;
  }
  /// How many of those there are, and when the last of their groups has ended.
  int leavers() const { return static_cast<int>(leavers_.size()) + strangers_.count; }
  std::optional<TimePoint> leavers_limit() const {
    std::optional<TimePoint> end;
    if (strangers_.count > 0) end = strangers_.until;
    for (const auto& [member, leaver] : leavers_) {
      end = std::max(end.value_or(leaver.until), leaver.until);
    }
    return end;
  }
  /// Another coordinator's world may be at work until then; so may they who had said goodbye to it,
  /// whatever becomes of the rest: nobody else knows of them.
  void inherited(TimePoint until, const Leavers& leavers) {
    at_work_until_ = until;
    strangers_ = leavers;
  }

  /// A doubt that is over by now is forgotten.
  void pass(TimePoint now) {
    if (world_limit() && now >= *world_limit()) at_work_until_.reset();
    std::erase_if(leavers_, [now](const auto& leaver) { return now >= leaver.second.until; });
    if (!strangers_.are_at_work(now)) strangers_ = {};
  }

  /// Whether the last world may still be at work, although nobody of it is there who could say so,
  /// or somebody who leaves may.
  bool in_doubt(TimePoint now) const { return limit() && now < *limit(); }
  /// The end of that doubt; none while members are there.
  std::optional<TimePoint> limit() const { return std::max(world_limit(), leavers_limit()); }

  /// Whether it cannot prove that.
  void hold(bool held) { held_ = held; }
  bool held() const { return held_; }

  void require_licences() { licence_.emplace(); }
  void license(const WorldNote& note) {
    if (licence_) licence_ = note;
  }
  bool is_licensed(const WorldNote& note) const { return !licence_ || *licence_ == note; }

 private:
  std::optional<TimePoint> world_limit() const {
    return at_work_until_ == TimePoint::max() ? std::nullopt : at_work_until_;
  }

  bool held_ = false;
  std::optional<TimePoint> at_work_until_;  // none: it is not; max: until its members say so
  struct Leaver {
    TimePoint until;
    bool of_last_world = true;
  };
  std::map<std::uint64_t, Leaver> leavers_;
  Leavers strangers_;                 // of the coordinator before
  std::optional<WorldNote> licence_;  // none: no licences needed
};

}  // namespace elastrun::rendezvous
