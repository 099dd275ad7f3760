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
  explicit LocalNode(SessionSettings settings = {})
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
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::unique_ptr<Session> session;
  std::vector<Push> told;
};

}  // namespace

TEST_CASE("local session: destroying it forgets what was on the way") {
  LocalNode node;
  Node self;
  self.id = "a_1_0";
  node.session->join(self);
  node.session.reset();
  node.turn();
  CHECK(node.told.empty());
}
