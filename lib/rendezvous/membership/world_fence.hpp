// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/round.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Who may still be at work. Two worlds at work at once would be two jobs that write the same
/// checkpoints, so a round is given out only once the last world has ended, as far as anybody here
/// knows (elastrun-design(7) has the whole chain, elastrun-protocol(7) the times):
///
///   WorldHistory    which world was the last one, and which numbers of rounds are taken
///   WorldFence      whether that one may run as a whole: a single member whose group has ended
///                   proves that it does not
///   MemberFence     its members that may run out of sight, one by one: they have left, lost their
///                   connection, or belong to the world of another coordinator
///
/// What a successor, which has seen nothing of it, learns about a world:
///
///   WorldRecord     the world, recorded before any worker runs in it
///   Survivors       the members that are left of it, once it breaks up
///   StoppingGroups  how many groups are being stopped, which may be saving, and until when
///
/// An elected coordinator keeps these beside its lease (WorldRegister), one that stands alone in
/// its file (StoreStateFile), and a Coordinator the InheritedWorld of jobs without a connected
/// agent.
namespace elastrun::rendezvous {

/// Members that may be saving, and when the last of their groups has ended.
struct StoppingGroups {
  int count = 0;
  TimePoint until;
  bool are_at_work(TimePoint now) const { return count > 0 && now < until; }
  void add(const StoppingGroups& more) {
    count += more.count;
    until = std::max(until, more.until);
  }
};

/// What is left of a world that breaks up.
struct Survivors {
  int members = 0;         // that are connected to their coordinator
  StoppingGroups at_work;  // those of them whose groups have not ended
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
  void hold(const std::string& member, Peer peer, TimePoint until, bool of_last_world = true) {
    release(member);
    held_[member] = {peer, until, of_last_world};
    ends_.insert(until);
  }
  /// The member is here again, or its group has ended.
  void release(const std::string& member) {
    if (const auto entry = held_.find(member); entry != held_.end()) erase(entry);
  }
  /// The connection over which that member was heard last has ended in order: the group has ended.
  /// Whether it was of the last world, which is `last`; none if the member is unknown.
  std::optional<bool> left(Peer peer, const WorldId& last) {
    const auto entry =
        std::ranges::find_if(held_, [peer](const auto& held) { return held.second.peer == peer; });
    if (entry == held_.end()) return std::nullopt;
    const bool of_last_world = entry->second.of_last_world;
    if (of_last_world) ended(entry->first, last);
    erase(entry);
    return of_last_world;
  }
  /// The same, but its process may be alive.
  void shorten(Peer peer, TimePoint until) {
    for (auto& [member, entry] : held_) {
      if (entry.peer != peer || entry.until <= until) continue;
      ends_.erase(ends_.find(entry.until));
      ends_.insert(entry.until = until);
    }
  }
  /// Members of whom only another coordinator knows.
  void inherit(const StoppingGroups& stopping) { strangers_ = stopping; }

  /// Another coordinator has given out that world. All of its members are waited for but
  /// `may_miss`, from when the first was heard. `chosen`: their names, if they are known.
  void expect(const WorldId& world, int members, int may_miss, std::set<std::string> chosen = {}) {
    world_ = world;
    expected_ = members;
    may_miss_ = may_miss;
    chosen_ = std::move(chosen);
    heard_.clear(), ended_.clear();
    all_by_.reset();
    most_by_.reset();
  }
  /// That world has been given out here, and its members have come to say how they end.
  void watch(const WorldId& world) { expect(world, 0, 0); }
  /// The group of that member of it has ended.
  void ended(const std::string& member, const WorldId& world) {
    if (world.is_same(world_)) ended_.insert(member);
  }
  /// It runs again in the same world.
  void resumed(const std::string& member) { ended_.erase(member); }
  /// It was cut off whole: its members are waited for, from when the first one is back, but for
  /// those that had ended before.
  void expect_rest(const WorldId& world, int members) {
    if (!world.is_same(world_)) return expect(world, members, 0);
    expected_ = members;
    may_miss_ = 0;
    // Members whose groups have ended prove nothing about the others, but are not waited for.
    heard_ = ended_;
  }
  /// In which world a member was that comes out of `told`: in the one that was given out after that
  /// if it was chosen for it. It has never heard of that, and does not any more, having left that
  /// coordinator.
  const WorldId& world_of(const std::string& member, const WorldId& told) const {
    // One that was chosen for the recorded world and comes out of an earlier one never got that
    // round: so the recorded world does not run as a whole.
    return chosen_.contains(member) && world_.is_later_than(told) ? world_ : told;
  }
  /// That one has broken up: so many were left of it, and of those no more are waited for than may
  /// be at work, nor for longer.
  void expect(const WorldId& world, const Survivors& survivors, int may_miss) {
    // A member that comes may be one whose group had ended before: only all of them prove it.
    expect(world, survivors.at_work.count > 0 ? survivors.members : 0, may_miss);
    if (expected_ > 0) all_by_ = survivors.at_work.until;
  }
  /// A member of it was heard; all of it has ended by `until`.
  void hear(const std::string& member, const WorldId& world, TimePoint now, TimePoint until) {
    if (!world.is_same(world_) || unheard() == 0) return;
    heard_.insert(member);
    begin(now, until);
  }
  /// That world has ended, whichever members were heard.
  void begin(TimePoint now, TimePoint until) {
    if (expected_ == 0 || most_by_) return;
    all_by_ = std::min(all_by_.value_or(until), until);
    // All members notice the same end, so those that live follow the first one soon.
    most_by_ = std::min<TimePoint>(now + kTimeToFollow, *all_by_);
  }

  /// Entries whose time is over are forgotten.
  void pass(TimePoint now) {
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
  /// When the last of all has ended.
  std::optional<TimePoint> limit() const {
    std::optional<TimePoint> end = unheard_limit();  // none is before all others
    if (!ends_.empty()) end = std::max(end, std::optional(*ends_.rbegin()));
    if (strangers_.count > 0) end = std::max(end, std::optional(strangers_.until));
    return end;
  }
  /// Those that are known one by one, or were inherited so.
  StoppingGroups stopping_groups() const {
    StoppingGroups all = strangers_;
    all.count += static_cast<int>(held_.size());
    if (!ends_.empty()) all.until = std::max(all.until, *ends_.rbegin());
    return all;
  }
  /// How many members of another coordinator's world have not been heard.
  int unheard() const { return std::max(expected_ - static_cast<int>(heard_.size()), 0); }

 private:
  struct Entry {
    Peer peer = 0;
    TimePoint until;
    bool of_last_world = true;
  };
  using Entries = std::map<std::string, Entry>;
  void erase(Entries::iterator entry) {
    ends_.erase(ends_.find(entry->second.until));
    held_.erase(entry);
  }
  std::optional<TimePoint> unheard_limit() const {
    const int missing = unheard();
    if (missing == 0) return std::nullopt;
    return missing <= may_miss_ && most_by_ ? most_by_ : all_by_;
  }

  Entries held_;
  std::multiset<TimePoint> ends_;  // of those
  StoppingGroups strangers_;

  // The world of another coordinator, or one that was cut off
  WorldId world_;
  int expected_ = 0, may_miss_ = 0;
  std::set<std::string> chosen_, heard_, ended_;
  std::optional<TimePoint> all_by_, most_by_;  // none: it may be at work, no member was heard
};

/// The world of an earlier coordinator, or of a job that has no agents here: it may be at work
/// until then, unless one of its members comes, and so may the members in `fence`.
struct InheritedWorld {
  PreviousWorld previous{};
  TimePoint until{};
  MemberFence fence{};
  WorldId at_work{};         // which one may be, if not that one
  std::int64_t highest = 0;  // number of a round
  TimePoint end() const { return std::max(until, fence.limit().value_or(until)); }
  bool is_pending(TimePoint now) const { return now < end(); }
};

/// The worlds that a job has had, as far as anybody has told: which one was the last, whose members
/// have their places before all others, and which numbers of rounds are taken. Pure.
class WorldHistory {
 public:
  /// The last one, of whichever coordinator. While a round runs, that is this one.
  const WorldId& last() const { return last_; }
  int last_size() const { return last_size_; }
  /// Whether that was another coordinator's, who may have died with it.
  bool is_succession() const { return succession_; }

  /// The highest number that anybody has told of. An agent obeys no round that is not above those
  /// which it has been in, whatever their epochs.
  std::int64_t highest() const { return std::max(last_.round, floor_); }
  /// What others are told of all that.
  PreviousWorld told(int attempt) const {
    return {last_.round == highest() ? last_ : WorldId(0, highest()), attempt, last_size_};
  }

  /// Whether that one came after all that are known here.
  bool is_news(const WorldId& world) const { return world.is_later_than({last_.epoch, highest()}); }
  /// Notes a world that an agent was in, or knows of; whether it is the last one from now on.
  /// `runs`: a round does, which keeps its number: its members know no other one.
  bool learn(const PreviousWorld& previous, bool runs) {
    const bool becomes_last = !runs && is_news(previous.id);
    floor_ = std::max(floor_, previous.id.round);
    if (!becomes_last) return false;
    last_ = previous.id;
    last_size_ = previous.nodes;
    return succession_ = true;
  }
  /// Rounds up to that number have been.
  void raise(std::int64_t number) { floor_ = std::max(floor_, number); }
  void formed(const WorldId& world, int nodes) {
    last_ = world;
    last_size_ = nodes;
    succession_ = false;
  }

  /// All up to that one were of a job of this run id that is over.
  void conclude(const WorldId& world) { concluded_ = last_ = world; }
  bool is_concluded(const WorldId& world) const {
    return world.round > 0 && !world.is_later_than(concluded_);
  }

 private:
  WorldId last_, concluded_;
  std::int64_t floor_ = 0;  // others have had so many rounds
  int last_size_ = 0;
  bool succession_ = false;
};

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

 private:
  std::optional<TimePoint> world_limit() const {
    return at_work_until_ == TimePoint::max() ? std::nullopt : at_work_until_;
  }

  WorldId world_;                           // the last one
  std::optional<TimePoint> at_work_until_;  // none: it is not; max: until its members say so
};

}  // namespace elastrun::rendezvous
