// SPDX-License-Identifier: Apache-2.0
#include "logs/pump.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::logs;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{100s};

}  // namespace

TEST_CASE("tail: the last bytes stay, whatever the size of the pieces") {
  Tail tail(10);
  for (char c = 'a'; c <= 'z'; ++c) tail.add(std::string(3, c), kStart);
  CHECK(tail.text().ends_with("xxxyyyzzz"));
  CHECK(tail.text().size() >= 10);
  CHECK(tail.text().size() <= 20);
  tail.add(std::string(100, '-') + "end", kStart);
  CHECK(tail.text().ends_with("-------end"));
  CHECK(tail.text().size() <= 20);
}

TEST_CASE("tail: it is known whether anything was forgotten") {
  Tail tail(10);
  CHECK(tail.is_whole());
  tail.add(std::string(15, 'a'), kStart);
  CHECK_FALSE(tail.is_whole());
  Tail slow(10);
  for (int i = 0; i < 20; ++i) slow.add("a", kStart);
  CHECK(slow.is_whole());
  slow.add("a", kStart);
  CHECK_FALSE(slow.is_whole());
}

TEST_CASE("tail: the last occurrence of a text has the time of its piece") {
  Tail tail(1000);
  CHECK_FALSE(tail.seen_at("error"));
  tail.add("error one\n", kStart);
  tail.add("an err", kStart + 1s);
  CHECK(tail.seen_at("error") == kStart);
  tail.add("or two\n", kStart + 2s);
  CHECK_MESSAGE(tail.seen_at("error") == kStart + 1s, "when it began");
  tail.add("more\n", kStart + 3s);
  CHECK(tail.seen_at("error") == kStart + 1s);
  CHECK(tail.seen_at("more") == kStart + 3s);
}

TEST_CASE("tail: what has left the kept bytes, or came too many pieces ago, has no time") {
  Tail tail(100);
  tail.add("error", kStart);
  for (int i = 0; i < 90; ++i) tail.add("...", kStart + 1s);
  CHECK_FALSE(tail.seen_at("error"));
  Tail pieces(10'000);
  pieces.add("error", kStart);
  for (int i = 0; i < 200; ++i) pieces.add(".", kStart + 1s);
  CHECK(pieces.seen_at("error") == kStart);
  for (int i = 0; i < 2000; ++i) pieces.add(".", kStart + 1s);
  CHECK_FALSE(pieces.seen_at("error"));
}
