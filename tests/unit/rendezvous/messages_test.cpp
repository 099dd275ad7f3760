// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/messages.hpp"

#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

Cause a_cause() {
  Cause cause;
  cause.kind = Cause::Kind::NodeLost;
  cause.node = "10.0.0.1_7_0";
  cause.rank = 5;
  cause.local_rank = 1;
  cause.exit_code = -9;
  cause.text = "a \"quoted\" text\n\xc3\xa4";
  cause.wall_seconds = 1234.5;
  cause.final = true;
  return cause;
}

/// As the restart policy goes by it.
Cause a_judged_cause() {
  Cause cause = a_cause();
  cause.kind = Cause::Kind::WorkerFailed;
  cause.what = spec::CauseClass::Gpu;
  cause.fingerprint = "RuntimeError@train.py:7";
  cause.step = 874, cause.checkpoint = 800;
  cause.rule = "auto: 1 of 3 restarts";
  cause.hopeless = true;
  cause.blames_peer = true;
  return cause;
}

std::shared_ptr<const RestartMemory> a_memory() {
  RestartMemory memory{3, 2, 1, 800};
  memory.entries = {{90s, spec::CauseClass::NodeLost, "", "n7 (10.0.0.7)", -1, 800, "restart: x"},
                    {1s, spec::CauseClass::Error, "KeyError@a.py:1", "", 874, 800, "end: y"}};
  memory.marks = {{"n7 (10.0.0.7)", 90s, "was lost"}};
  memory.uses = {{2, 90s}};
  return std::make_shared<const RestartMemory>(memory);
}

Join a_join_with_memory() {
  Join join{make_node("a", 8), {{3, 4}, 2, 7, 6}, make_rules(2, 5, 3)};
  join.rules.restart_policy_auto = join.rules.rank_order_topology = true;
  join.node.topology = "s0.s[1-2].nvlink-ab-1";
  join.rules.restart_rule = "gpu:2/1h,exclude";
  join.node.memory = a_memory();
  join.node.fault = "nothing can be written in /logs (no space left on device)";
  return join;
}

Hello a_hello_with_processes() {
  Hello hello{"job"};
  hello.processes = {"0e3c-boot", 4026531836, {7, 100}, {6, 99}};
  return hello;
}

std::vector<std::string> from_agents() {
  Join join{make_node("a", 8), {{3, 4}, 2, 7}, make_rules(2, 5, 3), {{3, 5}, 2, 6}};
  return {
      encode(FromAgent(Hello{"job", Hello::Who::Status, 9, "17/1", "n7", "ada"})),
      encode(FromAgent(Hello{"job", Hello::Who::Agent, 9, "", "n7", "ada", AtWork{join, 12s}})),
      encode(FromAgent(a_hello_with_processes())),
      encode(FromAgent(join)),
      encode(FromAgent(Stopping{7s})),
      encode(FromAgent(Started{3})),
      encode(FromAgent(Failed{3, a_cause()})),
      encode(FromAgent(Failed{3, a_cause(), true})),
      encode(FromAgent(Succeeded{3})),
      encode(FromAgent(Leaving{"bye", 3s, true, false, true})),
      encode(FromAgent(Hello{"job", Hello::Who::Stacks})),
      encode(FromAgent(
          ProgressReport{7, {hangs::NodeProgress::Kind::Excused, true}, 90s, {{3, "stopped"}}})),
      encode(FromAgent(NodeStacks{3, {{{0, 2}, {"thread 1 (x): running"}}}, {"/tmp/d0"}, true})),
      encode(FromAgent(AskStacks{})),
      encode(FromAgent(a_join_with_memory())),
      encode(FromAgent(Failed{3, a_judged_cause()})),
      encode(FromAgent(Reached{7, 12, 10, 20ms, true, true, "rank 0 failed to save"})),
      encode(FromAgent(AskPreempt{"SIGTERM", 120s, true})),
      encode(FromAgent(Heartbeat{}))};
}

World a_world(int nodes) {
  std::vector<Node> members;
  for (int i = 0; i < nodes; ++i) members.push_back(make_node("n" + std::to_string(1000 + i), 2));
  World world = make_world(std::move(members), RankOrder::Torchrun, "", 0);
  world.id = {3, 4};
  world.spent = world.all.attempt = 1;
  return world;
}

/// Its second node has a role that restarts alone, and has.
World a_divided_world() {
  auto members = a_world(3).members;
  members[1].role = "reader";
  World world = make_world(members, RankOrder::Torchrun, "", 0, {"reader"});
  world.id = {3, 4};
  members[1].store_port = 29500;
  return start_again(world, "reader", std::move(members), true, 1);
}

std::vector<std::string> from_coordinators() {
  return {
      encode(FromCoordinator(Welcome{"job", 4, true, 2s, 5, {{4, 3}, 1, 2}})),
      encode(FromCoordinator(Refusal{"no", true})),
      encode(FromCoordinator(NewEpoch{8})),
      encode(FromCoordinator(Push(RoundReady{round_of(a_world(3), 1)}))),
      encode(FromCoordinator(Push(RoundReady{round_of(a_divided_world(), 1)}))),
      encode(FromCoordinator(Push(Restart{a_cause(), true, 2}))),
      encode(FromCoordinator(Push(Restart{a_cause(), true, 2, {}, nullptr, "reader"}))),
      encode(FromCoordinator(Push(Done{true, a_cause()}))),
      encode(FromCoordinator(Push(Spare{2, {{3, 4}, 1, 2}}))),
      encode(FromCoordinator(Push(TakeStacks{4, true}))),
      encode(FromCoordinator(Push(StacksReport{
          {{{{0, 1, 5}, {"a", "b"}}, {{2}, {}}}, {{"n2", {3, 4}}}, {"/tmp/d0"}}, true, 31s, 8}))),
      encode(FromCoordinator(Push(Restart{a_judged_cause(), true, 2, 4s, a_memory()}))),
      encode(FromCoordinator(Push(Done{true, a_judged_cause(), a_memory()}))),
      encode(FromCoordinator(Push(AskReached{"SIGTERM", 30s}))),
      encode(FromCoordinator(Push(SaveAt{13, 29s, true}))),
      encode(FromCoordinator(Push(Lost{"gone", true}))),
      encode(FromCoordinator(Push(Progress{"two", 1, 2}))),
      encode(FromCoordinator(Heartbeat{})),
      encode(FromCoordinator(StatusText{"{}"}))};
}

}  // namespace

TEST_CASE("messages: everything an agent says survives the wire") {
  for (const std::string& text : from_agents()) {
    CAPTURE(text);
    const auto message = decode_from_agent(text);
    REQUIRE(message.has_value());
    CHECK(encode(*message) == text);
  }
}

TEST_CASE("messages: everything a coordinator says survives the wire") {
  for (const std::string& text : from_coordinators()) {
    CAPTURE(text);
    const auto message = decode_from_coordinator(text);
    REQUIRE(message.has_value());
    CHECK(encode(*message) == text);
  }
}

TEST_CASE("messages: no silence is so long that it cannot be counted") {
  const auto message = decode_from_coordinator(
      R"({"type":"welcome","heartbeat_interval":1e6,"heartbeats_missed":100000000})");
  REQUIRE(message.has_value());
  const auto& welcome = std::get<Welcome>(*message);
  CHECK(welcome.heartbeat * welcome.heartbeats_missed == std::chrono::seconds(1'000'000'000));
}

TEST_CASE("messages: a cut message is refused at every length, by a sentence") {
  for (const std::string& text : from_agents()) {
    for (std::size_t cut = 0; cut < text.size(); ++cut) {
      CHECK(!decode_from_agent(text.substr(0, cut)).has_value());
    }
  }
  for (const std::string& text : from_coordinators()) {
    for (std::size_t cut = 0; cut < text.size(); ++cut) {
      CHECK(!decode_from_coordinator(text.substr(0, cut)).has_value());
    }
  }
}

TEST_CASE("messages: members of the wrong kind and numbers out of range are refused") {
  for (const char* text :
       {"[]", "1", "{}", R"({"type":"fly"})", R"({"type":"started","round":"1"})",
        R"({"type":"started","round":-1})", R"({"type":"started","round":1e30})",
        R"({"type":"failed","round":1,"cause":[]})", R"({"type":"failed","cause":{"kind":"x"}})",
        R"({"type":"join","node":{"workers":1.5}})", R"({"type":"join","node":{"workers":20001}})",
        R"({"type":"join","previous":{"round":9223372036854775807}})",
        R"({"type":"failed","cause":{"wall":1e11}})",
        R"({"type":"stacks","groups":[{"ranks":[[0,99999999]]}]})",
        R"({"type":"stacks","groups":[{"ranks":[[0,1999999]]},{"ranks":[[0,1999999]]}]})",
        R"({"type":"stacks","groups":[{"ranks":[[3,2]]}]})",
        R"({"type":"stacks","groups":[{"ranks":[[1,2,3]]}]})",
        R"({"type":"join","node":{"store_port":65536}})",
        R"({"type":"join","node":{},"rules":{"min_nodes":3,"max_nodes":2}})"}) {
    CAPTURE(text);
    const auto message = decode_from_agent(text);
    REQUIRE(!message.has_value());
    CHECK(message.error().code == Code::Protocol);
  }
  for (const char* text :
       {R"({"type":"round","nodes":0})", R"({"type":"round","nodes":2,"group_rank":2})",
        R"({"type":"round","nodes":999999999999})",
        R"({"type":"round","nodes":1,"members":[{},{}]})", R"({"type":"done","failed":1})"}) {
    CAPTURE(text);
    CHECK(!decode_from_coordinator(text).has_value());
  }
}

TEST_CASE("messages: a refusal names the member") {
  CHECK(decode_from_agent(R"({"type":"join","node":{"workers":20001}})").error().text ==
        "a message \"join\" has members of the wrong kind: workers");
}

TEST_CASE("messages: whatever bytes a program has said, the other side takes the message") {
  const std::string euro = "\xE2\x82\xAC";
  std::string lengthy;
  for (int i = 0; i < 40'000; ++i) lengthy += euro;
  for (const std::string& said :
       {lengthy.substr(0, 500), lengthy.substr(0, 2048), lengthy, std::string("\xFF\0\x80\"", 4),
        std::string(40'000, '\x01'), std::string(40'000, '"')}) {
    Cause cause = a_cause();
    cause.text = cause.node = said;
    Node node = make_node("a");
    node.id = node.instance = node.address = node.role = said;
    node.alternates.assign(kMaxAlternateAddresses, said);
    for (const FromAgent& message : {FromAgent(Failed{1, cause}), FromAgent(Leaving{said}),
                                     FromAgent(Hello{said, Hello::Who::Agent, 1}),
                                     FromAgent(Join{node, {}, make_rules(1, 2)})}) {
      const std::string text = encode(message);
      CHECK(text.size() < (64 << 10));
      const auto taken = decode_from_agent(text);
      REQUIRE(taken.has_value());
      CHECK(encode(*taken) == text);
    }
    for (const FromCoordinator& message :
         {FromCoordinator(Push(Done{true, cause})), FromCoordinator(Push(Restart{cause, true, 1})),
          FromCoordinator(Push(Lost{said, true})), FromCoordinator(Push(Progress{said, 1, 2})),
          FromCoordinator(Refusal{said}), FromCoordinator(StatusText{said})}) {
      CHECK(decode_from_coordinator(encode(message)).has_value());
    }
    World world = a_world(2);
    world.members[0].role = said;
    CHECK(decode_from_coordinator(encode_assignment(world, 0, encode_members(world))).has_value());
  }
}

TEST_CASE("messages: a name of a node or a host that cannot be shown as it is is refused") {
  const std::string escapes = R"(rogue\u001b]0;PWNED\u0007\u001b[2J\n\rfake line)";
  for (const std::string& name : {escapes, std::string(301, 'a'), std::string("a\u202eb"),
                                  std::string(R"(a\u009bb)"), std::string("\xff")}) {
    CAPTURE(name);
    for (const char* form :
         {R"({{"type":"join","node":{{"id":"{}"}}}})", R"({{"type":"hello","host":"{}"}})",
          R"({{"type":"join","node":{{"address":"{}"}}}})", R"({{"type":"hello","user":"{}"}})",
          R"({{"type":"join","node":{{"alternates":["{}"]}}}})",
          R"({{"type":"failed","cause":{{"node":"{}"}}}})"}) {
      const auto text = fmt::format(fmt::runtime(form), name);
      CAPTURE(text);
      CHECK_FALSE(decode_from_agent(text));
    }
    CHECK_FALSE(decode_from_coordinator(
        fmt::format(R"({{"type":"round","nodes":1,"master_addr":"{}"}})", name)));
  }
}

TEST_CASE("messages: any other text can be shown once it was read, on one line") {
  const std::string said = R"(a\u001b[31m\n\rE1128 forged\t\u0085b)", shown = "a[31mE1128 forgedb";
  const auto read = [&](const char* form) {
    auto message = decode_from_agent(fmt::format(fmt::runtime(form), said));
    REQUIRE(message.has_value());
    return std::move(*message);
  };
  const auto failed = read(R"({{"type":"failed","cause":{{"text":"{0}","fingerprint":"{0}"}}}})");
  CHECK(std::get<Failed>(failed).cause.text == shown);
  CHECK(std::get<Failed>(failed).cause.fingerprint == shown);
  CHECK(std::get<Leaving>(read(R"({{"type":"leaving","why":"{}"}})")).why == shown);
  CHECK(std::get<Hello>(read(R"({{"type":"hello","run":"{}"}})")).run_id == shown);
  const auto stacks = read(R"({{"type":"stacks","groups":[{{"ranks":[0],"lines":["{}"]}}]}})");
  CHECK(std::get<NodeStacks>(stacks).groups.front().lines.front() == shown);
  const auto refused =
      decode_from_coordinator(fmt::format(R"({{"type":"refuse","text":"{}"}})", said));
  CHECK(std::get<Refusal>(refused.value()).text == shown);
  CHECK(decode_from_agent(R"({"type":")" + said + R"("})").error().text ==
        "a message \"" + shown + "\" is not known");
}

TEST_CASE("messages: a status of thousands of nodes is taken whole") {
  const std::string status(1 << 20, 'x');
  const auto taken = decode_from_coordinator(encode(FromCoordinator(StatusText{status})));
  REQUIRE(taken.has_value());
  CHECK(std::get<StatusText>(*taken).json == status);
}

TEST_CASE("messages: unknown members are passed over") {
  CHECK(decode_from_agent(R"({"type":"started","round":1,"new":{"x":[1]}})").has_value());
}

TEST_CASE("messages: a seat of a small world has all members, for everybody") {
  const World world = a_world(3);
  const std::string text = encode_assignment(world, 2, encode_members(world));
  CHECK(text == encode(FromCoordinator(Push(RoundReady{round_of(world, 2)}))));
}

TEST_CASE("messages: in a large world only group rank 0 gets the list") {
  const World world = a_world(100);
  const std::string members = encode_members(world);
  CHECK(encode_assignment(world, 0, members).size() > 5000);
  const std::string state = encode_assignment(world, 42, members);
  CHECK(state.size() < 400);
  const auto message = decode_from_coordinator(state);
  REQUIRE(message.has_value());
  const Round round = std::get<RoundReady>(std::get<Push>(*message)).round;
  CHECK(round.group_world_size() == 100);
  CHECK(round.rank_base == 84);
}

TEST_CASE("messages: the address that a node is seen to come from is one of its own, once") {
  const auto seen = boost::asio::ip::make_address("203.0.113.7");
  Node node;
  node.address = "10.0.0.7";
  add_source_address(node, seen);
  add_source_address(node, seen);
  add_source_address(node, boost::asio::ip::make_address("10.0.0.7"));
  add_source_address(node, boost::asio::ip::make_address("127.0.0.1"));
  add_source_address(node, {});
  CHECK(node.alternates == std::vector<std::string>{"203.0.113.7"});
  // One that names as many as it may is still one that others can read.
  node.alternates.assign(kMaxAlternateAddresses, "10.1.1.1");
  add_source_address(node, seen);
  CHECK(node.alternates.size() == kMaxAlternateAddresses);
  CHECK(node.alternates.back() == "203.0.113.7");
  Node read;
  CHECK(from_json(to_json(node), read) == "");
  CHECK(read.alternates == node.alternates);
}
