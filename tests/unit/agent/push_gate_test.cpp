// SPDX-License-Identifier: Apache-2.0
#include "agent/push_gate.hpp"

#include <doctest/doctest.h>
#include <random>
#include <string>
#include <utility>

using namespace elastrun;
using namespace elastrun::agent;

TEST_CASE("push gate: whatever comes, all passes in order, and no round that is not prepared") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto chance = [&](unsigned of) { return random() % of == 0; };
    std::function<void()> done;
    std::int64_t asked = 0, prepared = 0;
    PushGate gate([&](const rendezvous::Round& round, std::function<void()> then) {
      CHECK(round.number == asked + 1);
      asked = round.number;
      CHECK_FALSE(done);  // one at a time
      if (chance(3)) {
        prepared = asked;
        return then();
      }
      done = std::move(then);
    });
    std::string in, out;
    const auto push = gate.before([&](rendezvous::Push one) {
      if (const auto* ready = std::get_if<rendezvous::RoundReady>(&one)) {
        CHECK(ready->round.number == prepared);
        out += "r";
      } else {
        out += std::get<rendezvous::Progress>(one).text;
      }
    });
    std::int64_t rounds = 0;
    for (int step = 0; step < 60; ++step) {
      if (done && chance(3)) {
        prepared = asked;
        std::exchange(done, {})();
      } else if (chance(2)) {
        rendezvous::RoundReady ready;
        ready.round.number = ++rounds;
        in += "r";
        push(ready);
      } else {
        const std::string text(1, static_cast<char>('a' + random() % 10));
        in += text;
        push(rendezvous::Progress{text});
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
