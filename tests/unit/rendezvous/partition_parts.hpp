// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/random_schedule.hpp"
#include "unit/rendezvous/script.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// What a job with an elected coordinator consists of, as the test of partitions plays it, and what
/// must be true of it at any time.
namespace elastrun::rendezvous::test {

constexpr Duration kTtl = 10s;
constexpr Duration kSilence = 6s, kHeartbeat = 2s;
constexpr Duration kGrace = 25s;  // in which a group ends, once it is asked to: longer than a TTL
constexpr Duration kIsolation = 60s;
constexpr Duration kDoubt = 2 * kHeartbeat + kSilence / 4;
// For which a leader that yields leaves the register to others.
constexpr Duration kYield = kSilence + 2 * kHeartbeat + kTtl;
using Key = std::pair<std::int64_t, std::int64_t>;  // epoch and number: one world

/// The coordinator in a process: the state, and until when it may decide.
struct Leadership {
  enum class Kind { Elected, StandAlone };
  Leadership(const Rules& rules, std::int64_t elected, Kind kind = Kind::Elected)
      : state(rules_of(rules, kind), "job"), epoch(elected) {
    state.set_epoch(elected);
    if (kind == Kind::Elected) state.require_acknowledgements();
    if (kind == Kind::StandAlone) lease_end = TimePoint::max();
  }
  // When its world must be told to stop, although nobody says that there is another one.
  static Rules rules_of(Rules rules, Kind kind) {
    rules.hosted = kind == Kind::Elected;
    return rules;
  }
  TimePoint isolated() const {
    if (lease_end == TimePoint::max()) return lease_end;
    return std::max(lease_end + kIsolation * 19 / 20 - kSilence - 2 * kHeartbeat - kGrace,
                    not_isolated_before);
  }
  State state;
  CutOffDetector contact;
  std::optional<TimePoint> yields_until;
  TimePoint alone_until;          // it yields then, if nobody has come
  std::set<std::string> leavers;  // that have said goodbye to it
  // They whose group was being stopped when they last said so, and who have not joined since.
  std::set<std::string> saving;
  std::set<std::string> heard;  // that have greeted it, or joined
  void hear_of(std::int64_t round) { told_of = std::max(told_of, round); }
  std::int64_t told_of = 0;  // the highest round
  WorldId inherited;         // the world before its first one, if it was another's
  std::string found_by;      // who has recorded that one
  // How many of its members it need not hear, and of which ones: none: all.
  int may_miss = 1;
  std::optional<std::set<std::string>> expected;
  WorldId found;  // which one
  int recorded_leavers = 0;
  std::int64_t epoch;
  TimePoint lease_end;
  // Until then its process, which was paused, does not suspend its world.
  TimePoint not_isolated_before;
};

/// The register that elects.
struct Register {
  int side = 0, leader = 0;
  bool apart = false;  // on a network of its own, which nothing cuts
  std::int64_t epoch = 0;
  TimePoint until;
  // The note of the last world that was given out, and by whom.
  WorldRecord world;
  std::string by;
  // Who had said goodbye to that one; the time that they had left when it was recorded, as nobody
  // knows how long ago that was; and the names of all who ever were recorded.
  int leavers = 0;
  Duration leaving{};
  // What was left of it when it broke up, by name, too; and whether its coordinator left it then.
  std::optional<Survivors> survivors;
  Duration survivors_time{};
  std::set<std::string> rest;
  bool left = false;
  std::set<std::string> told;
};

/// A connection of an agent to a coordinator. Words wait while the machines do not hear each other,
/// as in TCP; what was said before the end arrives before the end.
struct Line {
  int agent = 0, host = 0;
  std::deque<std::function<void()>> down, up;
  bool agent_open = true, coordinator_open = true, welcomed = false;
  TimePoint proof, coordinator_heard;  // of the agent, see HeartbeatLease; of the coordinator
};

struct Machine {
  int side = 0;          // of the cut: only machines of one side hear each other
  bool paused = false;   // all of it stands still
  bool drowsy = false;   // it goes on, and has not looked at its clock yet
  TimePoint asks_until;  // it was paused for long, and asks whether it is still counted on
  // Others had to think that its group has ended, before it woke or because its connection was
  // closed in order and it cannot make another one: what it saves then, nobody can fence.
  bool overslept = false;
  std::string name;  // of its process
  std::shared_ptr<Leadership> leadership;
  // The agent. Stopped: its group has ended after a failure; whether to join again is not decided.
  enum class Doing { Waiting, Working, Stopping, Stopped, Over } doing = Doing::Waiting;
  TimePoint told_at;       // when it was to stop it
  TimePoint stopped_at;    // when a group that is being stopped will have ended
  bool undecided = false;  // it reported a failure, and has not heard what follows
  bool leaves = false;     // for good, once its group has ended
  Peer line = 0;
  std::vector<Peer> held;  // those before it, which it keeps open until its group has ended
  TimePoint search_deadline;
  PreviousWorld previous, knows;
  std::int64_t epoch = 0;  // the highest it has seen
  Key world;
};
using Doing = Machine::Doing;

/// Whether workers of it run, as far as somebody else could tell.
inline bool is_at_work(const Machine& machine) {
  if (machine.paused || machine.drowsy) return false;
  return machine.doing == Doing::Working || machine.doing == Doing::Stopping;
}

/// The worlds that have been, and what may not happen to them.
class History {
 public:
  /// A coordinator has formed a round. `elected`: by the register's own judgement.
  void closed(const World& world, const Rules& rules, bool elected) {
    must(elected, "only who is elected forms a round");
    must(world.spent <= rules.max_restarts, "no more restarts than there are");
    must(world.spent <= static_cast<int>(failed_.size()), "a failure is counted once");
    const Key key{world.id.epoch, world.id.round};
    must(is_next(key), "rounds come in order");
    for (const Node& node : world.members) worlds_[key].insert(node.address);
  }
  bool is_next(const Key& world) const {
    return worlds_.empty() || worlds_.rbegin()->first < world;
  }
  void forget() { worlds_.clear(); }
  /// The coordinator of that epoch has spent a restart on its world.
  void failed(std::int64_t epoch) { failed_.insert(latest(epoch)); }

  /// A world is at work while all of its members are. Two of them would be two jobs.
  void check(const std::vector<Machine>& machines) const {
    std::map<Key, std::size_t> working;
    for (const Machine& machine : machines) {
      // A group that is being stopped may be saving: it is at work too.
      if (!is_at_work(machine) || machine.overslept || !worlds_.contains(machine.world)) continue;
      if (worlds_.at(machine.world).contains(machine.name)) ++working[machine.world];
    }
    const auto whole = std::ranges::count_if(working, [this](const auto& world) {
      return world.second == worlds_.at(world.first).size();
    });
    must(whole <= 1, "no two worlds at once");
  }
  /// Whether everybody who is still there works in one world.
  /// Nor is there anybody who waits although there is a place.
  bool is_settled(const std::vector<Machine>& machines, const Rules& rules) const {
    std::set<Key> worlds;
    std::size_t working = 0, waiting = 0;
    for (const Machine& machine : machines) {
      if (machine.doing == Doing::Over) continue;
      if (machine.doing == Doing::Stopping || machine.doing == Doing::Stopped) return false;
      machine.doing == Doing::Working ? ++working : ++waiting;
      if (machine.doing == Doing::Working) worlds.insert(machine.world);
    }
    if (working == 0 && waiting == 0) return true;
    if (waiting > 0 && working < static_cast<std::size_t>(rules.max_nodes)) return false;
    return worlds.size() == 1 && worlds_.at(*worlds.begin()).size() == working;
  }

 private:
  Key latest(std::int64_t epoch) const {
    const auto after = worlds_.upper_bound({epoch + 1, -1});
    return after == worlds_.begin() ? Key{} : std::prev(after)->first;
  }

  std::map<Key, std::set<std::string>> worlds_;
  std::set<Key> failed_;
};

}  // namespace elastrun::rendezvous::test
