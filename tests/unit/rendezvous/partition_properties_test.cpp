// SPDX-License-Identifier: Apache-2.0
// Random partitions of a job whose coordinator is elected: processes that pause and die, machines
// that hear each other or do not, words that arrive late, a register that some can reach. Around
// the states stands a model of what ElectedLocator, Coordinator and RemoteSession do with them.
// Whatever is cut, no two worlds may be at work at once, and epochs, rounds and attempts never go
// back for anybody; once all is whole again, everybody comes together.
#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/partition_parts.hpp"
#include "unit/rendezvous/script.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

constexpr int kMachines = 5;
constexpr int kStore = kMachines;  // the machine of a stand-alone store, which runs no agent

class Cluster {
 public:
  explicit Cluster(unsigned seed) : draw(seed) {
    const int most = 1 + draw(kMachines);
    rules_ = make_rules(1 + draw(most), most, draw(4));
    rules_.last_call_timeout = std::chrono::seconds(1 + draw(5));
    rules_.join_timeout = std::chrono::seconds(30 + draw(600));
    rules_.growth_delay = 1s;
    rules_.reaction = kDoubt;
    rules_.silence = kSilence + 3 * kHeartbeat;
    for (int i = 0; i < kMachines; ++i) begin_process(i);
    at(kStore).doing = Doing::Over;
    at(kStore).name = "store";
  }

  // All reach the register, and some the leader no more. If they are the larger part and enough,
  // they go on, however many of the others stay with the leader.
  void lose_leader() {
    const int lost = kMachines / 2 + 1 + draw(2);
    rules_.min_nodes = 1 + draw(lost);
    rules_.max_nodes = kMachines;
    rules_.join_timeout = 1h;
    register_.apart = true;
    for (int i = 0; i < kMachines; ++i) begin_process(i);
    live_for(90s);
    must(history_.is_settled(machines_, rules_), "a world of all");
    std::vector<int> larger;
    for (int i = draw(kMachines); static_cast<int>(larger.size()) < lost; ++i) {
      const int next = i % kMachines;
      if (next == register_.leader) continue;
      at(next).side = 1;
      larger.push_back(next);
    }
    // To notice the silence on both sides, to stop, to wait for the others as for any that are out
    // of sight, and a last call.
    live_for(kYield + 2 * (kSilence + 2 * kHeartbeat) + 2 * kGrace + 10s);
    const Key world = at(larger.front()).world;
    for (const int i : larger) {
      must(at(i).doing == Doing::Working && at(i).world == world, "the larger part goes on");
    }
  }

  // Whatever else may be true of a job that was paused as a whole, it just goes on.
  void run_with_rest() {
    for (int calm = 0, step = 0; calm < 5; ++step) {
      must(step < 300, "all come to work in one world");
      pass(1s);
      live_all();
      calm = history_.is_settled(machines_, rules_) ? calm + 1 : 0;
    }
    const auto before = worlds_at_work();
    for (int i = 0; i <= kStore; ++i) pause(i);
    pass(std::chrono::seconds(draw(200)));
    const int first = draw(kMachines + 1);
    for (int i = 0; i <= kStore; ++i) {
      if (draw(2) == 0) pass(std::chrono::milliseconds(draw(150)));
      resume((first + i) % (kStore + 1));
      live((first + i) % (kStore + 1));  // what is due is done at once
    }
    for (int step = 0; step < 30; ++step) {
      pass(1s);
      live_all();
      must(worlds_at_work() == before, "a pause of everything restarts nothing");
    }
  }

  void run() {
    if (draw(3) == 0) begin_store();
    register_.apart = draw(4) == 0;
    if (draw(3) == 0) begin_with_end();
    for (int step = 0; step < 300; ++step) {
      act();
      history_.check(machines_);
    }
    // All is whole again: everybody must come together, or be told that it is over.
    for (int i = 0; i <= kStore; ++i) {
      at(i).side = register_.side;
      if (at(i).paused) resume(i);
    }
    int calm = 0;
    for (int step = 0; step < 3000 && calm < 5; ++step) {
      pass(1s);
      live_all();
      history_.check(machines_);
      calm = history_.is_settled(machines_, rules_) ? calm + 1 : 0;
    }
    must(calm > 0, "somebody waits for ever");
  }

 private:
  Machine& at(int index) { return machines_[static_cast<std::size_t>(index)]; }
  bool hears(int one, int other) {
    return at(one).side == at(other).side && !at(one).paused && !at(other).paused;
  }
  bool is_elected(int i) {
    return i == kStore || (at(i).leadership && at(i).leadership->epoch == register_.epoch);
  }
  bool reaches_register(int i) {
    const bool connected = stands_alone_ || register_.apart || at(i).side == register_.side;
    return connected && !at(i).paused;
  }

  void act() {
    const int who = draw(stands_alone_ ? kMachines + 1 : kMachines);
    const int choice = draw(210);
    if (choice >= 200) {
      choice < 206 || !stands_alone_ ? reset(who, draw(2) == 0) : begin_store();
    } else if (who == kStore && choice >= 24 && choice < 38) {
      live(who);
    } else if (choice < 8) {
      at(who).side = draw(3);
    } else if (choice < 12) {
      register_.side = draw(3);
    } else if (choice < 24) {
      at(who).paused ? resume(who) : pause(who);
    } else if (choice < 28) {
      replace(who);
    } else if (choice < 34) {
      fail_worker(who);
    } else if (choice < 38) {
      leave(who);
    } else if (choice < 80) {
      pass(std::chrono::milliseconds(draw(4000)));
    } else {
      live(who);
    }
  }

  // All is well, then something ends: chance alone brings the worst about too seldom.
  void begin_with_end() {
    for (int step = 0; step < 60; ++step) {
      pass(1s);
      live_all();
    }
    const int coordinator = register_.leader, other = draw(kMachines), kind = draw(5);
    if (kind == 0 && other != coordinator) leave(other);
    if (kind == 1) fail_worker(other);
    for (int turn = draw(4); turn > 0; --turn) live(coordinator);
    if (kind == 1) live_all();
    if (kind == 4) return reset(other, draw(2) == 0);
    if (stands_alone_) return begin_store();
    draw(2) == 0 ? leave(coordinator) : replace(coordinator);
  }

  void live_for(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      pass(1s);
      live_all();
      history_.check(machines_);
    }
  }

  void live_all() {
    for (int i = 0; i <= kStore; ++i) live(i);
  }

  // A store that nobody elects, and that no agent hosts. Begun again, it knows what is in its file;
  // without one it learns from those who come back, as they do at once if they can.
  void begin_store() {
    const bool again = std::exchange(stands_alone_, true);
    if (!again) remembers_ = draw(2) == 0;
    for (int i = 0; i <= kStore; ++i) {
      if (again && remembers_ && i != kStore) continue;
      at(i).side = at(kStore).side;
      if (at(i).paused) resume(i);
    }
    end_process(kStore);
    at(kStore).leadership = std::make_shared<Leadership>(rules_, 1, Leadership::Kind::StandAlone);
    register_.leader = kStore;
    register_.epoch = 1;
    register_.until = TimePoint::max();
    if (again && remembers_) return remember_world();
    at(kStore).leadership->state.inherit({{}, now_ + kTimeToFollow});
    for (int turn = 0; again && turn < 3; ++turn) live_all();
  }

  // From its file; whoever may be at work comes when it can.
  void remember_world() {
    MemberFence fence;
    fence.expect(in_file_.id, in_file_.nodes, 0);
    at(kStore).leadership->state.inherit({in_file_, now_ + rules_.silence + kGrace, fence});
  }

  // What stands between an agent and its coordinator breaks the connection, or closes it in order.
  // Then the agent comes back at once, if it can: nothing else tells it from one that has died.
  void reset(int i, bool in_order) {
    const Peer peer = at(i).line;
    if (peer == 0 || at(i).paused) return;
    Line& line = lines_.at(peer);
    const int host = line.host;
    const bool heard = line.coordinator_open && hears(i, host);
    if (heard) lose(host, peer, in_order ? Loss::Closed : Loss::Broken);
    line.agent_open = false;
    if (at(i).line == peer) part(i);
    if (!heard || !in_order || !at(host).leadership) return;
    keep_agent(i);
    if (at(host).leadership) hear_agents(host);
    const Peer next = at(i).line;
    const bool back = next != 0 && next != peer && lines_.at(next).up.empty();
    at(i).overslept |= !back;
  }

  void begin_process(int i) {
    Machine fresh;
    fresh.side = at(i).side;
    fresh.name = "m" + std::to_string(i) + "x" + std::to_string(++processes_);
    fresh.search_deadline = now_ + rules_.join_timeout;
    at(i) = std::move(fresh);
  }

  void end_process(int i) {
    for (auto& [peer, line] : lines_) {
      if (line.agent == i) close_agent_end(peer);
      if (line.host == i) close_coordinator_end(peer);
    }
  }

  void pause(int i) { at(i).paused = true; }
  // A coordinator counts the heartbeats that it misses, not the time: it goes on where it stood.
  void resume(int i) {
    Machine& machine = at(i);
    machine.paused = false;
    machine.drowsy = true;
    if (machine.leadership) machine.leadership->not_isolated_before = now_ + kHeartbeat;
    if (machine.line != 0) {
      machine.asks_until = now_ + kHeartbeat;
      machine.overslept |= machine.asks_until > noticed(machine);
    }
    for (auto& [peer, line] : lines_) {
      if (line.host == i) line.coordinator_heard = now_;
    }
  }

  // Beats come and go each second while both hear each other. Alarms ring within a second: what
  // bounds the life of a world is not put off as other things may be.
  void pass(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ = std::min<TimePoint>(end, now_ + 1s);
      pass_heartbeats();
      for (int i = 0; i < kMachines; ++i) ring_alarms(i);
    }
  }

  void ring_alarms(int i) {
    if (at(i).paused) return;
    if (has_lost_coordinator(i)) part(i);
    if (at(i).doing == Doing::Stopping && now_ >= at(i).stopped_at) end_group(i);
    if (at(i).leadership && now_ >= at(i).leadership->isolated()) {
      at(i).leadership->state.suspend("cut off", now_);
      deliver(i);
    }
  }

  void pass_heartbeats() {
    for (auto& [peer, line] : lines_) {
      if (!line.agent_open || !line.coordinator_open || !hears(line.agent, line.host)) continue;
      line.coordinator_heard = now_;
      if (!is_silent(line)) {
        line.proof = now_;
      } else if (at(line.agent).line == peer && asks(line.agent)) {
        // Whoever answers has not replaced it: nothing of what it may have done matters. Unless it
        // was paused itself, and replaced.
        line.proof = now_;
        if (is_elected(line.host)) at(line.agent).overslept = false;
      }
    }
  }

  // An agent that finds its proof too old does not ask for another one, unless it was paused.
  bool asks(int i) { return now_ < at(i).asks_until; }
  bool has_lost_coordinator(int i) {
    return at(i).line != 0 && is_silent(lines_.at(at(i).line)) && !asks(i);
  }
  // By when its group is being stopped if its coordinator thinks so.
  TimePoint noticed(const Machine& machine) {
    return lines_.at(machine.line).proof + kSilence + 3 * kHeartbeat;
  }
  std::map<std::string, Key> worlds_at_work() {
    std::map<std::string, Key> found;
    for (const Machine& machine : machines_) {
      if (machine.doing == Doing::Working) found[machine.name] = machine.world;
    }
    return found;
  }
  bool is_silent(const Line& line) const { return now_ - line.proof > kSilence + kHeartbeat; }

  // Timers and messages of a process that was paused come in any order.
  void live(int i) {
    if (at(i).paused) return;
    const int order = draw(4);
    for (int part = 0; part < 4; ++part) {
      switch ((part + order) % 4) {
        case 0:
          keep_leadership(i);
          break;
        case 1:
          hear_agents(i);
          break;
        case 2:
          keep_agent(i);
          break;
        default:
          hear_coordinator(i);
      }
    }
    at(i).drowsy = false;
  }

  // The coordinator

  void keep_leadership(int i) {
    if (!at(i).leadership) return;
    if (i != kStore) renew(i);
    ring_alarms(i);
    if (at(i).leadership && draw(3) > 0) record_world(i);
    if (at(i).leadership && draw(3) > 0) record_leavers(i);
    if (at(i).leadership && draw(3) > 0) record_survivors(i);
    for (auto& [peer, line] : lines_) {
      if (line.host == i && line.coordinator_open && now_ - line.coordinator_heard > kSilence) {
        lose(i, peer, Loss::Silent);
      }
    }
    if (!at(i).leadership) return;
    const auto due = at(i).leadership->state.deadline();
    if (due && now_ >= *due) {
      check_entitlement(i);
      at(i).leadership->state.tick(now_);
    }
    deliver(i);
    if (i != kStore && at(i).doing == Doing::Over && !has_agents(i)) retire(i);
  }

  // The register is in reach, and perhaps not those who could go on without this one.
  void yield(int i) {
    Leadership& leadership = *at(i).leadership;
    if (!reaches_register(i) || leadership.epoch != register_.epoch) return;
    if (now_ >= leadership.lease_end) return;
    leadership.yields_until = now_ + kYield;
    leadership.alone_until = now_ + 4 * kYield;
    leadership.lease_end = register_.until = now_;
    leadership.state.hold(true, now_);
  }

  bool yields(int i) {
    Leadership& leadership = *at(i).leadership;
    if (!leadership.yields_until) return false;
    const bool succeeded = leadership.epoch != register_.epoch && now_ < register_.until;
    if (reaches_register(i) && succeeded) return step_down(i), true;
    if (now_ < *leadership.yields_until) return true;
    leadership.yields_until.reset();
    return false;
  }

  void renew(int i) {
    if (yields(i)) return;
    Leadership& leadership = *at(i).leadership;
    const bool waits = leadership.state.phase() == Phase::Joining && rules_.min_nodes > 1;
    if (waits && agents_of(i) < 2 && now_ >= leadership.alone_until) return yield(i);
    if (!reaches_register(i)) {
      if (now_ < leadership.lease_end) return;
      leadership.state.hold(true, now_);
      const bool needed = leadership.state.phase() == Phase::Joining;
      if (needed && now_ > leadership.lease_end + kTtl) step_down(i);
    } else if (leadership.epoch == register_.epoch && now_ < register_.until) {
      lead(i);
    } else if (now_ >= register_.until && is_strange_record(i)) {
      step_down(i);
    } else if (now_ >= register_.until) {
      leadership.epoch = ++register_.epoch;  // nobody has taken it: elected again
      leadership.state.set_epoch(leadership.epoch);
      lead(i);
      for (auto& [peer, line] : lines_) {
        if (line.host == i && line.coordinator_open && line.welcomed)
          tell_epoch(line, leadership.epoch);
      }
    } else {
      step_down(i);
    }
  }

  // Of a world that another coordinator has formed since this one was elected.
  bool is_strange_record(int i) const {
    const Machine& machine = machines_[static_cast<std::size_t>(i)];
    const bool found = register_.by == machine.leadership->found_by &&
                       register_.world.id == machine.leadership->found;
    return !register_.by.empty() && register_.by != machine.name && !found;
  }

  void tell_epoch(Line& line, std::int64_t epoch) {
    line.down.emplace_back(
        [this, agent = line.agent, epoch] { at(agent).epoch = std::max(at(agent).epoch, epoch); });
  }

  void lead(int i) {
    register_.until = now_ + kTtl;
    register_.leader = i;
    at(i).leadership->lease_end = now_ + kTtl * 19 / 20;
    at(i).leadership->state.hold(false, now_);
    deliver(i);
  }

  void retire(int i) {
    if (reaches_register(i) && at(i).leadership->epoch == register_.epoch) {
      register_.until = now_;
      leave_record(i);
    }
    at(i).leadership.reset();
  }

  void leave_record(int i) {
    const State& state = at(i).leadership->state;
    if (state.world_fence().is_up(now_)) return;
    if (state.survivors(now_).at_work.count == 0) return register_.by.clear();
    if (register_.by == at(i).name) write_survivors(i, true);
  }

  // While a round is formed, at some time: who has not come back of the last one.
  void record_survivors(int i) {
    const Leadership& leadership = *at(i).leadership;
    if (!reaches_register(i) || leadership.epoch != register_.epoch || now_ >= register_.until)
      return;
    const bool breaks_up = leadership.state.phase() == Phase::Joining &&
                           leadership.state.past().last() == register_.world.id;
    if (!breaks_up || register_.by != at(i).name || leadership.state.world_fence().is_up(now_))
      return;
    write_survivors(i, false);
    write_leavers(*at(i).leadership);
  }

  void write_survivors(int i, bool left) {
    const State& state = at(i).leadership->state;
    register_.survivors = state.survivors(now_);
    register_.survivors_time = std::max<Duration>(register_.survivors->at_work.until - now_, 0s);
    register_.left = left;
    register_.rest.clear();
    for (const auto& [peer, member] : state.roster().all()) {
      const bool waits = member.state == MemberState::Waiting && !member.returning;
      if (!waits) register_.rest.insert(member.node.address);
    }
  }

  // Its process ends in order, and with it the coordinator.
  void go(int i) {
    for (auto& [peer, line] : lines_) {
      if (line.host == i) close_coordinator_end(peer);
    }
    if (at(i).leadership) retire(i);
    if (at(i).line != 0) close_agent_end(at(i).line, Loss::Ended);
    replace(i);
  }

  void step_down(int i) {
    for (auto& [peer, line] : lines_) {
      if (line.host == i) close_coordinator_end(peer);
    }
    at(i).leadership.reset();
  }

  bool has_agents(int i) {
    return std::ranges::any_of(lines_, [i](const auto& line) {
      return line.second.host == i && line.second.coordinator_open;
    });
  }

  // A message to a coordinator that was paused may be read before its timers ring.
  void check_entitlement(int i) {
    if (now_ >= at(i).leadership->lease_end) at(i).leadership->state.hold(true, now_);
  }

  void hear_agents(int i) {
    for (auto& [peer, line] : lines_) {
      while (line.host == i && line.coordinator_open && at(i).leadership && hears(line.agent, i) &&
             !line.up.empty()) {
        check_entitlement(i);
        const auto word = std::move(line.up.front());
        line.up.pop_front();
        word();
        if (at(i).leadership) deliver(i);
      }
    }
  }

  void lose(int i, Peer peer, Loss loss) {
    close_coordinator_end(peer);
    const bool current = at(i).leadership->state.roster().all().contains(peer);
    if (loss == Loss::Silent && i != kStore && current) lose_contact(i);
    check_entitlement(i);
    at(i).leadership->state.depart(peer, "silent", now_, loss);
    deliver(i);
  }

  void lose_contact(int i) {
    Leadership& leadership = *at(i).leadership;
    if (leadership.contact.silent(leadership.state.phase(), agents_of(i))) yield(i);
  }

  std::size_t agents_of(int i) const {
    return static_cast<std::size_t>(std::ranges::count_if(lines_, [i](const auto& line) {
      return line.second.host == i && line.second.coordinator_open && line.second.welcomed;
    }));
  }

  void deliver(int i) {
    Leadership& leadership = *at(i).leadership;
    std::shared_ptr<const World> closed;
    for (const Delivery& delivery : leadership.state.take()) {
      if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
        if (assigned->world != closed) record(leadership, *(closed = assigned->world));
      } else if (const auto push = to_push(delivery.notice);
                 std::holds_alternative<Restart>(push)) {
        if (std::get<Restart>(push).attempt_spent) history_.failed(leadership.epoch);
      }
      const auto line = lines_.find(delivery.to);
      if (line == lines_.end() || !line->second.coordinator_open) continue;
      line->second.down.emplace_back([this, agent = line->second.agent, notice = delivery.notice] {
        obey(agent, to_push(notice));
      });
    }
  }

  // The answer of the register comes at once or later, but it is one of now.
  void record_world(int i) {
    Leadership& leadership = *at(i).leadership;
    const auto world = leadership.state.unacknowledged();
    if (!world || !reaches_register(i) || leadership.epoch != register_.epoch) return;
    if (now_ >= register_.until) return;
    register_.world = *world;
    register_.by = at(i).name;
    register_.survivors.reset();
    write_leavers(leadership);
    check_entitlement(i);
    leadership.state.acknowledge(*world, now_);
    deliver(i);
  }

  // At some time after it has changed who leaves. Until then a successor knows nothing of them.
  void record_leavers(int i) {
    const Leadership& leadership = *at(i).leadership;
    if (leadership.state.world_fence().fence.stopping_groups().count == leadership.recorded_leavers)
      return;
    if (!reaches_register(i) || leadership.epoch != register_.epoch || now_ >= register_.until)
      return;
    if (register_.by == at(i).name) write_leavers(*at(i).leadership);
  }

  void write_leavers(Leadership& leadership) {
    const StoppingGroups leavers = leadership.state.world_fence().fence.stopping_groups();
    register_.leavers = leadership.recorded_leavers = leavers.count;
    register_.leaving = std::max<Duration>(leavers.until - now_, 0s);
    register_.told.insert(leadership.leavers.begin(), leadership.leavers.end());
  }

  // A new coordinator learns what may be at work. If no survivors of the last world was recorded,
  // it sometimes finds out that group rank 0 is gone; a survivors is believed, whoever of it has
  // ended (see WorldRegister::inherit).
  void inherit(int i) {
    if (register_.by.empty()) return;
    Leadership& leadership = *at(i).leadership;
    leadership.inherited = leadership.found = register_.world.id;
    leadership.found_by = register_.by;
    const PreviousWorld previous{register_.world.id, 0, register_.world.nodes};
    MemberFence fence;
    fence.inherit({register_.leavers, now_ + register_.leaving});
    leadership.may_miss = register_.survivors && register_.left ? 0 : 1;
    leadership.expected.reset();
    if (auto survivors = register_.survivors) {
      survivors->at_work.until = now_ + register_.survivors_time;
      fence.expect(previous.id, *survivors, leadership.may_miss);
      leadership.expected = register_.rest;
    } else {
      const auto& chosen = register_.world.members;
      fence.expect(previous.id, previous.nodes, 1, {chosen.begin(), chosen.end()});
    }
    leadership.state.inherit({previous, register_.survivors ? now_ : now_ + kIsolation, fence});
    leadership.recorded_leavers = register_.leavers;
    if (register_.survivors) return;
    const std::string& name = register_.world.address;
    const bool alive = std::ranges::any_of(
        machines_, [&name](const auto& machine) { return machine.name == name; });
    if (alive || draw(2) != 0) return;
    const WorldRecord& world = register_.world;
    leadership.state.disinherit(world.local ? kTimeToFollow : world.at_work, now_);
  }

  void record(Leadership& leadership, const World& world) {
    must(world.id.epoch == leadership.epoch, "a round bears the epoch of its coordinator");
    must(std::ranges::none_of(machines_,
                              [&](const Machine& machine) {
                                return machine.leaves && is_at_work(machine) &&
                                       !machine.overslept &&
                                       (leadership.leavers.contains(machine.name) ||
                                        register_.told.contains(machine.name));
                              }),
         "no round while somebody who has said goodbye is at work");
    int unheard = 0;
    for (const Machine& machine : machines_) {
      if (!is_at_work(machine) || machine.overslept || machine.previous.id.round == 0) continue;
      must(machine.doing != Doing::Stopping || !leadership.saving.contains(machine.name),
           "no round while somebody is at work who has said so");
      const bool of_last = machine.previous.id == leadership.inherited &&
                           (!leadership.expected || leadership.expected->contains(machine.name));
      if (of_last && !leadership.heard.contains(machine.name)) ++unheard;
    }
    must(unheard <= leadership.may_miss, "a successor hears all but one, or waits");
    leadership.inherited = {};
    // A store that was begun again without a file knows no more than it is told.
    if (stands_alone_ && !remembers_ && !history_.is_next({world.id.epoch, world.id.round})) {
      must(world.id.round > leadership.told_of, "no round of a number that was told");
      history_.forget();
    }
    if (stands_alone_) in_file_ = {world.id, 0, static_cast<int>(world.members.size())};
    history_.closed(world, rules_, leadership.epoch == register_.epoch && now_ < register_.until);
  }

  // The agent

  void keep_agent(int i) {
    Machine& machine = at(i);
    if (machine.doing == Doing::Over) return;
    ring_alarms(i);
    if (machine.line == 0 && machine.doing == Doing::Waiting && now_ >= machine.search_deadline) {
      machine.doing = Doing::Over;
    }
    const bool settled = machine.leaves && (!stands_alone_ || machine.doing != Doing::Stopping);
    if (machine.line == 0 && machine.doing != Doing::Over && !settled) look(i);
  }

  void look(int i) {
    if (!reaches_register(i)) return;
    if (now_ >= register_.until && !at(i).leadership) {
      at(i).leadership = std::make_shared<Leadership>(rules_, ++register_.epoch);
      at(i).leadership->state.hold(true, now_);
      at(i).leadership->alone_until = now_ + kYield;
      inherit(i);
      lead(i);
    }
    if (now_ >= register_.until || !at(register_.leader).leadership || !hears(i, register_.leader))
      return;
    if (at(register_.leader).leadership->epoch != register_.epoch) return;
    const Peer peer = ++last_peer_;
    at(i).line = peer;
    lines_[peer] = {i, register_.leader, {}, {}, true, true, false, now_, now_};
    lines_[peer].up.emplace_back([this, peer, seen = at(i).epoch, previous = at(i).previous,
                                  left = time_to_stop(i)] { greet(peer, seen, previous, left); });
  }

  // By its own word: none, if its group is not being stopped.
  Duration time_to_stop(int i) {
    if (at(i).doing != Doing::Stopping) return {};
    return std::max<Duration>(at(i).told_at + kGrace - now_, 1ms);
  }

  void greet(Peer peer, std::int64_t seen, const PreviousWorld& previous, Duration left) {
    Line& line = lines_.at(peer);
    Leadership& leadership = *at(line.host).leadership;
    if (seen > leadership.epoch) return close_coordinator_end(peer);
    const Machine& machine = at(line.agent);
    leadership.heard.insert(machine.name);
    leadership.contact.came();
    line.down.emplace_back(
        [this, peer, epoch = leadership.epoch, world = leadership.state.last_world()] {
          be_welcome(peer, epoch, world);
        });
    if (left <= Duration::zero()) return;
    leadership.saving.insert(machine.name);
    leadership.hear_of(previous.id.round);
    Node node = make_node(machine.name);
    node.grace = kGrace;
    leadership.state.arrive_stopping(peer, node, previous, left, now_);
  }

  void be_welcome(Peer peer, std::int64_t epoch, const PreviousWorld& world) {
    Line& line = lines_.at(peer);
    Machine& machine = at(line.agent);
    if (epoch < machine.epoch) return part(line.agent);
    machine.epoch = epoch;
    if (world.id.is_later_than(machine.knows.id)) machine.knows = world;
    line.welcomed = true;
    if (machine.doing == Doing::Waiting) join(line.agent);
    if (machine.leaves) say_goodbye(line.agent, time_to_stop(line.agent));
  }

  void join(int i) {
    const Peer peer = at(i).line;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back([this, peer, host, node = make_node(at(i).name),
                                     previous = at(i).previous, knows = at(i).knows, i]() mutable {
      node.grace = kGrace;
      node.local = i == host;
      at(host).leadership->state.hear_of(knows, kGrace, now_);
      at(host).leadership->hear_of(std::max(previous.id.round, knows.id.round));
      at(host).leadership->saving.erase(node.address);
      at(host).leadership->heard.insert(node.address);
      at(host).leadership->state.join(peer, node, previous, now_);
    });
  }

  void fail_worker(int i) {
    Machine& machine = at(i);
    if (machine.doing != Doing::Working || machine.paused || machine.line == 0) return;
    const Peer peer = machine.line;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back([this, peer, host, round = machine.previous.id.round] {
      at(host).leadership->state.fail(peer, round, {}, now_);
    });
    stop_group(i);
    machine.undecided = true;
  }

  // Preempted: it says goodbye, and its group saves what it has.
  void leave(int i) {
    Machine& machine = at(i);
    if (machine.paused || machine.leaves || machine.doing == Doing::Over) return;
    machine.leaves = true;
    if (machine.doing == Doing::Working) stop_group(i);
    if (machine.line != 0) say_goodbye(i, time_to_stop(i));
    if (machine.doing != Doing::Stopping) go(i);
  }

  void say_goodbye(int i, Duration grace) {
    const Peer peer = at(i).line;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back([this, peer, host, name = at(i).name, grace] {
      at(host).leadership->leavers.insert(name);
      at(host).leadership->state.leave(peer, "preempted", now_, grace);
    });
  }

  void replace(int i) {
    end_process(i);
    begin_process(i);
  }

  void stop_group(int i) {
    if (at(i).doing != Doing::Working) return;
    at(i).doing = Doing::Stopping;
    at(i).told_at = now_;
    // Most end soon, some save for as long as they may. Seen within a second.
    at(i).stopped_at = now_ + std::chrono::milliseconds(draw(draw(3) == 0 ? 24'000 : 4000));
  }

  void end_group(int i) {
    Machine& machine = at(i);
    machine.overslept = false;
    if (machine.leaves) return go(i);
    for (const Peer peer : std::exchange(machine.held, {})) close_agent_end(peer);
    machine.doing = machine.undecided ? Doing::Stopped : Doing::Waiting;
    if (!machine.undecided && machine.line != 0 && lines_.at(machine.line).welcomed) join(i);
  }

  void hear_coordinator(int i) {
    while (at(i).line != 0 && at(i).doing != Doing::Over) {
      Line& line = lines_.at(at(i).line);
      if (!hears(i, line.host) || line.down.empty()) return;
      if (has_lost_coordinator(i)) return part(i);
      // Words of long ago: what they say counts if the line stands, and else that it has ended.
      if (is_silent(line) && !line.coordinator_open) return part(i);
      if (is_silent(line)) return;
      const auto word = std::move(line.down.front());
      line.down.pop_front();
      word();
    }
  }

  void obey(int agent, const Push& push) {
    Machine& machine = at(agent);
    if (const auto* ready = std::get_if<RoundReady>(&push)) {
      const Round& round = ready->round;
      if (round.epoch < machine.epoch || round.number <= machine.previous.id.round) return;
      must(machine.doing == Doing::Waiting, "only a node that waits becomes a member");
      must(round.attempt >= machine.previous.attempt, "attempts never go back");
      machine.epoch = round.epoch;
      machine.previous = {round.id(), round.attempt, round.group_world_size()};
      machine.world = {round.epoch, round.number};
      machine.doing = Doing::Working;
    } else if (const auto* restart = std::get_if<Restart>(&push)) {
      const bool undecided = std::exchange(machine.undecided, false);
      if (machine.doing != Doing::Working && !undecided) return;
      if (machine.doing == Doing::Working) acknowledge(agent);
      stop_group(agent);
      if (restart->attempt_spent) ++machine.previous.attempt;
      if (machine.doing == Doing::Stopped) {
        machine.doing = Doing::Waiting;
        join(agent);
      }
    } else if (const auto* spare = std::get_if<Spare>(&push)) {
      if (spare->world.id.is_later_than(machine.knows.id)) machine.knows = spare->world;
    } else if (std::holds_alternative<Done>(push) || std::holds_alternative<Lost>(push)) {
      machine.doing = Doing::Over;
      if (machine.line != 0) close_agent_end(std::exchange(machine.line, 0));
    }
  }

  // Told to stop, it says that it has heard it.
  void acknowledge(int i) {
    const Peer peer = at(i).line;
    if (peer == 0) return;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back([this, peer, host, name = at(i).name] {
      at(host).leadership->saving.insert(name);
      at(host).leadership->state.stopping(peer, kGrace, now_);
    });
  }

  // Its coordinator is silent or gone: the group is stopped, another coordinator looked for.
  void part(int i) {
    Machine& machine = at(i);
    machine.search_deadline = now_ + rules_.join_timeout;
    machine.undecided = false;
    if (machine.drowsy && now_ > noticed(machine)) machine.overslept = true;
    machine.asks_until = {};
    stop_group(i);
    if (machine.doing == Doing::Stopped) machine.doing = Doing::Waiting;
    // The end of a connection says that the group has ended: not before that is true.
    const Peer line = std::exchange(machine.line, 0);
    if (machine.doing != Doing::Stopping) return close_agent_end(line);
    machine.held.push_back(line);
  }

  void close_agent_end(Peer peer, Loss loss = Loss::Closed) {
    Line& line = lines_.at(peer);
    if (!std::exchange(line.agent_open, false)) return;
    line.up.emplace_back([this, peer, host = line.host, loss] { lose(host, peer, loss); });
  }

  void close_coordinator_end(Peer peer) {
    Line& line = lines_.at(peer);
    if (!std::exchange(line.coordinator_open, false)) return;
    line.down.emplace_back([this, peer, agent = line.agent] {
      if (at(agent).line == peer) part(agent);
    });
  }

  Draw draw;
  Rules rules_;
  TimePoint now_{1000s};
  std::vector<Machine> machines_{kMachines + 1};
  std::map<Peer, Line> lines_;
  Peer last_peer_ = 0;
  int processes_ = 0;
  bool stands_alone_ = false, remembers_ = false;
  PreviousWorld in_file_;  // of the store
  Register register_;
  History history_;
};

}  // namespace

TEST_CASE("rendezvous: a pause of the whole job restarts nothing") {
  for_each_seed([](unsigned seed) { Cluster(seed).run_with_rest(); });
}

TEST_CASE("rendezvous: no partition makes two worlds, and its end makes one") {
  // 24253: a member that saves has lost a second connection to a store that stands still.
  // 422557: a register that has forgotten everything numbers its rounds from 1 again.
  // 295588: group rank 0 and the leader have gone, and two members that are cut off save.
  // The others: a leader leaves in order, and group rank 0 has ended.
  for_each_seed([](unsigned seed) { Cluster(seed).run(); },
                {24253, 33296, 35536, 38197, 44793, 422557, 295588});
}

TEST_CASE("rendezvous: a leader that reaches the register alone does not hold up the others") {
  for_each_seed([](unsigned seed) { Cluster(seed).lose_leader(); });
}
