// SPDX-License-Identifier: Apache-2.0
#include "store/table.hpp"

#include <doctest/doctest.h>
#include <limits>
#include <random>

using namespace elastrun::store;
using Peers = std::vector<Peer>;
using KeyTexts = std::vector<std::string_view>;

/// Who has been told that a wait or barrier ended since this was last asked, in order.
static Peers woken(Table& table) {
  Peers peers;
  for (const auto& notice : table.notices()) {
    if (!notice.change) peers.push_back(notice.peer);
  }
  table.clear_notices();
  return peers;
}

static std::string value_of(const Table& table, std::string_view key) {
  const Value* value = table.get(key);
  return value != nullptr ? std::string(value->view()) : "(none)";
}

static bool wait(Table& table, Peer peer, KeyTexts keys) {
  return table.wait(peer, keys);
}

TEST_CASE("table: append creates, extends, and leaves bytes that are on their way alone") {
  Table table;
  table.append("a", "");
  CHECK(table.present("a"));
  const std::string large(kShareFrom, 'x');
  table.append("a", large);
  const auto shared = table.get("a")->shared();
  REQUIRE(shared);
  table.append("a", "tail");
  CHECK(*shared == large);
  CHECK(value_of(table, "a") == large + "tail");
  table.set("a", "small");
  CHECK(!table.get("a")->shared());
  CHECK(*shared == large);
}

TEST_CASE("table: add reads numbers as torch does") {
  Table table;
  CHECK(table.add("n", 5) == 5);
  CHECK(table.add("n", -7) == -2);
  CHECK(value_of(table, "n") == "-2");
  const std::vector<std::pair<std::string, std::optional<std::int64_t>>> cases = {
      {"41", 42},
      {"12abc", 13},
      {" \t\n7", 8},
      {"+3", 4},
      {"0x10", 1},
      {"-5", -4},
      {"", {}},
      {"abc", {}},
      {"+-5", {}},
      {"- 5", {}},
      {"9223372036854775808", {}},
      {"-", {}},
      {"+", {}},
      {"--1", {}},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::min()}};
  for (const auto& [text, sum] : cases) {
    CAPTURE(text);
    table.set("n", text);
    CHECK(table.add("n", 1) == sum);
    if (!sum) CHECK(value_of(table, "n") == text);
  }
}

TEST_CASE("table: a wait ends when each of its keys has been there at some time") {
  Table table;
  table.set("a", "");
  CHECK(wait(table, 1, {"a", "a"}));
  CHECK(wait(table, 1, {}));
  CHECK(!wait(table, 1, {"a", "b", "c", "b"}));
  table.set("b", "");
  table.erase("b");
  CHECK(woken(table).empty());
  table.set("c", "");
  CHECK(woken(table) == Peers{1});
  table.set("b", "");
  CHECK(woken(table).empty());
}

TEST_CASE(
    "table: waiters are woken in the order they came, two waits of one peer each for itself") {
  Table table;
  for (const Peer peer : {3u, 1u, 2u}) wait(table, peer, {"k"});
  wait(table, 3, {"other"});
  table.set("k", "");
  CHECK(woken(table) == Peers{3, 1, 2});
  table.set("other", "");
  CHECK(woken(table) == Peers{3});
}

TEST_CASE("barrier: nobody passes in place of one that cancelled or left") {
  Table table;
  table.arrive(1, "b", 2);
  table.cancel(1);
  CHECK(table.arrive(2, "b", 2) == Table::Arrival::Waiting);
  table.forget(2);
  CHECK(value_of(table, "b") == "0");
  CHECK(table.arrive(3, "b", 2) == Table::Arrival::Waiting);
  CHECK(table.arrive(1, "b", 2) == Table::Arrival::Complete);
  CHECK(woken(table) == Peers{3});
}

TEST_CASE("barrier: complete for one it is complete for all, whatever size each named") {
  Table table;
  table.arrive(1, "b", 3);
  CHECK(table.arrive(2, "b", 2) == Table::Arrival::Complete);
  CHECK(woken(table) == Peers{1});
  CHECK(table.arrive(3, "b", 2) == Table::Arrival::Waiting);  // it starts anew
  table.arrive(4, "b", 9);
  CHECK(woken(table).empty());
  CHECK(table.arrive(5, "b", 3) == Table::Arrival::Complete);
  CHECK(woken(table) == Peers{3, 4});
  table.arrive(6, "b", 9);
  CHECK(table.arrive(7, "b", 0) == Table::Arrival::Complete);
  CHECK(woken(table) == Peers{6});
}

TEST_CASE("barrier: a cancelled arrival takes nothing from a number that was set meanwhile") {
  Table table;
  table.arrive(1, "b", 9);
  table.set("b", "4");
  table.cancel(1);
  CHECK(value_of(table, "b") == "4");
  table.arrive(1, "b", 9);
  table.erase("b");
  table.cancel(1);
  CHECK(!table.present("b"));
}

TEST_CASE("watch: every change of the key is told, with the value before and after") {
  Table table;
  table.watch(4, "k");
  table.watch(4, "k");
  table.set("k", "1");
  table.add("k", 1);
  table.compare_set("k", "2", "3");
  table.compare_set("k", "2", "4");
  table.append("k", "!");
  table.erase("k");
  std::vector<Change> changes;
  for (const auto& notice : table.notices()) changes.push_back(*notice.change);
  CHECK(changes == std::vector<Change>{{ChangeKind::Created, "k", "", "1"},
                                       {ChangeKind::Updated, "k", "1", "2"},
                                       {ChangeKind::Updated, "k", "2", "3"},
                                       {ChangeKind::Updated, "k", "3", "3!"},
                                       {ChangeKind::Deleted, "k", "3!", ""}});
  table.clear_notices();
  table.forget(4);
  table.set("k", "1");
  CHECK(table.notices().empty());
}

namespace {

/// Plays random requests of a few peers on a few keys and counts what each still waits for.
struct RandomPlay {
  explicit RandomPlay(unsigned seed) : random(seed) {}

  void settle() {
    for (const Peer peer : woken(table)) REQUIRE(--pending[peer] >= 0);
  }
  void leave(Peer peer, bool for_good) {
    settle();
    for_good ? table.forget(peer) : table.cancel(peer);
    pending[peer] = 0;
  }
  void step() {
    const auto peer = static_cast<Peer>(random() % pending.size());
    const auto key = names[random() % names.size()];
    switch (random() % 8) {
      case 0:
        pending[peer] += !wait(table, peer, {key, names[random() % names.size()]});
        break;
      case 1:
        pending[peer] += table.arrive(peer, key, 3) == Table::Arrival::Waiting;
        break;
      case 2:
        table.erase(key);
        break;
      case 3:
        table.add(key, 1);
        break;
      case 4:
        table.queue_push(key, "x");
        break;
      case 5:
        table.queue_pop(key);
        break;
      case 6:
        leave(peer, false);
        break;
      default:
        leave(peer, true);
        break;
    }
    settle();
  }

  std::mt19937 random;
  Table table;
  std::vector<int> pending = std::vector<int>(8, 0);
  const KeyTexts names = {"a", "b", "c", "d"};
};

}  // namespace

TEST_CASE("table: over random requests each wait ends once at most, and all end in the end") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    RandomPlay play(seed);
    for (int step = 0; step < 300; ++step) play.step();
    for (const auto key : play.names) play.table.set(key, "1000");
    play.settle();
    for (const int left : play.pending) CHECK(left == 0);
  }
}
