// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/coordinator.hpp"

#include "net/link.hpp"
#include "process/process_table.hpp"
#include "rendezvous/wire/messages.hpp"
#include "support/fake_clock.hpp"
#include "unit/rendezvous/timeless.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <memory>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;
using namespace elastrun;

TEST_CASE("cut off detector: who has lost more than are left, since the last world, is cut off") {
  struct Silence {
    Phase before;
    std::size_t left;
    bool cut_off;
    bool came = false;  // before that
  };
  for (const auto& [title, story] : std::vector<std::pair<const char*, std::vector<Silence>>>{
           {"more", {{Phase::Running, 2, false}, {Phase::Joining, 1, true}}},
           {"half of them prove nothing", {{Phase::Running, 3, false}, {Phase::Joining, 2, false}}},
           {"a complete world needs no other coordinator",
            {{Phase::Running, 2, false}, {Phase::Running, 2, false}, {Phase::Running, 2, false}}},
           {"those who were lost before the last world was formed do not count",
            {{Phase::Running, 4, false},
             {Phase::Joining, 3, false},
             {Phase::Running, 2, false},
             {Phase::Joining, 2, false}}},
           {"who comes makes good for one who was lost",
            {{Phase::Running, 3, false, true}, {Phase::Joining, 1, false, true}}}}) {
    CAPTURE(title);
    CutOffDetector contact;
    for (const Silence& one : story) {
      if (one.came) contact.came();
      CHECK(contact.silent(one.before, one.left) == one.cut_off);
    }
  }
}

TEST_CASE("coordinator: more nodes fall silent than are left") {
  CountsCutOffs owner;
  Timeless town(rules_for(1, 3), &owner);
  Spoken first(town, {}, "first"), second(town, {}, "second");
  town.agent->join();
  REQUIRE(town.is_told());
  REQUIRE(town.agent->round().group_world_size() == 3);
  SUBCASE("without a word") {
    town.pass(20s, 40);
    town.agent->hear<Restart>();
    CHECK(owner.count == 1);
  }
  SUBCASE("after they have said goodbye: then nobody there waits for another leader") {
    for (auto* leaver : {&first, &second})
      leaver->link->send(encode(FromAgent(Leaving{"it received SIGTERM", 30s})));
    REQUIRE(town.is_told());
    town.agent->hear<Restart>();
    town.agent->join();
    town.pass(20s, 40);
    CHECK(owner.count == 0);
  }
}

TEST_CASE("coordinator: connections that members have given up and replaced are no losses") {
  CountsCutOffs owner;
  Timeless town(rules_for(1, 3), &owner);
  // The last one of each is alive; those before are held open until a group has ended.
  std::vector<std::unique_ptr<Spoken>> first, second;
  town.agent->join();
  for (int turn = 0; turn < 3; ++turn) {
    first.push_back(std::make_unique<Spoken>(town, std::nullopt, "first"));
    second.push_back(std::make_unique<Spoken>(town, std::nullopt, "second"));
    town.pass(1s, 4);
  }
  for (int step = 0; step < 10; ++step) {
    for (auto* last : {first.back().get(), second.back().get()})
      last->link->send(encode(FromAgent(Heartbeat{})));
    town.pass(2s, 4);
  }
  CHECK(town.host->agents() == 3);
  CHECK(owner.count == 0);
}

namespace {

/// A process of this machine that does nothing until it is killed.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  ~Sleeper() { end(); }
  void end() {
    if (pid_ == 0) return;
    kill();
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  /// It has ended, but nobody has asked how.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  ProcessMark mark() const {
    const auto entry = process::read_process(pid_);
    REQUIRE(entry);
    return {pid_, entry->start_time};
  }

 private:
  pid_t pid_;
};

AgentProcesses agent_of(const Sleeper& agent, const Sleeper& guardian) {
  AgentProcesses processes = own_processes(0);
  processes.agent = agent.mark();
  processes.guardian = guardian.mark();
  return processes;
}

struct Watch {
  elastrun::test::FakeClock clock;
  std::vector<Peer> gone;
  LocalAgents agents{clock, [this](Peer peer) { gone.push_back(peer); }};
};

}  // namespace

TEST_CASE("local agents: the end of both processes is seen, and of both only") {
  Watch watch;
  Sleeper agent, guardian;
  watch.agents.note(7, agent_of(agent, guardian));
  watch.agents.lose(7, true);
  CHECK(watch.gone.empty());
  SUBCASE("whoever has reaped them or not") {
    watch.clock.advance(10ms);
    agent.kill();
    watch.clock.advance(10ms);
    CHECK(watch.gone.empty());
    guardian.end();
    watch.clock.advance(2ms);
    CHECK(watch.gone == std::vector<Peer>{7});
    watch.clock.advance(1s);
    CHECK(watch.gone.size() == 1);
  }
  SUBCASE("for as long as it may take to return") {
    watch.clock.advance(kTimeToReturn);
    agent.end();
    guardian.end();
    watch.clock.advance(1s);
    CHECK(watch.gone.empty());
    CHECK(watch.clock.armed() == 0);
  }
}

TEST_CASE("local agents: a process of another start time is another one") {
  Watch watch;
  Sleeper other;
  AgentProcesses ended = own_processes(0);
  ended.agent = other.mark();
  --ended.agent.start_time;
  watch.agents.note(1, ended);
  watch.agents.lose(1, true);
  watch.clock.advance(2ms);
  CHECK(watch.gone == std::vector<Peer>{1});
}

TEST_CASE("local agents: one is here if its processes are, and its connection comes from here") {
  Watch watch;
  Sleeper agent, guardian;
  const auto loopback = boost::asio::ip::make_address("127.0.0.1");
  watch.agents.note(1, agent_of(agent, guardian));
  CHECK(watch.agents.is_here(1, loopback));
  CHECK(!watch.agents.is_here(1, boost::asio::ip::make_address("192.0.2.9")));
  AgentProcesses elsewhere = agent_of(agent, guardian);
  elsewhere.boot = "0f0e";
  watch.agents.note(2, elsewhere);
  CHECK(!watch.agents.is_here(2, loopback));  // it comes through a tunnel
}

TEST_CASE("local agents: of other machines, and of who has said goodbye, nothing is looked at") {
  Watch watch;
  Sleeper agent, guardian;
  AgentProcesses processes = agent_of(agent, guardian);
  agent.end(), guardian.end();
  SUBCASE("another kernel") {
    processes.boot = "0f0e";
  }
  SUBCASE("another pid namespace") {
    ++processes.namespace_;
  }
  SUBCASE("nothing told") {
    processes = {};
  }
  watch.agents.note(1, processes);
  watch.agents.lose(1, true);
  watch.agents.note(2, agent_of(Sleeper(), Sleeper()));
  watch.agents.lose(2, false);
  watch.clock.advance(1s);
  CHECK(watch.gone.empty());
}

TEST_CASE("coordinator: an agent that was killed on its machine delays no round") {
  Timeless town(rules_for(1, 2));
  Sleeper agent, guardian;
  Spoken victim(town, agent_of(agent, guardian));
  town.agent->join();
  REQUIRE(town.is_told());
  REQUIRE(town.agent->round().group_world_size() == 2);
  agent.end(), guardian.end();
  victim.link->close();
  REQUIRE(town.is_told());
  town.agent->hear<Restart>();
  town.agent->join();
  REQUIRE(town.is_told());
  CHECK(town.agent->round().group_world_size() == 1);
}
