// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_telemetry.hpp"
#include "support/fake_clock.hpp"
#include "telemetry/registry.hpp"

#include <doctest/doctest.h>
#include <map>

namespace elastrun::agent {
namespace {

using rendezvous::Cause;

struct Nodes {
  test::FakeClock clock;
  telemetry::Registry registry{clock};
  NodeSeries series{registry};

  void round(std::vector<std::string> addresses, int group_rank = 0) {
    rendezvous::Round round;
    round.group_rank = group_rank;
    for (auto& address : addresses) {
      rendezvous::Node node;
      node.id = address + "_17_0";
      node.address = std::move(address);
      round.members.push_back(std::move(node));
    }
    series.on(moment::RoundReady{round, {}});
  }
  void restart(Cause::Kind kind, const std::string& node) {
    rendezvous::Restart order;
    order.cause.kind = kind;
    order.cause.node = node + "_17_0";
    series.on(moment::Restarting{order});
  }
  /// "name|label|label" -> value
  std::map<std::string, double> seen() {
    std::map<std::string, double> found;
    for (const auto& point : registry.collect("elastrun.node.**").points) {
      auto name = point.spec->name.substr(std::string_view("elastrun.node.").size());
      for (const auto& [key, value] : point.labels) name += "|" + std::get<std::string>(value);
      found[name] = std::get<double>(point.value);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("node series: which nodes are in the world, and which have interrupted it") {
  Nodes nodes;
  CHECK(nodes.seen().empty());
  nodes.round({"a", "b"});
  CHECK(nodes.seen() == std::map<std::string, double>{{"up|a", 1}, {"up|b", 1}});
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  nodes.restart(Cause::Kind::NodeLost, "b");
  nodes.restart(Cause::Kind::NodeJoined, "c");       // interrupts nothing unexpectedly
  nodes.restart(Cause::Kind::NodeLost, "stranger");  // never in the world
  const std::map<std::string, double> expected{{"up|a", 1},
                                               {"up|b", 0},
                                               {"interruptions|a|worker_failed", 2},
                                               {"interruptions|b|node_lost", 1}};
  CHECK(nodes.seen() == expected);
  nodes.round({"a", "c"});
  CHECK(nodes.seen().at("up|b") == 0);
  CHECK(nodes.seen().at("up|c") == 1);
}

TEST_CASE("node series: only the node of rank 0 tells") {
  Nodes nodes;
  nodes.round({"a", "b"}, 1);
  nodes.restart(Cause::Kind::WorkerFailed, "a");
  CHECK(nodes.seen().empty());
}

}  // namespace elastrun::agent
