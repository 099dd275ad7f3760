// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/restart_rule.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>
#include <random>
#include <string>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;
using Kind = Cause::Kind;
using spec::CauseClass;

namespace {

Cause failure(CauseClass what = CauseClass::Error, std::int64_t step = -1,
              std::string fingerprint = "ValueError@train.py:7") {
  Cause cause{.kind = Kind::WorkerFailed, .exit_code = 1};
  cause.what = what;
  cause.step = step;
  cause.fingerprint = std::move(fingerprint);
  return cause;
}

RestartSettings automatic(int max_restarts, const char* rules = "") {
  return {max_restarts, spec::RestartPolicy::Auto, spec::parse_restart_rules(rules).value(), 7};
}

RestartSettings ruled(int max_restarts, const char* rules) {
  auto settings = automatic(max_restarts, rules);
  settings.policy = spec::RestartPolicy::Torchrun;
  return settings;
}

TimePoint at(Duration time) {
  return TimePoint(1h) + time;
}

}  // namespace

TEST_CASE("restart rule: changes of membership cost nothing, also without a budget") {
  RestartRule rule({.max_restarts = 0});
  for (const auto kind : {Kind::NodeLost, Kind::NodeLeft, Kind::NodeJoined}) {
    const auto decision = rule.decide({.kind = kind});
    CHECK(decision.restarts);
    CHECK_FALSE(decision.attempt_spent);
    CHECK(decision.restarts_left == 0);
  }
  CHECK(rule.spent() == 0);
}

TEST_CASE("restart rule: what was spent under another coordinator is not given back") {
  RestartRule rule({.max_restarts = 3}, 1);
  rule.learn(2);
  rule.learn(0);
  CHECK(rule.spent() == 2);
  CHECK(rule.decide({.kind = Kind::WorkerFailed}).restarts_left == 0);
}

TEST_CASE("restart rule: torchrun's policy counts whatever the cause says of itself") {
  RestartRule rule(100);
  for (int i = 0; i < 100; ++i)
    CHECK(rule.decide(failure(CauseClass::Error, 875), at(1s)).restarts);
  CHECK_FALSE(rule.decide(failure(CauseClass::Error, 875), at(1s)).restarts);
}

TEST_CASE("auto: of two equal failures within 5 s a third one decides, after a pause") {
  RestartRule rule(automatic(10));
  CHECK(rule.decide(failure(CauseClass::Error, 875), at(0s)).delay == 0s);
  const auto again = rule.decide(failure(CauseClass::Error, 875), at(200ms));
  CHECK(again.restarts);
  CHECK(again.delay == RestartRule::kApart);
  CHECK(again.rule ==
        "auto: 2 of 10 restarts, twice the same ValueError@train.py:7 after step 875 within 5.0 s: "
        "once more after that time");
  CHECK(rule.decide(failure(CauseClass::Error, 875), at(5400ms)).hopeless);
  // A budget that ends before is no verdict on the program.
  RestartRule brief(automatic(1));
  CHECK(brief.decide(failure(CauseClass::Error, 875), at(0s)).restarts);
  const auto end = brief.decide(failure(CauseClass::Error, 875), at(200ms));
  CHECK_FALSE(end.restarts);
  CHECK_FALSE(end.hopeless);
}

TEST_CASE("auto: what something outside can explain is no verdict, at whatever step and time") {
  RestartRule rule(automatic(5));
  TimePoint now = at(0s);
  for (int i = 0; i < 5; ++i) {
    const auto decision =
        rule.decide(failure(CauseClass::External, 875, "OSError@train.py:7"), now);
    REQUIRE(decision.restarts);
    now += decision.delay + 10ms;
  }
  CHECK(now - at(0s) > 11s);  // so long an outage may last
  const auto end = rule.decide(failure(CauseClass::External, 875, "OSError@train.py:7"), now);
  CHECK_FALSE(end.restarts);
  CHECK_FALSE(end.hopeless);
  // Nor does one count for an error of the program at the same place.
  RestartRule mixed(automatic(5));
  CHECK(mixed.decide(failure(CauseClass::External, 5), at(0s)).restarts);
  CHECK(mixed.decide(failure(CauseClass::Error, 5), at(9s)).restarts);
  CHECK(mixed.decide(failure(CauseClass::Error, 5), at(18s)).hopeless);
}

TEST_CASE("auto: without steps, with another error or of a device nothing is deterministic") {
  RestartRule rule(automatic(10));
  CHECK(rule.decide(failure(), at(1s)).restarts);
  CHECK(rule.decide(failure(), at(2s)).restarts);
  CHECK(rule.decide(failure(CauseClass::Error, 5), at(3s)).restarts);
  CHECK(rule.decide(failure(CauseClass::Error, 5, "KeyError@a.py:1"), at(4s)).restarts);
  CHECK(rule.decide(failure(CauseClass::Gpu, 9), at(15s)).restarts);
  CHECK(rule.decide(failure(CauseClass::Gpu, 9), at(26s)).restarts);
}

TEST_CASE("auto: the first restart is at once, the next ones wait 1 s, 2 s, .. 60 s, with jitter") {
  RestartRule rule(automatic(20));
  std::vector<double> delays;
  for (int i = 0; i < 12; ++i) {
    delays.push_back(to_seconds(rule.decide(failure(), at(i * 1min)).delay));
  }
  CHECK(delays[0] == 0);
  for (int i = 1; i < 6; ++i) {
    const double base = 1 << (i - 1);
    CHECK(delays[static_cast<std::size_t>(i)] >= base * 0.75);
    CHECK(delays[static_cast<std::size_t>(i)] <= base * 1.25);
  }
  for (int i = 8; i < 12; ++i) CHECK(delays[static_cast<std::size_t>(i)] >= 45);
  CHECK(*std::ranges::max_element(delays) <= 60);
}

TEST_CASE("auto: a worker's restarts that a rule gives for nothing are delayed, too") {
  RestartRule rule(automatic(1, "error:free preempted:free"));
  CHECK(rule.decide(failure(), at(0s)).delay == 0s);
  CHECK(rule.decide(failure(), at(1s)).delay > 500ms);
  CHECK(rule.decide({.kind = Kind::NodeLeft}, at(2s)).delay == 0s);
  CHECK(rule.decide(failure(), at(3s)).restarts);
}

TEST_CASE("auto: a new checkpoint refills the budget and ends the delays; an old one does not") {
  RestartRule rule(automatic(2));
  CHECK(rule.decide(failure(), at(1s)).restarts_left == 1);
  CHECK(rule.decide(failure(), at(2s)).delay > 0s);
  rule.saved(100);
  const auto next = rule.decide(failure(), at(3s));
  CHECK(next.restarts_left == 1);
  CHECK(rule.left() == 1);
  CHECK(next.delay == 0s);
  rule.saved(100);
  CHECK(rule.decide(failure(), at(4s)).restarts);
  CHECK_FALSE(rule.decide(failure(), at(5s)).restarts);
  CHECK(rule.spent() == 4);  // TORCHELASTIC_RESTART_COUNT never goes back
  rule.saved(200);
  CHECK(rule.left() == 2);
}

TEST_CASE("restart rules: what a rule grants is no part of the budget that is told to be left") {
  RestartRule rule(ruled(1, "oom:3 gpu:free"));
  for (int i = 0; i < 3; ++i)
    CHECK(rule.decide(failure(CauseClass::Oom), at(0s)).restarts_left == 1);
  CHECK(rule.decide(failure(CauseClass::Gpu), at(0s)).restarts_left == 1);
  CHECK(rule.spent() == 3);
  CHECK(rule.left() == 1);
}

TEST_CASE("restart memory: a checkpoint that others have not heard of has refilled the budget") {
  RestartRule first(automatic(2));
  (void)first.decide(failure(CauseClass::External, 5), at(0s));
  const auto before = first.memory(at(0s));
  first.saved(31);
  RestartRule next(automatic(2));
  next.learn(before, at(1s));
  CHECK(next.left() == 1);
  next.learn(first.memory(at(0s)), at(1s));
  CHECK(next.left() == 2);
}

TEST_CASE("auto: nodes that go spend nothing of the budget of errors") {
  RestartRule rule(automatic(1));
  for (int i = 0; i < 100; ++i) {
    CHECK(rule.decide({.kind = Kind::NodeLost}, at(i * 1s), "n" + std::to_string(i)).restarts);
    CHECK(rule.decide({.kind = Kind::NodeLeft}, at(i * 1s), "n" + std::to_string(i)).restarts);
  }
  CHECK(rule.decide(failure(), at(200s)).restarts);
}

TEST_CASE("auto: a node blamed twice in 24 hours is left out, until a day has passed") {
  RestartRule rule(automatic(10));
  CHECK_FALSE(rule.decide(failure(CauseClass::Gpu), at(0s), "n1").excluded);
  CHECK_FALSE(rule.decide(failure(CauseClass::Error), at(1h), "n1").excluded);
  CHECK_FALSE(rule.is_excluded("n1", at(1h)));
  CHECK(rule.decide(failure(CauseClass::Gpu), at(23h), "n1").excluded);
  CHECK(rule.is_excluded("n1", at(23h)));
  CHECK_FALSE(rule.is_excluded("n2", at(23h)));
  CHECK_FALSE(rule.is_excluded("n1", at(25h)));
}

TEST_CASE("auto: a crash at the same step is the machine's until it comes on another one") {
  RestartRule rule(automatic(10));
  const auto crash = failure(CauseClass::Crash, 7, "SIGSEGV");
  CHECK(rule.decide(crash, at(0s), "n1").restarts);
  CHECK(rule.decide(crash, at(9s), "n1").excluded);
  CHECK(rule.decide(crash, at(18s), "n2").hopeless);
  RestartRule one_machine(automatic(10));
  CHECK(one_machine.decide(crash, at(0s)).restarts);
  CHECK(one_machine.decide(crash, at(1s)).restarts);
  CHECK(one_machine.decide(crash, at(9s)).hopeless);
}

TEST_CASE("auto: a node that failed its check is left out at once") {
  RestartRule rule(automatic(10));
  rule.blame("n1", "no space left on device", at(0s), 2);
  CHECK(rule.is_excluded("n1", at(1s)));
}

TEST_CASE("restart rules: the first that matches decides") {
  RestartRule rule(ruled(5, "exit=93:fail oom:1 gpu:2/1h,exclude preempted:free any:3"));
  auto given_up = failure();
  given_up.exit_code = 93;
  CHECK(rule.decide(failure(CauseClass::Oom), at(0s)).restarts);
  const auto second = rule.decide(failure(CauseClass::Oom), at(1s));
  CHECK_FALSE(second.restarts);
  CHECK_FALSE(second.hopeless);
  CHECK(second.rule == "--restart-rule oom:1 (1 spent)");
  const auto stop = rule.decide(given_up, at(2s));
  CHECK_FALSE(stop.restarts);
  CHECK(stop.hopeless);
  CHECK(rule.decide({.kind = Kind::NodeLeft}, at(3s)).rule == "--restart-rule preempted:free");
  for (int i = 0; i < 3; ++i) CHECK(rule.decide(failure(), at(4s)).restarts);
  CHECK_FALSE(rule.decide(failure(), at(5s)).restarts);
}

TEST_CASE("restart rules: a number in a time refills by itself, and a node is left out at once") {
  RestartRule rule(ruled(0, "gpu:2/1h,exclude"));
  CHECK(rule.decide(failure(CauseClass::Gpu), at(0s), "n1").excluded);
  CHECK(rule.is_excluded("n1", at(1s)));
  CHECK(rule.decide(failure(CauseClass::Gpu), at(30min), "n2").restarts);
  CHECK_FALSE(rule.decide(failure(CauseClass::Gpu), at(59min), "n3").restarts);
  CHECK(rule.decide(failure(CauseClass::Gpu), at(61min), "n4").restarts);
}

TEST_CASE("restart rules: by exception, signal and role; what no rule is about counts as before") {
  RestartRule rule(ruled(1, "exception=KeyError:free signal=SEGV:fail role=actor:free"));
  CHECK_FALSE(
      rule.decide(failure(CauseClass::Error, 1, "my.KeyError@a.py:3"), at(0s)).attempt_spent);
  auto crash = failure(CauseClass::Crash, 1, "SIGSEGV");
  CHECK(rule.decide(failure(), at(0s), "n", "actor").restarts);
  crash.exit_code = -11;
  CHECK(rule.decide(crash, at(0s)).hopeless);
  CHECK(rule.decide(failure(), at(0s)).restarts);
  CHECK_FALSE(rule.decide(failure(), at(0s)).restarts);
}

TEST_CASE("restart rules: what is wrong with one is said with what is allowed") {
  for (const char* wrong :
       {"oom", "oom:", "memory:1", "crash+gpu:1", "oom+any:1", "exit=x:1", "exit=0:1", "oom:1/0h",
        "oom:-1", "oom:1,2", "oom:fail,free", "oom:fail,exclude", "oom:1/9y", ":1", "signal=NONE:1",
        "exit=300:1", "oom:1001"}) {
    const auto rules = spec::parse_restart_rules(wrong);
    REQUIRE_FALSE_MESSAGE(rules.has_value(), wrong);
    CHECK(rules.error().code == Code::Usage);
    CHECK(rules.error().text.starts_with("--restart-rule '"));
  }
  std::string longest = "exception=:1";
  longest.insert(10, 2000 - longest.size(), 'E');
  CHECK(spec::parse_restart_rules(longest).has_value());
  const auto longer = spec::parse_restart_rules(longest + "0");
  REQUIRE_FALSE(longer.has_value());
  CHECK(longer.error().text == "--restart-rule: 2001 bytes of rules, at most 2000");
  const auto several = spec::parse_restart_rules("gpu:2/1h,exclude,oom:1 any:free").value();
  REQUIRE(several.size() == 3);
  CHECK(several[0].text == "gpu:2/1h,exclude");
  CHECK(several[0].within == Duration(1h));
}

TEST_CASE("restart memory: the next coordinator goes on where the last one stood") {
  RestartRule first(automatic(3));
  first.saved(50);
  (void)first.decide(failure(CauseClass::Error, 60), at(0s), "n1");
  (void)first.decide(failure(CauseClass::Gpu, 61), at(10s), "n1");
  const auto memory = first.memory(at(20s));
  RestartRule next(automatic(3));
  next.learn(memory, at(1000s));
  CHECK(next.memory(at(1000s)) == memory);
  next.learn(memory, at(1000s));  // from each of the other nodes
  CHECK(next.memory(at(1000s)).marks.size() == memory.marks.size());
  CHECK(next.decide(failure(CauseClass::Error, 60), at(1001s)).hopeless);
  CHECK(next.decide(failure(CauseClass::Gpu, 70), at(1001s), "n1").excluded);
  // Older words change nothing.
  next.learn(RestartMemory{}, at(1002s));
  CHECK(next.spent() == 3);
}

TEST_CASE("restart memory: what a rule has allowed is spent for the next coordinator, too") {
  RestartRule first(ruled(0, "exit=7:free oom:1 gpu:2/1h"));
  CHECK(first.decide(failure(CauseClass::Oom, 1), at(0s)).restarts);
  CHECK(first.decide(failure(CauseClass::Gpu, 2), at(0s)).restarts);
  CHECK(first.decide(failure(CauseClass::Gpu, 3), at(30min)).restarts);
  const auto memory = first.memory(at(40min));
  RestartRule next(ruled(0, "exit=7:free oom:1 gpu:2/1h"));
  next.learn(memory, at(50min));
  next.learn(memory, at(50min));  // from each of the other nodes
  CHECK(next.memory(at(50min)) == memory);
  CHECK_FALSE(next.decide(failure(CauseClass::Oom, 4), at(50min)).restarts);
  CHECK_FALSE(next.decide(failure(CauseClass::Gpu, 5), at(50min)).restarts);
  CHECK(next.decide(failure(CauseClass::Gpu, 6), at(71min)).restarts);
  // Of another agent's rules there are fewer.
  RestartRule other(ruled(0, "any:2"));
  other.learn(memory, at(50min));
  CHECK(other.memory(at(50min)).uses.empty());
  // Of thousands the latest ones.
  RestartRule patient(ruled(0, "any:1000"));
  for (int i = 0; i < 100; ++i) (void)patient.decide(failure(CauseClass::Error, i), at(i * 1s));
  const auto latest = patient.memory(at(100s));
  REQUIRE(latest.uses.size() == RestartMemory::kMostUses);
  CHECK(latest.uses.back().age == Duration(64s));
}

TEST_CASE("restart memory: what comes back with joins long after the order to stop is no news") {
  RestartRule rule(automatic(3));
  (void)rule.decide(failure(CauseClass::Gpu, 5), at(0s), "n1");
  KeptMemory kept;  // of each agent
  kept.keep(std::make_shared<const RestartMemory>(rule.memory(at(0s))), at(0s));
  // The groups save for a minute; one agent says what it was told as it was told.
  rule.learn(*kept.at(at(0s)), at(60s));
  rule.learn(*kept.at(at(60s)), at(60s));
  CHECK(rule.memory(at(60s)).marks.size() == 1);
  CHECK_FALSE(rule.is_excluded("n1", at(60s)));
  // A day later it counts no more, also for another coordinator.
  RestartRule next(automatic(3));
  next.learn(*kept.at(at(24h)), at(24h));
  CHECK(next.memory(at(24h)).marks.empty());
  CHECK(next.memory(at(24h)).entries.front().age == Duration(24h));
  CHECK(KeptMemory().at(at(1s)) == nullptr);
}

TEST_CASE("restart memory: a node that came late and is heard first hides nothing of the others'") {
  RestartRule first(automatic(3));
  for (int i = 0; i < 3; ++i) {
    first.saved(10 * i);
    (void)first.decide(failure(CauseClass::Error, 10 * i + 5), at(0s), "n1");
  }
  const auto memory = first.memory(at(0s));
  REQUIRE(memory.used == 1);
  RestartMemory late;  // from --restart-memory
  late.entries = {memory.entries.front()};
  RestartRule next(automatic(3));
  next.learn(first.spent()), next.learn(late, at(1s));
  next.learn(first.spent()), next.learn(memory, at(1s));
  CHECK(next.memory(at(1s)).used == 1);
  CHECK(next.memory(at(1s)).entries.size() == 3);
  // After a decision here the others' are older.
  CHECK(next.decide(failure(CauseClass::Error, 30), at(2s)).restarts);
  next.learn(memory, at(3s));
  CHECK(next.memory(at(3s)).entries.size() == 4);
  CHECK(next.spent() == 4);
}

TEST_CASE(
    "auto: whatever happens in whatever order, the budget holds, memory is bounded and it ends") {
  std::mt19937 random(24);
  const auto pick = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int run = 0; run < 300; ++run) {
    const int budget = pick(6);
    RestartRule rule(automatic(budget));
    int since_checkpoint = 0, spent = 0;
    TimePoint now = at(0s);
    bool ended = false;
    for (int i = 0; i < 2000 && !ended; ++i) {
      now += std::chrono::milliseconds(pick(5'000'000));
      const bool saves = i < 1000 && pick(4) == 0;  // no progress from some time on
      if (saves) rule.saved(i), since_checkpoint = 0;
      Cause cause = failure(static_cast<CauseClass>(pick(10)), pick(1 << 20) - 1,
                            "E" + std::to_string(pick(50)));
      if (pick(3) == 0) cause.kind = pick(2) == 0 ? Kind::NodeLost : Kind::NodeLeft;
      const auto decision = rule.decide(cause, now, "n" + std::to_string(pick(200)));
      if (decision.attempt_spent) ++spent, ++since_checkpoint;
      REQUIRE(since_checkpoint <= budget);
      REQUIRE(rule.spent() == spent);
      REQUIRE(decision.delay <= RestartRule::kLongestDelay);
      REQUIRE((decision.restarts || cause.kind == Kind::WorkerFailed));
      ended = !decision.restarts;
    }
    REQUIRE(ended);
    const auto memory = rule.memory(now);
    REQUIRE(memory.entries.size() <= RestartMemory::kMostEntries);
    REQUIRE(memory.marks.size() <= RestartMemory::kMostMarks);
  }
}
