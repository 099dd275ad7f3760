// SPDX-License-Identifier: Apache-2.0
#include "agent/files/run_files.hpp"
#include "support/fake_run.hpp"

#include <doctest/doctest.h>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace elastrun;
using namespace elastrun::agent;

namespace {

rendezvous::RoundReady ready(std::int64_t number) {
  rendezvous::RoundReady push;
  push.round.number = number;
  return push;
}

/// A gate before a file system that answers when a test says so.
struct SlowFiles : test::FakeRun {
  std::vector<std::int64_t> asked;
  std::function<void()> done;
  RoundGate gate{*this, [this](const rendezvous::Round& next, std::function<void()> then) {
                   CHECK_FALSE(done);
                   asked.push_back(next.number);
                   done = std::move(then);
                 }};
  std::string heard;
  void push(rendezvous::Push one) { gate.hear(std::move(one)); }
  void post(Fact fact) override {
    const auto& one = std::get<Pushed>(fact).push;
    if (const auto* round = std::get_if<rendezvous::RoundReady>(&one)) {
      heard += std::to_string(round->round.number);
    } else if (const auto* progress = std::get_if<rendezvous::Progress>(&one)) {
      heard += progress->text;
    } else {
      heard += std::holds_alternative<rendezvous::Restart>(one) ? 'R'
               : std::holds_alternative<rendezvous::Done>(one)  ? 'D'
                                                                : 'L';
    }
  }
  void answer() { std::exchange(done, {})(); }
};

}  // namespace

TEST_CASE("round gate: the end of the job waits for no directories, and its round is never told") {
  for (const bool lost : {false, true}) {
    SlowFiles files;
    files.push(ready(1));
    files.push(rendezvous::Progress{"p"});
    CHECK(files.heard == "");
    lost ? files.push(rendezvous::Lost{}) : files.push(rendezvous::Done{});
    CHECK(files.heard == (lost ? "pL" : "pD"));
    files.answer();
    CHECK(files.heard == (lost ? "pL" : "pD"));
  }
}

TEST_CASE("round gate: a restart of another role waits behind the round, which goes on") {
  SlowFiles files;
  auto round = ready(1);
  files.push(round);
  rendezvous::Restart restart;
  restart.role = "another";
  files.push(restart);
  CHECK(files.heard == "");
  files.answer();
  CHECK(files.heard == "1R");
}

TEST_CASE("round gate: a round that breaks up before it is prepared is dropped for the next one") {
  SlowFiles files;
  files.push(ready(1));
  files.push(rendezvous::Restart{});
  CHECK(files.heard == "R");
  files.push(rendezvous::Progress{"p"});
  SUBCASE("which comes first") {
    files.push(ready(2));
    CHECK(files.asked == std::vector<std::int64_t>{1});
    SUBCASE("and may break up as well") {
      files.push(rendezvous::Restart{});
      files.push(ready(3));
      files.answer();
      CHECK(files.asked == std::vector<std::int64_t>{1, 3});
      files.answer();
      CHECK(files.heard == "RpR3");
      return;
    }
    files.answer();
  }
  SUBCASE("or after the answer") {
    files.answer();
    CHECK(files.heard == "Rp");
    files.push(ready(2));
  }
  CHECK(files.asked == std::vector<std::int64_t>{1, 2});
  CHECK(files.heard == "Rp");
  files.answer();
  files.push(rendezvous::Restart{});
  CHECK(files.heard == "Rp2R");
}

struct Passed : test::FakeRun {
  void post(Fact fact) override { take(std::get<Pushed>(fact).push); }
  std::function<void(const rendezvous::Push&)> take;
};

TEST_CASE("round gate: whatever comes, all passes in order, and no round that is not prepared") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto chance = [&](unsigned of) { return random() % of == 0; };
    std::function<void()> done;
    std::int64_t asked = 0, prepared = 0;
    std::string in, out;
    Passed run;
    RoundGate gate(run, [&](const rendezvous::Round& round, std::function<void()> then) {
      CHECK(round.number == asked + 1);
      asked = round.number;
      CHECK_FALSE(done);  // one at a time
      if (chance(3)) {
        prepared = asked;
        return then();
      }
      done = std::move(then);
    });
    run.take = [&](const rendezvous::Push& one) {
      if (const auto* ready = std::get_if<rendezvous::RoundReady>(&one)) {
        CHECK(ready->round.number == prepared);
        out += "r";
      } else {
        out += std::get<rendezvous::Progress>(one).text;
      }
    };
    std::int64_t rounds = 0;
    for (int step = 0; step < 60; ++step) {
      if (done && chance(3)) {
        prepared = asked;
        std::exchange(done, {})();
      } else if (chance(2)) {
        rendezvous::RoundReady ready;
        ready.round.number = ++rounds;
        in += "r";
        gate.hear(ready);
      } else {
        const std::string text(1, static_cast<char>('a' + random() % 10));
        in += text;
        gate.hear(rendezvous::Progress{text});
      }
      CHECK(in.starts_with(out));
      CHECK((done || in == out));
    }
    while (done) {
      prepared = asked;
      std::exchange(done, {})();
    }
    CHECK(in == out);
  }
}
