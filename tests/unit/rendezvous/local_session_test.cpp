// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"
#include "rendezvous/session/make_session.hpp"

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <memory>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;

namespace {

struct LocalNode {
  explicit LocalNode(LocalSettings settings = {})
      : session(make_local_session(loop, *clock, std::move(settings))) {
    session->open([this](Push push) { told.push_back(std::move(push)); });
  }
  void join() {
    Node self;
    self.id = "127.0.0.1_7_0";
    self.address = "127.0.0.1";
    self.store_port = 29123;
    self.local_world_size = 4;
    session->join(self);
    CHECK(told.empty());  // never inside the call
    turn();
  }
  void turn() {
    loop.restart();
    loop.poll();
  }
  template <class T>
  T next() {
    REQUIRE(told.size() == 1);
    REQUIRE(std::holds_alternative<T>(told.front()));
    T push = std::get<T>(told.front());
    told.clear();
    return push;
  }

  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::unique_ptr<Session> session;
  std::vector<Push> told;
};

}  // namespace

TEST_CASE("local session: the only node gets its round on the loop, with its own store as master") {
  LocalNode node;
  node.join();
  const Round round = node.next<RoundReady>().round;
  CHECK(round.master_addr == "127.0.0.1");
  CHECK(round.master_port == 29123);
  CHECK(round.world_size == 4);
  CHECK(round.role_world_size == 4);
  CHECK(round.group_world_size() == 1);
  CHECK(round.attempt == 0);
}

TEST_CASE("local session: a failure spends a restart, the next one ends the job") {
  LocalNode node({.rules = {{.max_restarts = 1}}});
  node.join();
  auto round = node.next<RoundReady>().round;
  Cause cause;
  cause.exit_code = 9;
  node.session->report(Failed{round.number, cause});
  node.turn();
  CHECK(node.next<Restart>().restarts_left == 0);
  node.join();
  round = node.next<RoundReady>().round;
  CHECK(round.attempt == 1);
  node.session->report(Failed{round.number, cause});
  node.turn();
  const auto done = node.next<Done>();
  CHECK(done.failed);
  CHECK(done.cause.exit_code == 9);
}

TEST_CASE("local session: success ends the job, and nothing is pushed after close") {
  LocalNode node;
  node.join();
  const auto round = node.next<RoundReady>().round;
  node.session->report(Succeeded{round.number});
  bool closed = false;
  node.session->close([&closed] { closed = true; });
  CHECK(!closed);
  node.turn();
  CHECK(closed);
  CHECK(node.told.empty());
}

TEST_CASE("local session: destroying it forgets what was on the way") {
  LocalNode node;
  Node self;
  self.id = "a_1_0";
  node.session->join(self);
  node.session.reset();
  node.turn();
  CHECK(node.told.empty());
}
