// SPDX-License-Identifier: Apache-2.0
#include "hangs/hang_rule.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>
#include <utility>

using namespace elastrun;
using hangs::HangRule;
using hangs::HangTimeout;
using hangs::NodeProgress;
using namespace std::chrono_literals;

namespace {

constexpr HangTimeout kAuto{HangTimeout::Kind::Auto, {}};
constexpr HangTimeout fixed(Duration limit) {
  return {HangTimeout::Kind::Fixed, limit};
}
constexpr TimePoint at(Duration time) {
  return TimePoint(time);
}
HangRule begun(HangTimeout timeout) {
  HangRule rule(timeout);
  rule.begin(at(0s));
  return rule;
}
bool stands(const HangRule& rule, TimePoint now) {
  const auto progress = rule.progress(now);
  return progress && progress->kind == NodeProgress::Kind::Stands;
}

}  // namespace

TEST_CASE("hang rule: off learns as auto does, but is not asked to act") {
  auto rule = begun({});
  CHECK_FALSE(rule.is_asked_for());
  CHECK_FALSE(rule.progress(at(10h)));
  TimePoint now = at(10h);
  for (int i = 0; i < 20; ++i) rule.step(0, now += 1s);
  CHECK_FALSE(stands(rule, now + hangs::PaceLimit::kShortest - 1s));
  CHECK(stands(rule, now + hangs::PaceLimit::kShortest));
}

TEST_CASE("hang rule: a number counts from the start of the group, steps or not") {
  auto rule = begun(fixed(30s));
  CHECK(rule.progress(at(29s)) == NodeProgress{NodeProgress::Kind::Moves, false});
  CHECK(rule.progress(at(30s)) == NodeProgress{NodeProgress::Kind::Stands, false});
  rule.end();
  CHECK_FALSE(rule.progress(at(1h)));
}

TEST_CASE("hang rule: output and store count as long as there are no steps") {
  auto rule = begun(fixed(30s));
  rule.wrote(at(20s));
  CHECK_FALSE(stands(rule, at(40s)));
  rule.step(0, at(40s));
  rule.wrote(at(60s));  // "still waiting for rank 3" is no progress
  CHECK(rule.progress(at(70s)) == NodeProgress{NodeProgress::Kind::Stands, true});
  rule.step(1, at(71s));
  CHECK_FALSE(stands(rule, at(72s)));
  SUBCASE("of this group: the next one begins anew") {
    rule.begin(at(100s));
    rule.wrote(at(120s));
    CHECK_FALSE(stands(rule, at(140s)));
  }
}

TEST_CASE("hang rule: steps that only the account of goodput sees leave output as progress") {
  auto rule = begun(fixed(30s));
  rule.expect_steps();
  rule.seen_step(0, at(10s));
  CHECK(rule.limit() == 30s);  // the first one is over
  rule.wrote(at(30s));         // an evaluation
  CHECK(rule.progress(at(59s)) == NodeProgress{NodeProgress::Kind::Moves, false});
  rule.went_on(at(59s));
  CHECK_FALSE(stands(rule, at(88s)));
  CHECK(stands(rule, at(89s)));
  rule.step(0, at(90s));
  rule.wrote(at(100s));
  CHECK(rule.progress(at(120s)) == NodeProgress{NodeProgress::Kind::Stands, true});

  auto learns = begun(kAuto);
  TimePoint now = at(0s);
  for (int i = 0; i < 30; ++i) learns.seen_step(0, now += 1s);
  learns.wrote(now += 50s);
  CHECK_FALSE(stands(learns, now + 599s));
  CHECK(learns.progress(now + 600s) == NodeProgress{NodeProgress::Kind::Stands, true});
}

TEST_CASE("hang rule: what may take its time excuses until it ends, or the worker steps or ends") {
  using Kind = NodeProgress::Kind;
  auto rule = begun(fixed(30s));
  rule.seen_step(0, at(1s));
  rule.opened(0, "save", at(2s));
  rule.opened(0, "eval", at(3s));
  rule.opened(1, "save", at(3s));
  rule.closed(0, "save", at(100s));
  rule.closed(0, "load", at(100s));
  CHECK(rule.progress(at(20min))->kind == Kind::Excused);
  TimePoint now = at(20min);
  SUBCASE("by its end") {
    rule.closed(0, "eval", now);
  }
  SUBCASE("by a step") {
    rule.seen_step(0, now);
  }
  SUBCASE("by an end that is lost") {
    rule.closed_all(0, now);
  }
  SUBCASE("as the worker ends") {
    rule.ended(0, now);
  }
  CHECK(rule.progress(at(25min))->kind == Kind::Excused);  // rank 1
  rule.closed(1, "save", now += 5min);
  CHECK_FALSE(stands(rule, now + 29s));
  CHECK(stands(rule, now + 30s));
  rule.begin(now);
  CHECK_FALSE(rule.is_excused(now));
}

TEST_CASE("hang rule: a worker that ends in a phase excuses nobody any more") {
  auto rule = begun(fixed(30s));
  rule.phase(1, "eval", {}, at(1s));
  rule.ended(1, at(20min));
  CHECK_FALSE(stands(rule, at(20min + 29s)));  // the others go on from there
  rule.ended(1, at(20min + 29s));              // is no fact the second time
  CHECK(stands(rule, at(20min + 30s)));
}

TEST_CASE("hang rule: an excuse ends, and then the job hangs although its rank evaluates") {
  auto rule = begun(fixed(30s));
  rule.step(0, at(1s));
  rule.step(1, at(1s));
  SUBCASE("after what the script has said") {
    rule.phase(1, "eval", 5min, at(10s));
    CHECK(rule.next_look(at(5min)) == at(5min + 7500ms));
    CHECK(rule.next_look(at(5min + 8s)) == at(5min + 10s));
    CHECK_FALSE(stands(rule, at(5min + 9s)));
    REQUIRE(stands(rule, at(5min + 10s)));
    const auto over = rule.overdue(at(5min + 10s));
    REQUIRE(over.size() == 1);
    CHECK(over[0] == hangs::Excuses::Excuse{1, "in the phase 'eval'", at(10s), 5min});
  }
  SUBCASE("the first one after a default") {
    rule.phase(1, "eval", {}, at(10s));
    CHECK_FALSE(stands(rule, at(30min + 9s)));
    CHECK(stands(rule, at(30min + 10s)));
  }
  SUBCASE("a later one after a multiple of the longest so far, of any rank and group") {
    rule.phase(1, "eval", {}, at(0s));
    rule.phase(1, "train", {}, at(40min));
    rule.begin(at(1h));
    rule.phase(0, "eval", {}, at(1h));
    CHECK_FALSE(stands(rule, at(1h + 199min)));
    CHECK(stands(rule, at(1h + 200min)));
  }
  SUBCASE("but not below a floor") {
    rule.opened(1, "saving a checkpoint", at(10s));
    rule.closed(1, "saving a checkpoint", at(11s));
    rule.opened(1, "saving a checkpoint", at(20s));
    CHECK_FALSE(stands(rule, at(10min + 19s)));
    CHECK(stands(rule, at(10min + 20s)));
  }
  SUBCASE("not before another one has ended") {
    rule.phase(1, "eval", 1min, at(10s));
    rule.opened(0, "saving a checkpoint", at(10s));
    CHECK(rule.progress(at(20min))->kind == NodeProgress::Kind::Excused);
    CHECK(rule.overdue(at(20min)).size() == 1);
  }
}

TEST_CASE("hang rule: where steps are to be expected, the first one of a group may take longer") {
  auto rule = begun(fixed(30s));
  rule.expect_steps();
  CHECK_FALSE(stands(rule, at(149s)));
  CHECK(stands(rule, at(150s)));
  rule.step(0, at(150s));
  CHECK(stands(rule, at(180s)));
  rule.begin(at(200s));
  CHECK_FALSE(stands(rule, at(349s)));
}

TEST_CASE("hang rule: auto is off until the job has shown 20 steps, and its group one") {
  auto rule = begun(kAuto);
  CHECK_FALSE(rule.progress(at(10h)));  // a slow first step
  TimePoint now = at(10h);
  for (int i = 0; i < hangs::PaceLimit::kStepsToLearn - 1; ++i) rule.step(0, now += 1s);
  CHECK_FALSE(rule.progress(now + 1h));
  rule.step(0, now += 1s);
  CHECK_FALSE(stands(rule, now + 599s));
  CHECK(stands(rule, now + 600s));
  rule.begin(now += 1min);
  CHECK_FALSE(rule.progress(now + 1h));  // it loads a checkpoint
  rule.step(0, now += 1h);
  CHECK(stands(rule, now + 600s));
}

TEST_CASE("hang rule: a silent evaluation or compilation between steps is no hang of auto") {
  auto rule = begun(kAuto);
  TimePoint now = at(0s);
  for (int i = 0; i < 40; ++i) rule.step(0, now += 500ms);
  CHECK_FALSE(stands(rule, now + 9min));  // the first one, of which nothing is known
  rule.step(0, now += 9min);
  for (int i = 0; i < 2000; ++i) rule.step(0, now += 500ms);
  CHECK_FALSE(stands(rule, now + 26min));  // the next one may take longer, and be long after
  CHECK(stands(rule, now + 27min));
}

TEST_CASE("hang rule: auto takes ten median steps, or three of the longest") {
  auto rule = begun(kAuto);
  TimePoint now = at(0s);
  for (int i = 0; i < 40; ++i) rule.step(0, now += 20s);
  CHECK(rule.limit() == hangs::PaceLimit::kShortest);
  rule.step(0, now += 300s);
  CHECK(rule.limit() == 900s);
  rule.step(0, now += 2h);
  CHECK(rule.limit() == 2h + 30min);  // a stall of the storage makes it blind for no longer
  for (int i = 0; i < 300; ++i) rule.step(0, now += 20min);
  CHECK(rule.limit() == 200min);
}

TEST_CASE("hang rule: a phase other than train takes its time, and teaches nothing") {
  auto rule = begun(fixed(30s));
  rule.step(0, at(1s));
  rule.phase(0, "eval", {}, at(2s));
  CHECK(rule.progress(at(20min)) == NodeProgress{NodeProgress::Kind::Excused, true});
  rule.phase(1, "eval", {}, at(20min));
  rule.phase(0, "train", {}, at(20min));
  CHECK(rule.progress(at(40min))->kind == NodeProgress::Kind::Excused);
  rule.phase(1, "train", {}, at(40min));
  CHECK_FALSE(stands(rule, at(40min + 29s)));
  CHECK(stands(rule, at(40min + 30s)));

  auto learns = begun(kAuto);
  TimePoint now = at(0s);
  for (int i = 0; i < 30; ++i) learns.step(0, now += 1s);
  learns.phase(0, "eval", {}, now);
  learns.phase(0, "train", {}, now += 1h);
  learns.step(0, now += 1s);
  learns.checkpoint(now += 1h);
  learns.step(0, now += 1s);
  CHECK(learns.limit() == hangs::PaceLimit::kShortest);
}

TEST_CASE("hang rule: time in which a worker is stopped does not count, up to ten limits") {
  auto rule = begun(fixed(40s));
  rule.looked(false, at(10s));
  rule.looked(true, at(20s));
  CHECK(rule.progress(at(6min))->kind == NodeProgress::Kind::Excused);
  rule.looked(true, at(6min));
  SUBCASE("as it goes on") {
    rule.looked(false, at(6min + 10s));
    CHECK_FALSE(stands(rule, at(6min + 39s)));
    CHECK(stands(rule, at(6min + 40s)));  // 10 s before that, and 30 s since
  }
  SUBCASE("as it does not") {
    CHECK(rule.progress(at(419s))->kind == NodeProgress::Kind::Excused);
    rule.looked(true, at(419s));
    CHECK(rule.next_look(at(419s)) == at(420s));
    rule.looked(true, at(420s));
    CHECK_FALSE(stands(rule, at(448s)));
    CHECK(stands(rule, at(449s)));
  }
}

TEST_CASE("hang rule: names without end cost no memory, and the longest limit fits the clock") {
  hangs::Excuses excuses;
  for (int i = 0; i < 1000; ++i) {
    const auto name = std::to_string(i);
    excuses.phase(0, name, {}, at(0s));
    excuses.train(0, at(1s));
    excuses.open(0, name, at(0s));
  }
  excuses.phase(0, "999", {}, at(0s));  // was not learnt
  CHECK(excuses.overdue(at(29min)).size() == hangs::Excuses::kMostOpen);
  auto rule = begun(fixed(Duration::max()));
  rule.expect_steps();
  rule.looked(true, at(1s));
  CHECK(rule.progress(at(1h))->kind == NodeProgress::Kind::Excused);
}

// Batches of facts in any order: what must hold after each of them.
TEST_CASE("hang rule: stands only after a limit without progress, pause or excuse") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    const bool learns = seed % 2 == 0;
    HangRule rule(learns ? kAuto : fixed(std::chrono::seconds(5 + below(100))));
    TimePoint now = at(1s), stopped_since = now,
              quiet_since = now;  // since when nothing has excused it
    bool eval[4] = {}, stopped = false, stepped = false;
    int steps = 0;
    rule.begin(now);
    for (int i = 0; i < 300; ++i) {
      now += std::chrono::milliseconds(below(20) == 0 ? below(200'000) : below(3'000));
      const int rank = below(4), fact = below(10);
      // Judged before the next fact: this is when the agent's alarm would ring.
      const auto progress = rule.progress(now);
      const auto limit = rule.limit();
      const bool held = stopped && (!limit || now - stopped_since < HangRule::kOfStopped * *limit);
      const bool excused = held || std::ranges::any_of(eval, [](bool one) { return one; });
      CAPTURE(seed);
      CAPTURE(i);
      if (progress) CHECK((progress->kind == NodeProgress::Kind::Excused) == excused);
      if (progress && progress->kind == NodeProgress::Kind::Stands) {
        REQUIRE(limit);
        CHECK(now - quiet_since >= *limit);
        if (learns)
          CHECK(
              (steps >= hangs::PaceLimit::kStepsToLearn && *limit >= hangs::PaceLimit::kShortest));
      }
      if (!excused && limit && now - quiet_since >= *limit && !stopped) CHECK(stands(rule, now));
      if (fact < 5) {
        rule.step(rank, now), ++steps, quiet_since = now, stepped = true;
      } else if (fact == 5) {
        eval[rank] = !eval[rank];
        rule.phase(rank, eval[rank] ? "eval" : "train", 100h, now), quiet_since = now;
      } else if (fact == 6) {
        const bool was = std::exchange(stopped, below(3) == 0);
        if (!was) stopped_since = now;
        rule.looked(stopped, now);
        if (was || stopped) rule.checkpoint(now), quiet_since = now;
      } else if (fact == 7) {
        rule.checkpoint(now), quiet_since = now;
      } else if (fact == 8) {
        rule.wrote(now);
        if (!stepped) quiet_since = now;
      } else if (below(10) == 0) {
        rule.begin(now), quiet_since = now, stopped = stepped = false;
        std::ranges::fill(eval, false);
      }
    }
  }
}
