// SPDX-License-Identifier: Apache-2.0
// Nodes that cannot start their workers.

#include "rendezvous/membership/state.hpp"
#include "unit/rendezvous/script.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

const std::string kWhy = "cannot run the program 'foo': No such file or directory";
const std::string kText = "node x_1_0 cannot start its workers: " + kWhy;

struct Unable : Script {
  using Script::Script;
  void come(const std::string& name, const std::string& host = {}) {
    peers[name] = ++last_peer;
    Node node = make_node(name);
    node.host = host;
    node.unable = kWhy;
    state.join(peers[name], std::move(node), {}, now);
    read();
  }
  void cannot_start(const std::string& name) {
    state.cannot_start(peers[name], kWhy, now);
    state.leave(peers[name], kWhy, now);
    read();
  }
  bool has_failed(const std::string& name) {
    const auto* done = last<Done>(name);
    return done != nullptr && done->failed && done->cause.text == kText &&
           done->cause.node == "x_1_0";
  }
};

}  // namespace

TEST_CASE("unable: the first of all waits for the others as long as they would for it") {
  Unable job(make_rules(2, 2));
  job.come("x");
  CHECK(job.state.deadline() == job.now + 600s);
  job.pass(599s);
  CHECK(job.told["x"].empty());
  SUBCASE("nobody comes") {
    job.pass(1s);
    CHECK(job.has_failed("x"));
    CHECK(!job.state.deadline());
  }
  SUBCASE("it goes") {
    job.lose("x");
    CHECK(!job.state.awaits_latecomers());
  }
  SUBCASE("one comes") {
    job.join("a");
    CHECK(job.has_failed("a"));
    CHECK(job.has_failed("x"));
  }
  SUBCASE("one comes that cannot either") {
    job.come("y");
    CHECK(job.has_failed("y"));
    CHECK(job.has_failed("x"));
  }
}

TEST_CASE("unable: one node that is started again and again is one") {
  Unable job(make_rules(2, 4));
  job.join("a");
  for (int start = 0; start < 5; ++start) {
    job.come("x");
    job.lose("x");
  }
  CHECK(job.last<Done>("a") == nullptr);
  SUBCASE("and none once it can") {
    job.join("x");
    for (const char* name : {"y", "z"}) job.come(name);
    job.pass(30s);
    CHECK(job.assignment("a") == "0/2#1");
  }
}

// Docker gives its containers the same addresses on every host.
TEST_CASE("unable: nodes of two hosts are two, although their addresses are alike") {
  Unable job(make_rules(2, 3));
  job.join("a");
  job.come("x", "host1");
  CHECK(job.last<Done>("a") == nullptr);
  SUBCASE("as both can never be there") {
    job.come("x", "host2");
    CHECK(job.last<Done>("a") != nullptr);
  }
  SUBCASE("but not if it is started again under another id") {
    job.come("x", "host1");
    CHECK(job.last<Done>("a") == nullptr);
  }
}

TEST_CASE("unable: enough nodes that are there are not sent away because of others") {
  Unable job(make_rules(2, 3));
  job.join("a");
  job.join("b");
  for (const char* name : {"x", "y"}) job.come(name);
  CHECK(job.last<Done>("a") == nullptr);
  CHECK(job.last<Lost>("y") != nullptr);
  job.pass(30s);
  CHECK(job.assignment("a") == "0/2#1");
}

TEST_CASE("unable: a job that runs, or has run, is not ended by one that comes in vain") {
  Unable job(make_rules(2, 2));
  job.join("a");
  job.join("b");
  CHECK(job.assignment("a") == "0/2#1");
  SUBCASE("it works") {
    job.come("x");
    CHECK(job.assignment("a") == "0/2#1");
  }
  SUBCASE("it waits for a replacement") {
    job.lose("b");
    job.join("a", {{1, 1}, 0, 2});
    job.come("x");
    CHECK(job.last<Done>("a") == nullptr);
    job.join("c");
    CHECK(job.assignment("a") == "0/2#2");
  }
  CHECK(job.last<Lost>("x") != nullptr);
}

TEST_CASE("unable: a member of the first world that could not start its workers") {
  SUBCASE("ends a job that needs it") {
    Unable job(make_rules(2, 2));
    job.join("a");
    job.join("x");
    job.cannot_start("x");
    const auto* done = job.last<Done>("a");
    REQUIRE(done != nullptr);
    CHECK(done->cause.text == "node x_1_0 has left: " + kWhy);
  }
  SUBCASE("leaves one that does not") {
    Unable job(make_rules(1, 2));
    job.join("a");
    job.join("x");
    job.cannot_start("x");
    CHECK(job.last<Restart>("a") != nullptr);
  }
  SUBCASE("makes room for one that waits") {
    Unable job(make_rules(2, 2));
    for (const char* name : {"a", "x", "spare"}) job.join(name);
    job.cannot_start("x");
    CHECK(job.last<Restart>("a") != nullptr);
    job.join("a");
    CHECK(job.assignment("a") == "0/2#2");
  }
  SUBCASE("of a later one leaves, and another may come in its place") {
    Unable job(make_rules(2, 2, 1));
    job.join("a");
    job.join("x");
    job.fail("a");
    job.join("a", {{1, 1}, 1, 2});
    job.join("x", {{1, 1}, 1, 2});
    CHECK(job.assignment("a") == "0/2#2");
    job.cannot_start("x");
    CHECK(job.last<Restart>("a") != nullptr);
    CHECK(job.state.phase() == Phase::Joining);
  }
}
