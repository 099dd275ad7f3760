// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/world_id.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace elastrun::rendezvous {

/// Members that may be saving, and when the last of their groups has ended.
struct Leavers {
  int count = 0;
  TimePoint until;
  bool are_at_work(TimePoint now) const { return count > 0 && now < until; }
  void add(const Leavers& more) {
    count += more.count;
    until = std::max(until, more.until);
  }
};

/// What is left of a world that breaks up.
struct Remnant {
  int members = 0;  // that are connected to their coordinator
  Leavers at_work;  // those of them whose groups have not ended
  WorldId world{};
};

/// How long a member whose connection has ended without the word that its group has may take to say
/// over another one that it is at work. One that was killed costs its job that long.
constexpr auto kTimeToReturn = std::chrono::milliseconds(500);
/// How long the last member of another coordinator's world may take to follow the others, who have
/// found this one. As a rule it is that coordinator's own node, and gone. Also how long members on
/// the machine of both may: nothing cuts them off.
constexpr auto kTimeToFollow = std::chrono::seconds(1);

/// Members whose groups may be at work out of sight: they have gone, or lost their connection, or
/// belong to a world that another coordinator has given out. One entry each, whatever becomes of
/// connections and of the other members, until it is heard that the group has ended, or its time is
/// over. Pure.
class MemberFence {
 public:
  using Peer = std::uint64_t;

  /// That member's group ends by then. An entry that it has already is replaced. `of_last_world`:
  /// its end is the end of that world.
  void hold(const std::string& member, Peer peer, TimePoint until, bool of_last_world = true);
  /// The member is here again, or its group has ended.
  void release(const std::string& member);
  /// The connection over which that member was heard last has ended in order: the group has ended.
  /// Whether it was of the last world, which is `last`; none if the member is unknown.
  std::optional<bool> left(Peer peer, const WorldId& last);
  /// The same, but its process may be alive.
  void shorten(Peer peer, TimePoint until);
  /// Members of whom only another coordinator knows.
  void inherit(const Leavers& leavers) { strangers_ = leavers; }

  /// Another coordinator has given out that world. All of its members are waited for but
  /// `may_miss`, from when the first was heard. `chosen`: their names, if they are known.
  void expect(const WorldId& world, int members, int may_miss, std::set<std::string> chosen = {});
  /// That world has been given out here, and its members have come to say how they end.
  void watch(const WorldId& world) { expect(world, 0, 0); }
  /// The group of that member of it has ended.
  void ended(const std::string& member, const WorldId& world);
  /// It runs again in the same world.
  void resumed(const std::string& member) { ended_.erase(member); }
  /// It was cut off whole: its members are waited for, from when the first one is back, but for
  /// those that had ended before.
  void expect_rest(const WorldId& world, int members);
  /// In which world a member was that comes out of `told`: in the one that was given out after that
  /// if it was chosen for it. It has never heard of that, and does not any more, having left that
  /// coordinator.
  const WorldId& world_of(const std::string& member, const WorldId& told) const;
  /// That one has broken up: so many were left of it, and of those no more are waited for than may
  /// be at work, nor for longer.
  void expect(const WorldId& world, const Remnant& remnant, int may_miss);
  /// A member of it was heard; all of it has ended by `until`.
  void hear(const std::string& member, const WorldId& world, TimePoint now, TimePoint until);
  /// That world has ended, whichever members were heard.
  void begin(TimePoint now, TimePoint until);

  /// Entries whose time is over are forgotten.
  void pass(TimePoint now);
  /// When the last of all has ended.
  std::optional<TimePoint> limit() const;
  /// Those that are known one by one, or were inherited so.
  Leavers leavers() const;
  /// How many members of another coordinator's world have not been heard.
  int unheard() const;

 private:
  struct Entry {
    Peer peer = 0;
    TimePoint until;
    bool of_last_world = true;
  };
  using Entries = std::map<std::string, Entry>;
  void erase(Entries::iterator entry);
  std::optional<TimePoint> unheard_limit() const;

  Entries held_;
  std::multiset<TimePoint> ends_;  // of those
  Leavers strangers_;

  // The world of another coordinator, or one that was cut off
  WorldId world_;
  int expected_ = 0, may_miss_ = 0;
  std::set<std::string> chosen_, heard_, ended_;
  std::optional<TimePoint> all_by_, most_by_;  // none: it may be at work, no member was heard
};

}  // namespace elastrun::rendezvous
