// SPDX-License-Identifier: Apache-2.0
#include "files/backlog.hpp"

#include <doctest/doctest.h>
#include <random>

using elastrun::files::Backlog;

TEST_CASE("backlog: what is taken comes out in order, once, and never more than allowed waits") {
  constexpr std::size_t kFull = 1000, kMost = 5000;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto upto = [&](std::size_t most) {
      return std::uniform_int_distribution<std::size_t>(0, most)(random);
    };
    Backlog backlog(kFull, kMost);
    std::string in, out, buffer;
    bool writing = false, owes_word = false;
    char next = 'a';
    for (int step = 0; step < 400; ++step) {
      if (upto(2) != 0) {
        std::string piece(upto(900), next);
        next = next == 'z' ? 'a' : static_cast<char>(next + 1);
        const bool must_fit = backlog.size() + piece.size() <= kMost;
        const auto taken = backlog.add(piece);
        CHECK((!must_fit || taken == piece.size()));
        in += piece.substr(0, taken);
        if (backlog.full()) owes_word = true;
      } else if (!writing) {
        backlog.take(buffer);
        writing = true;
      } else {
        out += buffer;
        writing = false;
        // Who was told that it is full hears when there is room, and only then.
        const bool room = backlog.done();
        CHECK(room == (owes_word && backlog.size() <= kFull / 2));
        if (room) owes_word = false;
      }
      REQUIRE(backlog.size() <= kMost);
      REQUIRE(backlog.size() == in.size() - out.size());
    }
    if (writing) out += buffer;
    backlog.take(buffer);
    CHECK(out + buffer == in);
  }
}
