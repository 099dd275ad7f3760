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
  job.play("599s");
  CHECK(job.told["x"].empty());
  SUBCASE("nobody comes") {
    job.play("1s");
    CHECK(job.has_failed("x"));
    CHECK(!job.state.deadline());
  }
  SUBCASE("it goes") {
    job.play("end x");
    CHECK(!job.state.awaits_latecomers());
  }
  SUBCASE("one comes") {
    job.play("join a");
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
  job.play("join a");
  for (int start = 0; start < 5; ++start) {
    job.come("x");
    job.lose("x");
  }
  job.play("a: not done");
  SUBCASE("and none once it can") {
    job.play("join x");
    for (const char* name : {"y", "z"}) job.come(name);
    job.play("30s | a: 0/2#1");
  }
}

// Docker gives its containers the same addresses on every host.
TEST_CASE("unable: nodes of two hosts are two, although their addresses are alike") {
  Unable job(make_rules(2, 3));
  job.play("join a");
  job.come("x", "host1");
  job.play("a: not done");
  SUBCASE("as both can never be there") {
    job.come("x", "host2");
    job.play("a: done");
  }
  SUBCASE("but not if it is started again under another id") {
    job.come("x", "host1");
    job.play("a: not done");
  }
}

TEST_CASE("unable: enough nodes that are there are not sent away because of others") {
  Unable job(make_rules(2, 3));
  job.play("join a b");
  for (const char* name : {"x", "y"}) job.come(name);
  job.play("a: not done | y: lost | 30s | a: 0/2#1");
}

TEST_CASE("unable: a job that runs, or has run, is not ended by one that comes in vain") {
  Unable job(make_rules(2, 2));
  job.play("join a b | a: 0/2#1");
  SUBCASE("it works") {
    job.come("x");
    job.play("a: 0/2#1");
  }
  SUBCASE("it waits for a replacement") {
    job.play("end b | join a@1.1/2");
    job.come("x");
    job.play("a: not done | join c | a: 0/2#2");
  }
  job.play("x: lost");
}

TEST_CASE("unable: a member of the first world that could not start its workers") {
  SUBCASE("ends a job that needs it") {
    Unable job(make_rules(2, 2));
    job.play("join a x");
    job.cannot_start("x");
    job.play("a: done");
    CHECK(job.last<Done>("a")->cause.text == "node x_1_0 has left: " + kWhy);
  }
  SUBCASE("leaves one that does not") {
    Unable job(make_rules(1, 2));
    job.play("join a x");
    job.cannot_start("x");
    job.play("a: restart");
  }
  SUBCASE("makes room for one that waits") {
    Unable job(make_rules(2, 2));
    job.play("join a x spare");
    job.cannot_start("x");
    job.play("a: restart | join a | a: 0/2#2");
  }
  SUBCASE("of a later one leaves, and another may come in its place") {
    Unable job(make_rules(2, 2, 1));
    job.play("join a x | fail a | join a@1.1/2*1 x@1.1/2*1 | a: 0/2#2");
    job.cannot_start("x");
    job.play("a: restart");
    CHECK(job.state.phase() == Phase::Joining);
  }
}
