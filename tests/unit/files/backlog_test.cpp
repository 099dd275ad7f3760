// SPDX-License-Identifier: Apache-2.0
#include "files/appended_file.hpp"

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
    std::string in, out;
    Backlog::Piece writing;
    bool owes_word = false;
    char next = 'a';
    for (int step = 0; step < 400; ++step) {
      if (upto(2) != 0) {
        std::string piece(upto(900), next);
        next = next == 'z' ? 'a' : static_cast<char>(next + 1);
        const bool must_fit = backlog.size() + piece.size() <= kMost;
        const auto shared = std::make_shared<const std::string>(piece);
        const auto taken = upto(1) == 0 ? backlog.add(piece) : backlog.add(shared);
        CHECK((!must_fit || taken == piece.size()));
        in += piece.substr(0, taken);
        if (backlog.full()) owes_word = true;
      } else if (!writing) {
        writing = backlog.take();
        CHECK((writing != nullptr || backlog.size() == 0));
      } else {
        out += *std::exchange(writing, nullptr);
        // Who was told that it is full hears when there is room, and only then.
        const bool room = backlog.done();
        CHECK(room == (owes_word && backlog.size() <= kFull / 2));
        if (room) owes_word = false;
      }
      REQUIRE(backlog.size() <= kMost);
      REQUIRE(backlog.size() == in.size() - out.size());
    }
    if (writing) out += *writing;
    while (const auto piece = backlog.take()) out += *piece;
    CHECK(out == in);
  }
}

TEST_CASE("backlog: a large buffer is not copied, and nothing is appended to it") {
  Backlog backlog(Backlog::kPiece, 4 * Backlog::kPiece);
  const auto large = std::make_shared<const std::string>(Backlog::kPiece, 'l');
  const auto small = std::make_shared<const std::string>(100, 's');
  CHECK(backlog.add("before") == 6);
  CHECK(backlog.add(large) == large->size());
  CHECK(backlog.add(small) == 100);
  CHECK(backlog.add("after") == 5);
  CHECK(*backlog.take() == "before");
  CHECK(backlog.take() == large);
  CHECK(*backlog.take() == *small + "after");
  CHECK(backlog.take() == nullptr);
}
