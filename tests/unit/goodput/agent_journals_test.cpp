// SPDX-License-Identifier: Apache-2.0

#include "goodput/journals/journal_books.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <numeric>
#include <random>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;
using telemetry::Record;

namespace {

using Attributes = std::vector<telemetry::Attribute>;
using Verdict = AgentJournals::Verdict;

constexpr Duration kEpoch = std::chrono::seconds(1'767'323'045);

/// An agent, and its journal.
struct Agent {
  Duration steady{}, wall{};  // how far its clocks are behind the true one
  std::vector<Record> journal{};
};

/// A job that is told twice: by each agent, and by somebody with a true clock.
struct Told {
  explicit Told(std::vector<Agent> those) : agents(std::move(those)) {}

  Record record(std::string scope, std::string name, Attributes attributes) const {
    Record one;
    one.stamp = {TimePoint(kEpoch + now), WallTime(kEpoch + now)};
    one.scope = std::move(scope), one.name = std::move(name);
    one.attributes = std::move(attributes);
    return one;
  }
  void tell(std::size_t agent, Record one, bool true_clock) {
    if (true_clock) truth.push_back(one);
    one.stamp.mono -= agents[agent].steady;
    one.stamp.wall -= agents[agent].wall;
    agents[agent].journal.push_back(std::move(one));
  }
  void agent(std::size_t agent, std::string name, Attributes attributes, bool true_clock) {
    tell(agent, record("elastrun.agent", std::move(name), std::move(attributes)), true_clock);
  }
  void start(std::size_t agent, bool true_clock) {
    this->agent(agent, "job.started", {{"run_id", "night"}, {"max_nodes", std::int64_t{8}}},
                true_clock);
  }
  void phase(std::size_t agent, std::string phase, bool true_clock) {
    this->agent(agent, "phase", {{"phase", std::move(phase)}}, true_clock);
  }
  void round(std::size_t agent, std::int64_t number, std::int64_t rank, bool true_clock) {
    this->agent(agent, "rendezvous.round",
                {{"epoch", epoch},
                 {"round", number},
                 {"group_rank", rank},
                 {"master_addr", "n0"},
                 {"master_port", std::int64_t{29500}}},
                true_clock);
  }
  void step(std::size_t agent, std::int64_t number) {
    auto one = record("elastrun.worker", "step", {});
    one.kind = Record::Kind::Sample;
    one.value = number;
    tell(agent, std::move(one), true);
  }

  std::vector<Agent> agents;
  std::vector<Record> truth;
  Duration now{};
  std::int64_t epoch = 1;
};

std::vector<JournalOutline> outlines_of(const std::vector<Agent>& agents) {
  std::vector<JournalOutline> outlines(agents.size());
  for (std::size_t i = 0; i < agents.size(); ++i) {
    for (const auto& record : agents[i].journal) outlines[i].take(record);
  }
  return outlines;
}

std::vector<std::size_t> all_of(std::size_t size) {
  std::vector<std::size_t> all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

JournalBooks books_of(const std::vector<Record>& records) {
  JournalBooks books;
  for (const auto& record : records) books.take(record);
  return books;
}

JournalBooks books_of_all(const std::vector<Agent>& agents) {
  const auto outlines = outlines_of(agents);
  AgentJournals all(outlines);
  std::vector<std::size_t> next(agents.size());
  JournalBooks books;
  for (std::size_t i = 0; i < all.stretches().size(); ++i) {
    const auto journal = all.stretches()[i].journal;
    for (auto& at = next[journal]; at < agents[journal].journal.size(); ++at) {
      auto record = agents[journal].journal[at];
      const auto verdict = all.take(i, record);
      if (verdict == Verdict::Over) break;
      if (verdict == Verdict::Taken) books.take(record);
    }
  }
  return books;
}

Duration difference(Duration one, Duration other) {
  return one > other ? one - other : other - one;
}

/// A job of several rounds, each led by any agent, that fail or end, with agents that die.
struct RandomAgents {
  explicit RandomAgents(unsigned seed) : random(seed), told(make_agents()) {
    for (std::size_t i = 0; i < told.agents.size(); ++i) told.start(i, i == leader);
    for (std::size_t i = 0; i < told.agents.size(); ++i) {
      wait(100);
    }
    const auto rounds = 1 + upto(5);
    for (std::int64_t round = 1; round <= rounds; ++round) run(round, round == rounds);
  }

  std::int64_t upto(std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  }
  void wait(std::int64_t most_ms) { told.now += std::chrono::milliseconds(50 + upto(most_ms)); }

  std::vector<Agent> make_agents() {
    std::vector<Agent> agents(static_cast<std::size_t>(2 + upto(3)));
    for (auto& agent : agents) {
      agent.steady = std::chrono::milliseconds(upto(1'000'000'000));
    }
    alive = all_of(agents.size());
    leader = static_cast<std::size_t>(upto(std::ssize(agents) - 1));
    return agents;
  }

  void run(std::int64_t round, bool last) {
    wait(3000);
    if (round > 1) elect();
    for (const auto agent : alive) told.phase(agent, "starting", agent == leader);
    told.now += 1us;
    told.round(leader, round, 0, true);
    std::int64_t rank = 0;
    for (const auto agent : alive) {
      if (agent != leader) told.round(agent, round, ++rank, false);
    }
    wait(2000);
    for (const auto agent : alive) told.phase(agent, "running", agent == leader);
    for (auto steps = upto(9); steps > 0; --steps) {
      wait(5000);
      told.step(leader, ++step);
      if (upto(3) == 0) {
        told.tell(leader, told.record("elastrun.worker", "checkpoint", {{"step", step}}), true);
      }
    }
    wait(3000);
    last ? end() : fail();
  }
  /// The next round may have another leader, unless one has told what came after a death.
  void elect() {
    if (std::exchange(next_is_known, false)) return;
    const auto next = alive[static_cast<std::size_t>(upto(std::ssize(alive) - 1))];
    handovers += next != leader ? 1 : 0;
    leader = next;
  }
  void fail() {
    if (alive.size() > 1 && upto(3) == 0) return leave();
    // A leader that died is silent; who leads next tells what comes.
    const bool dies = alive.size() > 1 && upto(2) == 0;
    if (dies) {
      std::erase(alive, leader);
      handovers += 1;
      leader = alive[static_cast<std::size_t>(upto(std::ssize(alive) - 1))];
      next_is_known = true;
      wait(2000);
    }
    const Attributes why{{"cause", "rank 1 failed"}, {"failure", true}};
    for (const auto agent : alive) told.agent(agent, "restart", why, agent == leader);
    for (const auto agent : alive) told.phase(agent, "stopping", agent == leader);
    wait(1000);
    for (const auto agent : alive) told.agent(agent, "group.gone", {}, agent == leader);
    for (const auto agent : alive) told.phase(agent, "joining", agent == leader);
    step = step > 2 ? step - upto(2) : step;
  }
  /// The leader gets a signal, and its journal goes on. The order to the others is in no journal
  /// that counts until its group is gone; from then on who leads next tells.
  void leave() {
    told.phase(leader, "stopping", true);
    ++departures;
    left = leader;
    std::erase(alive, left);
    handovers += 1;
    leader = alive[static_cast<std::size_t>(upto(std::ssize(alive) - 1))];
    next_is_known = true;
    const bool first = upto(1) == 0;  // whose group is gone first
    const Attributes why{{"cause", "node left"}, {"failure", false}};
    for (const auto agent : alive) told.agent(agent, "restart", why, false);
    for (const auto agent : alive) told.phase(agent, "stopping", false);
    if (first) wait(1000), join(false);
    wait(1000);
    told.agent(left, "group.gone", {}, true);
    told.truth.push_back(told.record("elastrun.agent", "restart", why));
    if (first) told.truth.push_back(told.record("elastrun.agent", "phase", {{"phase", "joining"}}));
    told.phase(left, "ended", false);
    told.agent(left, "job.ended", {{"succeeded", false}, {"ending", "signalled"}}, false);
    told.agent(left, "goodput", {}, false);
    if (!first) wait(1000), join(true);
  }
  void join(bool tells) {
    for (const auto agent : alive) told.agent(agent, "group.gone", {}, false);
    for (const auto agent : alive) told.phase(agent, "joining", tells && agent == leader);
  }
  void end() {
    for (const auto agent : alive) {
      told.phase(agent, "stopping", agent == leader);
      told.agent(agent, "worker.ended", {{"exit_code", std::int64_t{0}}}, agent == leader);
      told.agent(agent, "group.gone", {}, agent == leader);
      told.agent(agent, "job.ended", {{"succeeded", true}}, agent == leader);
      told.agent(agent, "goodput", {}, agent == leader);
    }
  }

  std::mt19937 random;
  std::vector<std::size_t> alive;
  std::size_t leader = 0, left = 0;
  bool next_is_known = false;
  int handovers = 0, departures = 0;
  std::int64_t step = 0;
  Told told;
};

}  // namespace

TEST_CASE("agent journals: those of all agents are nearly the journal of one who sees all") {
  int several = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    const RandomAgents job(seed);
    const auto books = books_of_all(job.told.agents), truth = books_of(job.told.truth);
    const auto got = books.summary().value(), expected = truth.summary().value();
    CHECK(std::accumulate(got.buckets.begin(), got.buckets.end(), Duration{}) == got.elapsed);
    // Who leaves tells nothing of the end of its group.
    const Duration most = 2500ms * job.departures + 300ms;
    CHECK(difference(got.elapsed, expected.elapsed) <= 300ms);
    for (std::size_t i = 0; i < kBuckets; ++i) {
      CAPTURE(bucket_name(static_cast<Bucket>(i)));
      CHECK(difference(got.buckets[i], expected.buckets[i]) <= most);
    }
    CHECK(got.restarts == expected.restarts);
    CHECK(got.last_step == expected.last_step);
    CHECK(got.last_checkpoint == expected.last_checkpoint);
    CHECK(books.submissions() == 1);
    CHECK(books.misplaced() == 0);
    CHECK(books.has_ended());
    several += job.handovers > 1 ? 1 : 0;
  }
  CHECK(several > 500);
}

namespace {

/// Two agents of which that of rank 0 gets a signal at 10 s, saves until 12 s and ends; the other
/// one waits from 11 s on.
struct Left : Told {
  Left() : Told({Agent{5s, 0s, {}}, Agent{9s, 0s, {}}}) {
    for (const std::size_t one : {0, 1}) {
      start(one, false);
      phase(one, "joining", false);
      phase(one, "starting", false);
    }
    now += 1ms;
    for (const std::size_t one : {0, 1}) round(one, 1, static_cast<std::int64_t>(one), false);
    now = 1s;
    for (const std::size_t one : {0, 1}) phase(one, "running", false);
    for (now = 2s; now < 10s; now += 1s) step(0, now / 1s);
    phase(0, "stopping", false);
    agent(1, "restart", {{"cause", "node n0 left"}, {"failure", false}}, false);
    phase(1, "stopping", false);
    now = 11s;
    agent(1, "group.gone", {}, false);
    phase(1, "joining", false);
    now = 12s;
    tell(0, record("elastrun.worker", "checkpoint", {{"step", std::int64_t{9}}}), false);
    agent(0, "worker.ended", {{"signal", "SIGTERM"}}, false);
    agent(0, "group.gone", {}, false);
    phase(0, "ended", false);
    agent(0, "job.ended", {{"ending", "signalled"}, {"succeeded", false}}, false);
    agent(0, "goodput", {}, false);
  }
  void second_round() {
    phase(1, "starting", false);
    now += 1ms;
    round(1, 2, 0, false);
    now = 601s;
    phase(1, "running", false);
  }
};

}  // namespace

TEST_CASE("agent journals: where rank 0 leaves, the others' waiting for a round is that") {
  Left told;
  SUBCASE("its journal ends with its group") {}
  SUBCASE("its journal goes on, as that of a spare does") {
    told.now = 600s + 10ms;
    told.agent(0, "rendezvous.progress", {{"text", "spare"}}, false);
  }
  told.now = 600s;
  told.second_round();
  told.now = 603s;
  told.agent(1, "ranks.connecting", {}, false);
  told.now = 605s;
  told.agent(1, "ranks.connected", {}, false);
  told.now = 610s;
  told.agent(1, "job.ended", {{"ending", "succeeded"}, {"succeeded", true}}, false);
  const auto books = books_of_all(told.agents);
  const auto summary = books.summary().value();
  CHECK(difference(summary.elapsed, 610s) <= 1ns);
  CHECK(difference(summary.of(Bucket::Rendezvous), 589s) <= 1ns);
  CHECK(summary.of(Bucket::Lost) == 1s);  // of the step that was under way
  CHECK(summary.of(Bucket::Preparation) == 2s);
  CHECK(summary.of(Bucket::Initialization) == 2s);
  CHECK(summary.restarts == 1);
  REQUIRE(books.restarts().size() == 1);
  const auto path = books.restarts().front();
  CHECK(path.cause == "node n0 left");
  CHECK(difference(path.of(RestartStage::Stop), 1s) <= 1ns);
  CHECK(difference(path.of(RestartStage::Rendezvous), 589s) <= 1ns);
}

TEST_CASE("agent journals: where rank 0 leaves and no round comes, who waits tells the end") {
  Left told;
  told.now = 610s;
  SUBCASE("it has given up") {
    told.phase(1, "ended", false);
    told.agent(1, "job.ended", {{"ending", "not_started"}, {"succeeded", false}}, false);
    told.agent(1, "goodput", {}, false);
    CHECK(books_of_all(told.agents).has_ended());
  }
  SUBCASE("it waits still") {
    told.agent(1, "rendezvous.progress", {{"text", "1 of 2 nodes"}}, false);
    CHECK_FALSE(books_of_all(told.agents).has_ended());
  }
  const auto summary = books_of_all(told.agents).summary().value();
  CHECK(difference(summary.elapsed, 610s) <= 1ns);
  CHECK(difference(summary.of(Bucket::Rendezvous), 599s) <= 1ns);
}

TEST_CASE("agent journals: where all get a signal, the end is that of rank 0") {
  Told told({Agent{5s, 0s, {}}, Agent{9s, 0s, {}}});
  for (const std::size_t one : {0, 1}) {
    told.start(one, false);
    told.round(one, 1, static_cast<std::int64_t>(one), false);
    told.phase(one, "running", false);
  }
  told.now = 10s;
  told.phase(0, "stopping", false);
  told.agent(1, "restart", {{"cause", "node n0 left"}, {"failure", false}}, false);
  told.phase(1, "stopping", false);
  for (const std::size_t one : {0, 1}) {
    told.now += 2s;
    told.agent(one, "group.gone", {}, false);
    told.phase(one, "ended", false);
    told.agent(one, "job.ended", {{"ending", "signalled"}, {"succeeded", false}}, false);
  }
  const auto summary = books_of_all(told.agents).summary().value();
  CHECK(summary.elapsed == 12s);
  CHECK(summary.of(Bucket::Stopping) == 2s);
}

TEST_CASE("agent journals: agents of one submission are those that ran at the same time") {
  const RandomAgents first(3);
  auto second = first;  // requeued: the same rounds, an hour later
  for (auto& agent : second.told.agents) {
    for (auto& record : agent.journal) record.stamp.wall += 1h, record.stamp.mono += 1h;
  }
  auto agents = first.told.agents;
  const auto of_each = agents.size();
  agents.insert(agents.end(), second.told.agents.begin(), second.told.agents.end());
  agents.push_back(
      {.journal = {first.told.record("elastrun.agent", "job.started", {{"run_id", "day"}})}});
  const auto submissions = submissions_of(outlines_of(agents));
  REQUIRE(submissions.size() == 3);
  std::vector<std::size_t> sizes;
  for (const auto& one : submissions) sizes.push_back(one.size());
  CHECK(std::ranges::count(sizes, of_each) == 2);
  CHECK(std::ranges::count(sizes, 1) == 1);
  CHECK(submissions.back().size() == of_each);
  for (const auto one : submissions.back()) CHECK(one / of_each == 1);
  auto beside = first.told.agents;  // another job of that name, with the same places in its rounds
  beside.insert(beside.end(), first.told.agents.begin(), first.told.agents.end());
  CHECK(submissions_of(outlines_of(beside)).size() == 2);
}

TEST_CASE("agent journals: the wall clocks count as they were at the start") {
  Told told({Agent{5s, 0s, {}}, Agent{9s, 0s, {}}});
  told.start(0, true);
  told.start(1, false);
  told.round(0, 1, 0, true);
  told.round(1, 1, 1, false);
  told.phase(0, "running", true);
  told.now = 10s;
  told.round(1, 2, 0, true);
  told.agents[1].wall = 300s;  // somebody sets it
  told.phase(1, "running", true);
  told.now = 20s;
  told.agent(1, "job.ended", {{"succeeded", true}}, true);
  CHECK(books_of_all(told.agents).elapsed() == books_of(told.truth).elapsed());
  ClockSteps steps;
  for (const auto& record : told.agents[1].journal) steps.take(record);
  CHECK(steps.count() == 1);
}

TEST_CASE("agent journals: a spare that no round needed tells nothing of a job that goes on") {
  Told told({Agent{5s, 0s, {}}, Agent{9s, 0s, {}}});
  told.start(0, true);
  told.round(0, 1, 0, true);
  told.phase(0, "running", true);
  told.now = 2s;
  told.start(1, false);
  told.phase(1, "joining", false);
  told.now = 10s;
  told.step(0, 1);
  told.now = 11s;  // the spare has said something since
  told.agent(1, "rendezvous.progress", {{"text", "1 of 2 nodes"}}, false);
  CHECK(books_of_all(told.agents).elapsed() == books_of(told.truth).elapsed());
}

TEST_CASE("agent journals: times and numbers that nobody can mean close all the same") {
  constexpr std::int64_t kOdd[] = {INT64_MIN, -1, 0, 1, INT64_MAX, INT64_MAX / 2};
  std::mt19937 random(5);
  const auto odd = [&] { return kOdd[random() % std::size(kOdd)]; };
  for (int run = 0; run < 3000; ++run) {
    RandomAgents job(static_cast<unsigned>(run));
    for (int spoilt = 0; spoilt < 4; ++spoilt) {
      auto& journal = job.told.agents[random() % job.told.agents.size()].journal;
      auto& record = journal[random() % journal.size()];
      record.stamp.mono = TimePoint(Duration(odd()));
      if (random() % 2 == 0) record.stamp.wall = WallTime(Duration(odd()));
      for (auto& [name, value] : record.attributes) {
        if (std::holds_alternative<std::int64_t>(value)) value = std::int64_t{odd()};
      }
    }
    submissions_of(outlines_of(job.told.agents));
    const auto summary = books_of_all(job.told.agents).summary();
    if (!summary) continue;
    CHECK(std::accumulate(summary->buckets.begin(), summary->buckets.end(), Duration{}) ==
          summary->elapsed);
  }
}
