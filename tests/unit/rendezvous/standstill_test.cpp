// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/standstill.hpp"

#include "core/text.hpp"
#include "rendezvous/wire/messages.hpp"

#include <doctest/doctest.h>
#include <numeric>
#include <random>

namespace elastrun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Kind = hangs::NodeProgress::Kind;

/// A coordinator's side of some nodes with two workers each, which have been started.
struct Nodes {
  Standstill standstill;
  TimePoint now = TimePoint(1h);
  std::vector<std::pair<Peer, Push>> heard;

  explicit Nodes(int count) {
    for (int i = 0; i < count; ++i) {
      Node node{.id = "n" + std::to_string(i), .local_world_size = 2};
      standstill.assigned(peer(i), 1, node, 2 * i);
      standstill.started(peer(i), 1, now);
    }
  }
  static Peer peer(int node) { return static_cast<Peer>(10 + node); }
  void say(int node, Kind kind, bool by_steps = true, std::int64_t round = 1) {
    standstill.says(peer(node), {round, {kind, by_steps}, 30s}, now);
  }
  void answer(int node, bool last = true) {
    hangs::StackGroup group{{2 * node, 2 * node + 1}, {"thread 1 (x, main): running"}};
    standstill.answers(peer(node), {call(), {group}, {}, last}, now);
  }
  void take() {
    for (const auto& [to, push] : standstill.take()) heard.emplace_back(to, *push);
  }
  std::int64_t call() {
    take();
    std::int64_t id = 0;
    for (const auto& [to, push] : heard) {
      if (const auto* order = std::get_if<TakeStacks>(&push)) id = order->id;
    }
    return id;
  }
  /// Who has been asked so far.
  std::size_t asked() {
    take();
    return static_cast<std::size_t>(std::ranges::count_if(
        heard, [](const auto& one) { return std::holds_alternative<TakeStacks>(one.second); }));
  }
  std::vector<std::pair<Peer, StacksReport>> reports() {
    take();
    std::vector<std::pair<Peer, StacksReport>> found;
    for (const auto& [to, push] : heard) {
      if (const auto* report = std::get_if<StacksReport>(&push)) found.emplace_back(to, *report);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("standstill: who is held is known for as long as the round runs, from its own node") {
  Nodes nodes(2);
  const ProgressReport report{1, {Kind::Excused}, 0s, {{1, "stopped by a signal"}, {2, "x"}}};
  nodes.standstill.says(Nodes::peer(0), report, nodes.now);
  CHECK(nodes.standstill.held() == std::map<int, std::string>{{1, "stopped by a signal"}});
  SUBCASE("until the node says otherwise") {
    nodes.say(0, Kind::Moves);
  }
  SUBCASE("until it has gone") {
    nodes.standstill.gone(Nodes::peer(0), nodes.now);
  }
  SUBCASE("until the round has ended") {
    nodes.standstill.broken_up();
  }
  CHECK(nodes.standstill.held().empty());
}

TEST_CASE("standstill: the job hangs when all nodes stand that count steps") {
  Nodes nodes(3);
  nodes.say(0, Kind::Moves);
  nodes.say(1, Kind::Moves, false);  // its workers report no steps: only rank 0 does
  nodes.say(1, Kind::Stands, false);
  CHECK(nodes.asked() == 0);
  nodes.say(0, Kind::Stands);
  CHECK(nodes.asked() == 3);  // also the one that has no opinion
  for (int i = 0; i < 3; ++i) {
    nodes.now += 1s;  // taking stacks lasts
    nodes.answer(i);
  }
  const auto reports = nodes.reports();
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].second.hang);
  CHECK(reports[0].second.standing == 33s);
  REQUIRE(reports[0].second.stacks.groups.size() == 1);
  CHECK(reports[0].second.stacks.groups[0].ranks == std::vector{0, 1, 2, 3, 4, 5});
  CHECK_FALSE(nodes.standstill.deadline());
}

TEST_CASE("standstill: nobody hangs who waits for a node that has not started its workers") {
  Nodes nodes(2);
  const Node late{.id = "n2", .local_world_size = 2};
  nodes.standstill.assigned(Nodes::peer(2), 1, late, 4);
  for (int i = 0; i < 2; ++i) nodes.say(i, Kind::Stands, false);
  CHECK(nodes.asked() == 0);
  CHECK_FALSE(nodes.standstill.deadline());
  SUBCASE("it starts them, and has the time that the others had") {
    nodes.say(2, Kind::Moves, false);
    nodes.standstill.started(Nodes::peer(2), 1, nodes.now);
    CHECK(nodes.asked() == 0);
    nodes.say(2, Kind::Stands, false);
    CHECK(nodes.asked() == 3);
  }
  SUBCASE("or starts them, and has no opinion, as one of an earlier release") {
    nodes.standstill.started(Nodes::peer(2), 0, nodes.now);  // that was in the last round
    CHECK(nodes.asked() == 0);
    nodes.standstill.started(Nodes::peer(2), 1, nodes.now);
    nodes.standstill.started(Nodes::peer(2), 1, nodes.now);
    CHECK(nodes.asked() == 3);
  }
  SUBCASE("or goes") {
    nodes.standstill.gone(Nodes::peer(2), nodes.now);
    CHECK(nodes.asked() == 2);
  }
  SUBCASE("or does not: the next round begins anew") {
    for (int i = 0; i < 2; ++i) {
      nodes.standstill.assigned(Nodes::peer(i), 2, {.id = "n", .local_world_size = 2}, 2 * i);
    }
    nodes.standstill.assigned(Nodes::peer(0), 2, {.id = "n", .local_world_size = 2}, 0);
    nodes.say(0, Kind::Stands, false, 2);
    CHECK(nodes.asked() == 0);
    nodes.say(1, Kind::Stands, false, 2);
    CHECK(nodes.asked() == 2);
  }
}

TEST_CASE("standstill: nobody hangs while a role starts again, whose last words say nothing") {
  Nodes nodes(2);
  nodes.standstill.renews(Nodes::peer(1));
  nodes.say(0, Kind::Stands);
  nodes.say(1, Kind::Stands);  // was on its way
  nodes.standstill.started(Nodes::peer(1), 1, nodes.now);
  nodes.standstill.finished(Nodes::peer(1), nodes.now);
  CHECK(nodes.asked() == 0);
  nodes.standstill.assigned(Nodes::peer(1), 1, {.id = "n1", .local_world_size = 2}, 2);
  CHECK(nodes.asked() == 0);
  nodes.standstill.started(Nodes::peer(1), 1, nodes.now);
  CHECK(nodes.asked() == 2);
}

TEST_CASE("standstill: workers of whom their node knows nothing are named as silent") {
  Nodes nodes(3);
  nodes.standstill.asks(99, nodes.now);
  nodes.answer(0);
  nodes.standstill.answers(Nodes::peer(1), {nodes.call(), {{{3}, {"x"}}}, {}, true}, nodes.now);
  nodes.standstill.answers(Nodes::peer(2), {nodes.call(), {}, {}, true}, nodes.now);
  CHECK_FALSE(nodes.standstill.deadline());
  const auto reports = nodes.reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].second.stacks.silent ==
        std::vector<hangs::SilentNode>{{"n1", {2}}, {"n2", {4, 5}}});
}

TEST_CASE("standstill: an excused node excuses the job") {
  Nodes nodes(2);
  nodes.say(1, Kind::Excused, false);
  nodes.say(0, Kind::Stands);
  CHECK(nodes.asked() == 0);
  nodes.say(1, Kind::Moves, false);
  CHECK(nodes.asked() == 2);
}

TEST_CASE("standstill: a hang is told once, and again when it went on in between") {
  Nodes nodes(2);
  for (int i = 0; i < 2; ++i) nodes.say(i, Kind::Stands, false);
  CHECK(nodes.asked() == 2);
  nodes.say(0, Kind::Stands, false);
  for (int i = 0; i < 2; ++i) nodes.answer(i);
  CHECK(nodes.reports().size() == 2);
  nodes.say(0, Kind::Moves, false);
  nodes.say(0, Kind::Stands, false);
  CHECK(nodes.asked() == 4);
}

TEST_CASE("standstill: a hang that ends before the stacks are there is none") {
  Nodes nodes(2);
  for (int i = 0; i < 2; ++i) nodes.say(i, Kind::Stands);
  nodes.answer(0);
  SUBCASE("whoever has asked gets what there is") {
    nodes.standstill.asks(99, nodes.now);
    nodes.say(1, Kind::Moves);
    nodes.answer(1);
    const auto reports = nodes.reports();
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].first == 99);
    CHECK_FALSE(reports[0].second.hang);
  }
  SUBCASE("the next one has stacks of its own") {
    nodes.say(1, Kind::Excused);
    CHECK_FALSE(nodes.standstill.deadline());
    nodes.answer(1);
    nodes.standstill.tick(nodes.now + 5s);
    CHECK(nodes.reports().empty());
    nodes.say(1, Kind::Stands);
    CHECK(nodes.asked() == 4);
    for (int i = 0; i < 2; ++i) nodes.answer(i);
    CHECK(nodes.reports().size() == 2);
  }
  SUBCASE("also when the last one that stood succeeds or goes") {
    nodes.standstill.finished(Nodes::peer(0), nodes.now);
    nodes.standstill.gone(Nodes::peer(1), nodes.now);
    CHECK(nodes.reports().empty());
  }
}

TEST_CASE("standstill: one that stands itself speaks for all") {
  Nodes nodes(3);
  nodes.say(0, Kind::Moves, false);  // its workers write, but count no steps
  nodes.say(2, Kind::Stands);
  for (int i = 0; i < 3; ++i) nodes.answer(i);
  REQUIRE(nodes.reports().size() == 3);
  CHECK(nodes.reports()[0].second.speaker == 4);
}

TEST_CASE("standstill: a member speaks of each of its own workers once, whatever it sends") {
  Nodes nodes(2);
  nodes.standstill.asks(99, nodes.now);
  const auto id = nodes.call();
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "thread 1 (x, main): state " + std::to_string(i);
    const NodeStacks stacks{id, {{all, {line}}, {{}, {line}}}, {"/tmp/a", "/tmp/b"}, false};
    nodes.standstill.answers(Nodes::peer(1), stacks, nodes.now);
  }
  nodes.answer(0);
  nodes.standstill.tick(nodes.now + 5s);
  const auto stacks = nodes.reports().at(0).second.stacks;
  REQUIRE(stacks.groups.size() == 2);
  CHECK(stacks.groups[0].ranks == std::vector{0, 1});
  CHECK(stacks.groups[1].ranks == std::vector{2, 3});
  CHECK(stacks.groups[1].lines[0].ends_with("state 0"));
  CHECK(stacks.dumps.size() == 2);
  CHECK(stacks.silent.empty());
}

TEST_CASE("standstill: few bytes of a member do not stand for millions of ranks") {
  const auto of_range = [](int last) {
    return decode_from_agent(
        R"({"type":"stacks","id":1,"last":true,"dumps":[],"groups":[{"lines":[],"ranks":[[0,)" +
        std::to_string(last) + "]]}]}");
  };
  CHECK(of_range(1000).has_value());
  CHECK_MESSAGE(of_range(20'000 - 1).has_value(), "the most that a node may have");
  CHECK_FALSE(of_range(20'000).has_value());
  CHECK_FALSE(of_range(1 << 20).has_value());
}

TEST_CASE("standstill: who does not answer within 5 s is named with the ranks that are missing") {
  Nodes nodes(4);
  nodes.standstill.asks(99, nodes.now);
  nodes.answer(0);
  for (const int one : {1, 3}) {
    const NodeStacks half{nodes.call(), {{{2 * one}, {"thread 1 (x, main): running"}}}, {}, false};
    nodes.standstill.answers(Nodes::peer(one), half, nodes.now);
  }
  REQUIRE(nodes.standstill.deadline() == nodes.now + 5s);
  nodes.standstill.gone(Nodes::peer(2), nodes.now);
  nodes.standstill.gone(Nodes::peer(3), nodes.now);
  nodes.standstill.tick(nodes.now + 4999ms);
  CHECK(nodes.reports().empty());
  nodes.standstill.tick(nodes.now + 5s);
  const auto reports = nodes.reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].first == 99);
  CHECK_FALSE(reports[0].second.hang);
  CHECK(reports[0].second.stacks.groups[0].ranks == std::vector{0, 1, 2, 6});
  CHECK(reports[0].second.stacks.silent ==
        std::vector<hangs::SilentNode>{{"n2", {4, 5}}, {"n3", {7}}, {"n1", {3}}});
  nodes.answer(1);  // too late
  CHECK(nodes.reports().size() == 1);
}

TEST_CASE(
    "standstill: who asks meanwhile gets the same answer; a job without members an empty one") {
  Nodes nodes(1);
  nodes.standstill.asks(98, nodes.now);
  nodes.standstill.asks(99, nodes.now);
  nodes.standstill.asks(Nodes::peer(0), nodes.now);
  CHECK(nodes.asked() == 1);
  nodes.answer(0);
  CHECK(nodes.reports().size() == 3);
  Standstill nobody;
  nobody.asks(7, nodes.now);
  const auto told = nobody.take();
  REQUIRE(told.size() == 1);
  CHECK(std::get<StacksReport>(*told[0].second).stacks == hangs::JobStacks{});
}

TEST_CASE(
    "standstill: a finished node is neither asked nor waited for; the next round begins anew") {
  Nodes nodes(2);
  nodes.say(0, Kind::Moves);
  nodes.say(1, Kind::Stands);
  nodes.standstill.finished(Nodes::peer(0), nodes.now);
  CHECK(nodes.asked() == 1);
  nodes.standstill.assigned(Nodes::peer(0), 2, {.id = "n0"}, 0);
  nodes.say(1, Kind::Stands, true, 1);
  nodes.say(0, Kind::Stands, true, 1);  // of the round before
  CHECK(nodes.asked() == 1);
  nodes.say(0, Kind::Stands, true, 2);
  CHECK(nodes.asked() == 2);
}

TEST_CASE("standstill: the hang of a round that is over hits nobody of the next one") {
  Nodes nodes(2);
  for (int i = 0; i < 2; ++i) nodes.say(i, Kind::Stands);
  nodes.standstill.asks(99, nodes.now);
  nodes.answer(0);
  SUBCASE("which is given out before all have answered") {}
  SUBCASE("or breaks up, which is no reason to ask anybody") {
    nodes.standstill.broken_up();
    nodes.standstill.gone(Nodes::peer(1), nodes.now);
    nodes.say(0, Kind::Moves);
    nodes.say(0, Kind::Stands);
  }
  const auto asked = nodes.asked();
  CHECK(asked == 2);
  for (int i = 0; i < 2; ++i) {
    nodes.standstill.assigned(Nodes::peer(i), 2, {.id = "n", .local_world_size = 2}, 2 * i);
  }
  nodes.standstill.tick(nodes.now + 5s);
  // But who has asked hears what there was.
  const auto reports = nodes.reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].first == 99);
  CHECK_FALSE(reports[0].second.hang);
  CHECK(reports[0].second.stacks.groups[0].ranks == std::vector{0, 1});
  for (int i = 0; i < 2; ++i) nodes.say(i, Kind::Stands, true, 2);
  CHECK(nodes.asked() == asked + 2);
}

TEST_CASE("standstill: one that has finished does not speak for those that hang") {
  Nodes nodes(3);
  nodes.say(0, Kind::Stands, false);
  nodes.standstill.finished(Nodes::peer(0), nodes.now);
  for (int i = 1; i < 3; ++i) nodes.say(i, Kind::Stands, false);
  nodes.answer(1);
  nodes.answer(2);
  const auto reports = nodes.reports();
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].second.hang);
  CHECK(reports[0].second.speaker == 2);
}

TEST_CASE("standstill: a node that is lost while the others stand makes no hang of it") {
  Nodes nodes(3);
  nodes.say(2, Kind::Excused);
  nodes.say(0, Kind::Stands);
  nodes.say(1, Kind::Stands);
  nodes.standstill.broken_up();
  nodes.standstill.gone(Nodes::peer(2), nodes.now);
  nodes.standstill.finished(Nodes::peer(1), nodes.now);
  CHECK(nodes.asked() == 0);
  CHECK_FALSE(nodes.standstill.deadline());
}

TEST_CASE("standstill: the report of a large job is there once, and short where all stand alike") {
  constexpr int kNodes = 4000;
  Nodes nodes(kNodes);
  for (int i = 0; i < kNodes; ++i) nodes.say(i, Kind::Stands);
  const auto id = nodes.call();
  for (int i = 0; i < kNodes; ++i) {
    hangs::StackGroup group{{2 * i, 2 * i + 1}, {"thread 1 (x, main): running"}};
    nodes.standstill.answers(Nodes::peer(i), {id, {group}, {}, true}, nodes.now);
  }
  const auto told = nodes.standstill.take();
  REQUIRE(told.size() == kNodes);
  CHECK(std::ranges::all_of(told, [&](const auto& one) { return one.second == told[0].second; }));
  const auto text = encode(FromCoordinator(*told[0].second));
  CHECK(text.size() < 1000);
  const auto report = decode_from_coordinator(text);
  REQUIRE(report.has_value());
  const auto& groups = std::get<StacksReport>(std::get<Push>(*report)).stacks.groups;
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].ranks.size() == 2 * kNodes);
}

// Facts in any order.
TEST_CASE(
    "standstill: nobody is asked or told while a node moves or is excused, and each call ends") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    Nodes nodes(4);
    std::vector<std::optional<Kind>> said(4);
    std::vector<bool> here(4, true);
    std::size_t asked = 0, told = 0;
    const auto check_told = [&] {
      const auto reports = nodes.reports();
      for (; told < reports.size(); ++told) {
        CHECK(reports[told].second.hang);  // as nobody asks
        for (const auto& kind : said) CHECK((!kind || *kind == Kind::Stands));
      }
    };
    for (int i = 0; i < 200; ++i) {
      const int node = below(4);
      nodes.now += std::chrono::milliseconds(below(2000));
      nodes.standstill.tick(nodes.now);
      check_told();
      const int fact = below(12);
      if (fact < 8 && here[static_cast<std::size_t>(node)]) {
        said[static_cast<std::size_t>(node)] = static_cast<Kind>(below(3));
        nodes.say(node, *said[static_cast<std::size_t>(node)]);
      } else if (fact < 11 && nodes.call() > 0) {
        nodes.answer(node);
      } else if (fact == 11 && below(10) == 0) {
        here[static_cast<std::size_t>(node)] = false;
        said[static_cast<std::size_t>(node)].reset();
        nodes.standstill.gone(Nodes::peer(node), nodes.now);
      } else if (fact == 11 && below(10) == 0) {
        nodes.standstill.broken_up();  // after which nobody is asked at all
        CHECK_FALSE(nodes.standstill.deadline());
        break;
      }
      CAPTURE(seed);
      if (nodes.asked() > asked) {
        asked = nodes.asked();
        for (const auto& kind : said) CHECK((!kind || *kind == Kind::Stands));
      }
      check_told();
      if (const auto due = nodes.standstill.deadline()) CHECK(*due <= nodes.now + 5s);
    }
    nodes.standstill.tick(nodes.now + 5s);
    CHECK_FALSE(nodes.standstill.deadline());
  }
}

TEST_CASE("standstill: an answer travels in parts that each fit into a frame") {
  NodeStacks answer{7, {}, {"/tmp/dump"}, true};
  for (int rank = 0; rank < 20; ++rank) {
    const std::string line(hangs::kMostBytes / hangs::kMostLines, rank % 2 == 0 ? '"' : '\xFF');
    answer.groups.push_back({{rank}, std::vector<std::string>(hangs::kMostLines, line)});
  }
  const auto parts = parts_of(answer);
  REQUIRE(parts.size() == 20);
  for (const auto& part : parts) {
    const auto text = encode(FromAgent(part));
    CHECK(text.size() < (64 << 10));
    CHECK(decode_from_agent(text).has_value());
    CHECK(part.last == (&part == &parts.back()));
  }
  REQUIRE(parts_of({7, {}, {}, false}).size() == 1);
  CHECK(parts_of({7, {}, {}, false})[0].last);
}

}  // namespace elastrun::rendezvous
