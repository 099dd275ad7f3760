// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/member_fence.hpp"
#include "rendezvous/membership/world_id.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::rendezvous {

/// What a register is told of a world before any worker runs in it. A successor that finds no
/// member learns from this what may still be at work, and where to ask.
struct WorldRecord {
  WorldId id;
  int nodes = 0;
  std::string address;  // of group rank 0's store, which is open as long as its agent lives
  std::uint16_t port = 0;
  Duration at_work{};                  // for how long without its coordinator, at most
  bool local = false;                  // all of its members are on the machine of their coordinator
  std::vector<std::string> members{};  // by agent_name; none of a large world
  bool operator==(const WorldRecord&) const = default;
};

/// Whether a new world may be formed, as far as the last one is concerned: no two may be at work at
/// once. A world is at work while all of its members are, so a single one whose group has ended is
/// enough. Without any such word the last world was cut off whole; then the time must have passed
/// after which its members stop by themselves. A member that was told to stop, or has said goodbye,
/// is waited for in any case (MemberFence): it may be saving its last checkpoint. Pure.
///
/// An elected coordinator must also be able to prove that it still is, and each of its
/// worlds must be acknowledged: recorded where a successor finds it.
class WorldFence {
 public:
  /// A world has been formed.
  void formed(const WorldId& world) {
    world_ = world;
    at_work_until_ = TimePoint::max();
    fence = {};
    fence.watch(world);
  }
  /// Whether a member of that one says anything of the last world. Others may come late: from a
  /// world that only they remember.
  bool is_last(const WorldId& world) const { return world.is_same(world_); }
  const WorldId& world() const { return world_; }
  /// The group of that member of that world has ended.
  void broken(const WorldId& world, const std::string& member) {
    if (!is_last(world)) return;
    at_work_until_.reset();
    fence.ended(member, world_);
  }
  /// A member of that world was lost, whose group has ended by then.
  void lost_member(const WorldId& world, TimePoint until) {
    if (at_work_until_ && is_last(world)) at_work_until_ = std::min(*at_work_until_, until);
  }
  /// The connection of a member that had said goodbye has ended in order; whether there was one.
  bool left(std::uint64_t peer) {
    const auto of_last_world = fence.left(peer, world_);
    if (of_last_world.value_or(false)) at_work_until_.reset();
    return of_last_world.has_value();
  }
  /// Another coordinator's world may be at work until then. Round 0: unknown which one.
  void inherited(const WorldId& world, TimePoint until) {
    world_ = world;
    at_work_until_ = until;
  }
  /// A probe has found that it has ended.
  void disinherited() { at_work_until_.reset(); }

  /// A doubt that is over by now is forgotten.
  void pass(TimePoint now) {
    if (world_limit() && now >= *world_limit()) at_work_until_.reset();
    fence.pass(now);
  }

  /// Whether the last world may still be at work: no member of it is here to deny it, or one out of
  /// sight may run.
  bool is_up(TimePoint now) const { return limit() && now < *limit(); }
  /// The end of that doubt; none while members are there.
  std::optional<TimePoint> limit() const { return std::max(world_limit(), fence.limit()); }
  /// The end of what `fence` waits for, if that is not over.
  std::optional<TimePoint> fence_limit(TimePoint now) const {
    const auto end = fence.limit();
    return end && now < *end ? end : std::nullopt;
  }
  /// Members that may be at work out of sight.
  MemberFence fence;

  /// Whether it cannot prove that.
  void hold(bool held) { held_ = held; }
  bool held() const { return held_; }

  void require_acknowledgements() { acknowledged_.emplace(); }
  void acknowledge(const WorldRecord& record) {
    if (acknowledged_) acknowledged_ = record;
  }
  bool is_acknowledged(const WorldRecord& record) const {
    return !acknowledged_ || *acknowledged_ == record;
  }

 private:
  std::optional<TimePoint> world_limit() const {
    return at_work_until_ == TimePoint::max() ? std::nullopt : at_work_until_;
  }

  bool held_ = false;
  WorldId world_;                            // the last one
  std::optional<TimePoint> at_work_until_;   // none: it is not; max: until its members say so
  std::optional<WorldRecord> acknowledged_;  // none: no acknowledgements needed
};

}  // namespace elastrun::rendezvous
