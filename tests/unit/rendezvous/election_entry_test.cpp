// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/election/election.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;

TEST_CASE("election entry: a note of a job that failed with any words is understood") {
  RecordedWorld recorded{{{1, 3}, 2, "10.0.0.1", 29500}, "me", "here", Done{true, {}}};
  for (int i = 0; i < 400; ++i) recorded.verdict->cause.text += "\xE2\x82\xAC";
  recorded.verdict->cause.text += "\xFF";
  const auto read = decode_record(encode_record(recorded));
  REQUIRE(read.has_value());
  CHECK(read->world == recorded.world);
  REQUIRE(read->verdict.has_value());
  CHECK(recorded.verdict->cause.text.starts_with(read->verdict->cause.text));
}

TEST_CASE("election entry: a place and a world come back as they were written") {
  const auto place = decode_entry(encode_entry({"10.0.0.1", 29500, "n", 41}));
  REQUIRE(place.has_value());
  CHECK(place->address == "10.0.0.1");
  CHECK(place->above == 41);
  CHECK(decode_entry(R"({"address":"a","port":1,"above":-3})")->above == 0);
  CHECK(decode_entry(R"({"address":"a","port":1,"above":9223372036854775807})")->above ==
        kHighestEpoch - 1);
  CHECK(place->port == 29500);

  const auto recorded =
      decode_record(encode_record({{{3, 7}, 4, "10.0.0.2", 41000}, "me", "here"}));
  REQUIRE(recorded.has_value());
  CHECK(recorded->world == WorldRecord{{3, 7}, 4, "10.0.0.2", 41000});
  CHECK(recorded->by == "me");
  CHECK(recorded->network == "here");
  CHECK(!recorded->verdict);
  CHECK(recorded->leavers.count == 0);
  const auto older = decode_record(R"({"round":7})");
  CHECK(older->world.id == WorldId{0, 7});
  CHECK(!older->world.local);
  CHECK(older->world.members.empty());
  CHECK(decode_record(R"({"round":7,"names":[1,"a",{}]})")->world.members.size() == 1);

  const WorldRecord world{{3, 7}, 4, "10.0.0.2", 41000, std::chrono::seconds(71), true, {"a", "b"}};
  CHECK(decode_record(encode_record({world, "me", "here"}))->world == world);

  RecordedWorld left{{{3, 7}, 4, "10.0.0.2", 41000}, "me", "here"};
  left.leavers = {2, TimePoint(std::chrono::microseconds(29'500'001))};
  const auto leaving = decode_record(encode_record(left));
  CHECK(leaving->leavers.count == 2);
  CHECK(leaving->leavers.until == TimePoint(std::chrono::milliseconds(29'501)));

  Done failed{true, {.kind = Cause::Kind::WorkerFailed, .text = "rank 3 failed"}};
  const auto over =
      decode_record(encode_record({{{3, 7}, 4, "10.0.0.2", 41000}, "me", "here", failed}));
  REQUIRE(over->verdict.has_value());
  CHECK(over->verdict->failed);
  CHECK(over->verdict->cause.text == "rank 3 failed");
  CHECK(!decode_record(encode_record({{}, "me", "here", Done{}}))->verdict->failed);
}

TEST_CASE("election entry: who comes after a timeout ends by one, and by nothing worse") {
  const auto kind_after = [](Cause::Kind kind) {
    const Done failed{true, {.kind = kind, .text = "over"}};
    return decode_record(encode_record({{}, "me", "here", failed}))->verdict->cause.kind;
  };
  CHECK(kind_after(Cause::Kind::Timeout) == Cause::Kind::Timeout);
  CHECK(kind_after(Cause::Kind::Closed) == Cause::Kind::Closed);
  // Its rank and its node are not recorded.
  CHECK(kind_after(Cause::Kind::WorkerFailed) == Cause::Kind::Closed);
  for (const char* text : {R"({"over":"failed"})", R"({"over":"failed","kind":"odd"})"}) {
    CHECK(decode_record(text)->verdict->cause.kind == Cause::Kind::Closed);
  }
}

TEST_CASE("election entry: a claim of the highest epoch leaves room for the leaders after it") {
  Election leader(std::chrono::seconds(10));
  leader.hear_of(kHighestEpoch);
  const auto entry = decode_entry(encode_entry({"a", 1, "n", leader.highest_known()}));
  REQUIRE(entry.has_value());
  const std::int64_t epoch = entry->above + 1;
  CHECK(epoch >= leader.highest_known());
  Election member(std::chrono::seconds(10));
  member.hear_of(epoch);
  CHECK(member.highest_known() == epoch);
}

TEST_CASE("election entry: what somebody else has written is not believed") {
  CHECK(!decode_entry("").has_value());
  CHECK(!decode_entry(R"({"address":"a","port":70000})").has_value());
  CHECK(!decode_entry(R"({"port":1})").has_value());
  CHECK(!decode_entry(R"({"address":"a\u001b[2J","port":1})").has_value());
  CHECK(decode_record(R"({"over":"failed","text":"a\u001b[2J\nb"})")->verdict->cause.text ==
        "a[2Jb");
  CHECK(!decode_record("").has_value());
  // There is a record, so there may be a world.
  for (const char* text : {"{", "7", R"({"round":-3,"nodes":-1,"port":99999,"address":5})"}) {
    CAPTURE(text);
    const auto recorded = decode_record(text);
    REQUIRE(recorded.has_value());
    CHECK(recorded->world.id.round == 0);
    CHECK(recorded->world.nodes == 0);
    CHECK(recorded->world.address.empty());
    CHECK(recorded->leavers.count == 0);
  }
  const auto long_ago = decode_record(R"({"leavers":-1,"leaving_ms":9223372036854775807})");
  CHECK(long_ago->leavers.count == 0);
  CHECK(long_ago->leavers.until == TimePoint(kLongestGrace));
}
