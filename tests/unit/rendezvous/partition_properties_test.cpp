// SPDX-License-Identifier: Apache-2.0
// Random partitions of a job whose coordinator is elected: processes that pause and die, machines
// that hear each other or do not, words that arrive late, a register that some can reach. Around
// the states stands a model of what ElectedLocator, Coordinator and RemoteSession do with them.
// Whatever is cut, no two worlds may be at work at once, and epochs, rounds and attempts never go
// back for anybody; once all is whole again, everybody comes together.
#include "rendezvous/state.hpp"
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

class Country {
 public:
  explicit Country(unsigned seed) : draw(seed) {
    const int most = 1 + draw(kMachines);
    rules_ = make_rules(1 + draw(most), most, draw(4));
    rules_.last_call_timeout = std::chrono::seconds(1 + draw(5));
    rules_.join_timeout = std::chrono::seconds(30 + draw(600));
    rules_.growth_delay = 1s;
    rules_.reaction = kDoubt;
    for (int i = 0; i < kMachines; ++i) begin_process(i);
  }

  void run() {
    if (draw(3) == 0) begin_with_death();
    for (int step = 0; step < 300; ++step) {
      act();
      history_.check(machines_);
    }
    // All is whole again: everybody must come together, or be told that it is over.
    for (int i = 0; i < kMachines; ++i) {
      at(i).side = register_.side;
      if (at(i).paused) resume(i);
    }
    int calm = 0;
    for (int step = 0; step < 3000 && calm < 5; ++step) {
      pass(1s);
      for (int i = 0; i < kMachines; ++i) live(i);
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
  bool reaches_register(int i) { return at(i).side == register_.side && !at(i).paused; }

  void act() {
    const int who = draw(kMachines);
    const int choice = draw(200);
    if (choice < 8) {
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

  // All is well, somebody leaves, and the coordinator dies soon after it has heard that. Chance
  // alone brings that about too seldom.
  void begin_with_death() {
    for (int step = 0; step < 60; ++step) {
      pass(1s);
      for (int i = 0; i < kMachines; ++i) live(i);
    }
    const int coordinator = register_.holder, leaver = draw(kMachines);
    if (leaver == coordinator) return;
    leave(leaver);
    for (int turn = draw(4); turn > 0; --turn) live(coordinator);
    replace(coordinator);
  }

  void begin_process(int i) {
    Machine fresh;
    fresh.side = at(i).side;
    fresh.name = "m" + std::to_string(i) + "x" + std::to_string(++processes_);
    fresh.patience = now_ + rules_.join_timeout;
    at(i) = std::move(fresh);
  }

  void end_process(int i) {
    for (auto& [peer, line] : lines_) {
      if (line.agent == i) close_agent_end(peer);
      if (line.host == i) close_office_end(peer);
    }
  }

  void pause(int i) { at(i).paused = true; }
  // A coordinator counts the beats that it misses, not the time: it goes on where it stood.
  void resume(int i) {
    at(i).paused = false;
    at(i).drowsy = true;
    for (auto& [peer, line] : lines_) {
      if (line.host == i) line.office_heard = now_;
    }
  }

  // Beats come and go each second while both hear each other. Alarms ring within a second: what
  // bounds the life of a world is not put off as other things may be.
  void pass(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ = std::min<TimePoint>(end, now_ + 1s);
      pass_beats();
      for (int i = 0; i < kMachines; ++i) ring_alarms(i);
    }
  }

  void ring_alarms(int i) {
    if (at(i).paused) return;
    if (at(i).line != 0 && is_silent(lines_.at(at(i).line))) part(i);
    if (at(i).doing == Doing::Stopping && now_ >= at(i).stopped_at) end_group(i);
    if (at(i).office && now_ >= at(i).office->isolated()) {
      at(i).office->state.suspend("cut off", now_);
      deliver(i);
    }
  }

  void pass_beats() {
    for (auto& [peer, line] : lines_) {
      if (!line.agent_open || !line.office_open || !hears(line.agent, line.host)) continue;
      line.office_heard = now_;
      if (!is_silent(line)) line.proof = now_;
    }
  }

  // An agent that finds its proof too old does not ask for another one.
  bool is_silent(const Line& line) const { return now_ - line.proof > kSilence + kBeat; }

  // Timers and messages of a process that was paused come in any order.
  void live(int i) {
    if (at(i).paused) return;
    const int order = draw(4);
    for (int part = 0; part < 4; ++part) {
      switch ((part + order) % 4) {
        case 0:
          keep_office(i);
          break;
        case 1:
          hear_agents(i);
          break;
        case 2:
          keep_agent(i);
          break;
        default:
          hear_office(i);
      }
    }
    at(i).drowsy = false;
  }

  // The office

  void keep_office(int i) {
    if (!at(i).office) return;
    renew(i);
    ring_alarms(i);
    if (at(i).office && draw(3) > 0) note_world(i);
    if (at(i).office && draw(3) > 0) note_leavers(i);
    for (auto& [peer, line] : lines_) {
      if (line.host == i && line.office_open && now_ - line.office_heard > kSilence) {
        lose(i, peer, kDoubt);
      }
    }
    if (!at(i).office) return;
    const auto due = at(i).office->state.deadline();
    if (due && now_ >= *due) {
      check_entitlement(i);
      at(i).office->state.tick(now_);
    }
    deliver(i);
    if (at(i).doing == Doing::Over && !has_agents(i)) retire(i);
  }

  void renew(int i) {
    Office& office = *at(i).office;
    if (!reaches_register(i)) {
      if (now_ < office.tenure) return;
      office.state.hold(true, now_);
      const bool needed = office.state.phase() == Phase::Gathering;
      if (needed && now_ > office.tenure + kTerm) step_down(i);
    } else if (office.epoch == register_.epoch && now_ < register_.until) {
      take_office(i);
    } else if (now_ >= register_.until && register_.by != at(i).name && !register_.by.empty()) {
      step_down(i);
    } else if (now_ >= register_.until) {
      office.epoch = ++register_.epoch;  // nobody has taken it: elected again
      office.state.set_epoch(office.epoch);
      take_office(i);
      for (auto& [peer, line] : lines_) {
        if (line.host == i && line.office_open && line.welcomed) tell_epoch(line, office.epoch);
      }
    } else {
      step_down(i);
    }
  }

  void tell_epoch(Line& line, std::int64_t epoch) {
    line.down.emplace_back(
        [this, agent = line.agent, epoch] { at(agent).epoch = std::max(at(agent).epoch, epoch); });
  }

  void take_office(int i) {
    register_.until = now_ + kTerm;
    register_.holder = i;
    at(i).office->tenure = now_ + kTerm * 19 / 20;
    at(i).office->state.hold(false, now_);
    deliver(i);
  }

  void retire(int i) {
    if (reaches_register(i) && at(i).office->epoch == register_.epoch) {
      register_.until = now_;
      const State& state = at(i).office->state;
      const bool leaving = now_ < state.clearance().leavers_limit().value_or(now_);
      if (state.phase() != Phase::Running && !leaving) register_.by.clear();
    }
    at(i).office.reset();
  }

  void step_down(int i) {
    for (auto& [peer, line] : lines_) {
      if (line.host == i) close_office_end(peer);
    }
    at(i).office.reset();
  }

  bool has_agents(int i) {
    return std::ranges::any_of(
        lines_, [i](const auto& line) { return line.second.host == i && line.second.office_open; });
  }

  // A message to a coordinator that was paused may be read before its timers ring.
  void check_entitlement(int i) {
    if (now_ >= at(i).office->tenure) at(i).office->state.hold(true, now_);
  }

  void hear_agents(int i) {
    for (auto& [peer, line] : lines_) {
      while (line.host == i && line.office_open && at(i).office && hears(line.agent, i) &&
             !line.up.empty()) {
        check_entitlement(i);
        const auto word = std::move(line.up.front());
        line.up.pop_front();
        word();
        if (at(i).office) deliver(i);
      }
    }
  }

  void lose(int i, Peer peer, Duration at_work) {
    close_office_end(peer);
    check_entitlement(i);
    at(i).office->state.depart(peer, Cause::Kind::NodeLost, "silent", now_, at_work);
    deliver(i);
  }

  void deliver(int i) {
    Office& office = *at(i).office;
    std::shared_ptr<const World> closed;
    for (const Delivery& delivery : office.state.take()) {
      if (const auto* seated = std::get_if<Seated>(&delivery.notice)) {
        if (seated->world != closed) note(office, *(closed = seated->world));
      } else if (const auto push = to_push(delivery.notice);
                 std::holds_alternative<Restart>(push)) {
        if (std::get<Restart>(push).attempt_spent) history_.failed(office.epoch);
      }
      const auto line = lines_.find(delivery.to);
      if (line == lines_.end() || !line->second.office_open) continue;
      line->second.down.emplace_back([this, agent = line->second.agent, notice = delivery.notice] {
        obey(agent, to_push(notice));
      });
    }
  }

  // The answer of the register comes at once or later, but it is one of now.
  void note_world(int i) {
    Office& office = *at(i).office;
    const auto world = office.state.unlicensed();
    if (!world || !reaches_register(i) || office.epoch != register_.epoch) return;
    if (now_ >= register_.until) return;
    register_.world = *world;
    register_.by = at(i).name;
    write_leavers(office);
    check_entitlement(i);
    office.state.license(*world, now_);
    deliver(i);
  }

  // At some time after it has changed who leaves. Until then a successor knows nothing of them.
  void note_leavers(int i) {
    const Office& office = *at(i).office;
    if (office.state.clearance().leavers() == office.noted_leavers) return;
    if (!reaches_register(i) || office.epoch != register_.epoch || now_ >= register_.until) return;
    if (register_.by == at(i).name) write_leavers(*at(i).office);
  }

  void write_leavers(Office& office) {
    const Clearance& clearance = office.state.clearance();
    register_.leavers = office.noted_leavers = clearance.leavers();
    register_.leaving = clearance.leavers_limit().value_or(now_) - now_;
    register_.told.insert(office.leavers.begin(), office.leavers.end());
  }

  // A new coordinator learns what may be at work; sometimes it finds out that group rank 0 is gone.
  void inherit(int i) {
    if (register_.by.empty()) return;
    Office& office = *at(i).office;
    office.state.inherit({register_.world.round, 0, register_.world.nodes}, now_ + kIsolation,
                         {register_.leavers, now_ + register_.leaving});
    office.noted_leavers = register_.leavers;
    const std::string& name = register_.world.address;
    const bool alive = std::ranges::any_of(
        machines_, [&name](const auto& machine) { return machine.name == name; });
    if (!alive && draw(2) == 0) office.state.disinherit(now_);
  }

  void note(const Office& office, const World& world) {
    must(world.epoch == office.epoch, "a round bears the epoch of its coordinator");
    must(std::ranges::none_of(machines_,
                              [&](const Machine& machine) {
                                return machine.leaves && is_at_work(machine) &&
                                       (office.leavers.contains(machine.name) ||
                                        register_.told.contains(machine.name));
                              }),
         "no round while somebody who has said goodbye is at work");
    history_.closed(world, rules_, office.epoch == register_.epoch && now_ < register_.until);
  }

  // The agent

  void keep_agent(int i) {
    Machine& machine = at(i);
    if (machine.doing == Doing::Over) return;
    ring_alarms(i);
    if (machine.line == 0 && machine.doing == Doing::Waiting && now_ >= machine.patience) {
      machine.doing = Doing::Over;
    }
    if (machine.line == 0 && machine.doing != Doing::Over && !machine.leaves) look(i);
  }

  void look(int i) {
    if (!reaches_register(i)) return;
    if (now_ >= register_.until && !at(i).office) {
      at(i).office = std::make_shared<Office>(rules_, ++register_.epoch);
      at(i).office->state.hold(true, now_);
      inherit(i);
      take_office(i);
    }
    if (now_ >= register_.until || !at(register_.holder).office || !hears(i, register_.holder))
      return;
    if (at(register_.holder).office->epoch != register_.epoch) return;
    const Peer peer = ++last_peer_;
    at(i).line = peer;
    lines_[peer] = {i, register_.holder, {}, {}, true, true, false, now_, now_};
    lines_[peer].up.emplace_back([this, peer, seen = at(i).epoch] { greet(peer, seen); });
  }

  void greet(Peer peer, std::int64_t seen) {
    Line& line = lines_.at(peer);
    const Office& office = *at(line.host).office;
    if (seen > office.epoch) return close_office_end(peer);
    line.down.emplace_back([this, peer, epoch = office.epoch] { be_welcome(peer, epoch); });
  }

  void be_welcome(Peer peer, std::int64_t epoch) {
    Line& line = lines_.at(peer);
    Machine& machine = at(line.agent);
    if (epoch < machine.epoch) return part(line.agent);
    machine.epoch = epoch;
    line.welcomed = true;
    if (machine.doing == Doing::Waiting) join(line.agent);
  }

  void join(int i) {
    const Peer peer = at(i).line;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back(
        [this, peer, host, node = make_node(at(i).name), past = at(i).past]() mutable {
          node.grace = kGrace;
          at(host).office->state.join(peer, node, past, now_);
        });
  }

  void fail_worker(int i) {
    Machine& machine = at(i);
    if (machine.doing != Doing::Working || machine.paused || machine.line == 0) return;
    const Peer peer = machine.line;
    const int host = lines_.at(peer).host;
    lines_.at(peer).up.emplace_back([this, peer, host, round = machine.past.round] {
      at(host).office->state.fail(peer, round, {}, now_);
    });
    stop_group(i);
    machine.undecided = true;
  }

  // Preempted: it says goodbye, and its group saves what it has.
  void leave(int i) {
    Machine& machine = at(i);
    if (machine.paused || machine.leaves || machine.doing == Doing::Over) return;
    machine.leaves = true;
    if (machine.line != 0) {
      const Peer peer = machine.line;
      const int host = lines_.at(peer).host;
      const Duration grace = machine.doing == Doing::Stopping ? kGrace : Duration::zero();
      lines_.at(peer).up.emplace_back([this, peer, host, name = machine.name, grace] {
        at(host).office->leavers.insert(name);
        at(host).office->state.depart(peer, Cause::Kind::NodeLeft, "preempted", now_, grace);
      });
    }
    if (machine.doing == Doing::Working) return stop_group(i);
    if (machine.doing != Doing::Stopping) replace(i);
  }

  void replace(int i) {
    end_process(i);
    begin_process(i);
  }

  void stop_group(int i) {
    if (at(i).doing != Doing::Working) return;
    at(i).doing = Doing::Stopping;
    // Most end soon, some save for as long as they may. Seen within a second.
    at(i).stopped_at = now_ + std::chrono::milliseconds(draw(draw(3) == 0 ? 24'000 : 4000));
  }

  void end_group(int i) {
    Machine& machine = at(i);
    machine.overslept = false;
    if (machine.leaves) return replace(i);
    if (machine.held != 0) close_agent_end(std::exchange(machine.held, 0));
    machine.doing = machine.undecided ? Doing::Stopped : Doing::Waiting;
    if (!machine.undecided && machine.line != 0 && lines_.at(machine.line).welcomed) join(i);
  }

  void hear_office(int i) {
    while (at(i).line != 0 && at(i).doing != Doing::Over) {
      Line& line = lines_.at(at(i).line);
      if (!hears(i, line.host) || line.down.empty()) return;
      if (is_silent(line)) return part(i);
      const auto word = std::move(line.down.front());
      line.down.pop_front();
      word();
    }
  }

  void obey(int agent, const Push& push) {
    Machine& machine = at(agent);
    if (const auto* ready = std::get_if<RoundReady>(&push)) {
      const Round& round = ready->round;
      if (round.epoch < machine.epoch || round.number <= machine.past.round) return;
      must(machine.doing == Doing::Waiting, "only who waits gets a seat");
      must(round.attempt >= machine.past.attempt, "attempts never go back");
      machine.epoch = round.epoch;
      machine.past = {round.number, round.attempt, round.group_world_size()};
      machine.world = {round.epoch, round.number};
      machine.doing = Doing::Working;
    } else if (const auto* restart = std::get_if<Restart>(&push)) {
      const bool undecided = std::exchange(machine.undecided, false);
      if (machine.doing != Doing::Working && !undecided) return;
      stop_group(agent);
      if (restart->attempt_spent) ++machine.past.attempt;
      if (machine.doing == Doing::Stopped) {
        machine.doing = Doing::Waiting;
        join(agent);
      }
    } else if (std::holds_alternative<Done>(push) || std::holds_alternative<Lost>(push)) {
      machine.doing = Doing::Over;
      if (machine.line != 0) close_agent_end(std::exchange(machine.line, 0));
    }
  }

  // Its coordinator is silent or gone: the group is stopped, another coordinator looked for.
  void part(int i) {
    Machine& machine = at(i);
    machine.patience = now_ + rules_.join_timeout;
    machine.undecided = false;
    const TimePoint noticed = lines_.at(machine.line).proof + kSilence + 2 * kBeat;
    if (machine.drowsy && now_ > noticed) machine.overslept = true;
    stop_group(i);
    if (machine.doing == Doing::Stopped) machine.doing = Doing::Waiting;
    // The end of a connection says that the group has ended: not before that is true.
    const bool hold = machine.doing == Doing::Stopping && machine.held == 0;
    const Peer line = std::exchange(machine.line, 0);
    if (!hold) return close_agent_end(line);
    machine.held = line;
  }

  void close_agent_end(Peer peer) {
    Line& line = lines_.at(peer);
    if (!std::exchange(line.agent_open, false)) return;
    line.up.emplace_back([this, peer, host = line.host] { lose(host, peer, {}); });
  }

  void close_office_end(Peer peer) {
    Line& line = lines_.at(peer);
    if (!std::exchange(line.office_open, false)) return;
    line.down.emplace_back([this, peer, agent = line.agent] {
      if (at(agent).line == peer) part(agent);
    });
  }

  Draw draw;
  Rules rules_;
  TimePoint now_{1000s};
  std::vector<Machine> machines_{kMachines};
  std::map<Peer, Line> lines_;
  Peer last_peer_ = 0;
  int processes_ = 0;
  Register register_;
  History history_;
};

}  // namespace

TEST_CASE("rendezvous: no partition makes two worlds, and its end makes one") {
  for_each_seed([](unsigned seed) { Country(seed).run(); });
}
