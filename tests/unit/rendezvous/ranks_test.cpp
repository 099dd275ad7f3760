// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/membership/world.hpp"
#include "unit/rendezvous/script.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace elastrun::rendezvous;
using namespace elastrun;
using namespace elastrun::rendezvous::test;

namespace {

Node node(std::string id, int workers = 1, std::string role = "default", int node_rank = -1) {
  return {.id = std::move(id),
          .address = "10.0.0.1",
          .store_port = 1,
          .role = std::move(role),
          .local_world_size = workers,
          .node_rank = node_rank};
}

std::vector<std::string> ids(const std::vector<Node>& nodes) {
  std::vector<std::string> found;
  for (const Node& each : nodes) found.push_back(each.id);
  return found;
}

}  // namespace

TEST_CASE("ranks: nodes are ordered by the text of the address, then pid and serial as numbers") {
  std::vector<Node> nodes{node("10.0.0.2_9_0"), node("10.0.0.10_1_0"), node("10.0.0.2_10_0"),
                          node("10.0.0.2_9_11"), node("10.0.0.2_9_2")};
  sort_members(nodes, RankOrder::Torchrun);
  CHECK(ids(nodes) == std::vector<std::string>{"10.0.0.10_1_0", "10.0.0.2_9_0", "10.0.0.2_9_2",
                                               "10.0.0.2_9_11", "10.0.0.2_10_0"});
}

TEST_CASE("ranks: an address may hold underscores, and an id of another form is ordered as text") {
  std::vector<Node> nodes{node("node"), node("gpu_b_7_0"), node("gpu_a_8_0"), node("_")};
  sort_members(nodes, RankOrder::Torchrun);
  CHECK(ids(nodes) == std::vector<std::string>{"_", "gpu_a_8_0", "gpu_b_7_0", "node"});
}

TEST_CASE("ranks: the host of the rendezvous has the rank of its address, not of its loopback") {
  std::vector<Node> nodes{node("127.0.0.1_9_0"), node("10.0.0.2_1_0"), node("::1_7_0")};
  nodes[1].address = "10.0.0.2";
  nodes[2].address = "::1";  // no other machine takes part
  sort_members(nodes, RankOrder::Torchrun);
  CHECK(ids(nodes) == std::vector<std::string>{"127.0.0.1_9_0", "10.0.0.2_1_0", "::1_7_0"});
}

TEST_CASE("ranks: where node ranks are fixed they alone decide") {
  std::vector<Node> nodes{node("a_1_0", 1, "default", 2), node("b_1_0", 1, "default", 0),
                          node("c_1_0", 1, "default", 1)};
  sort_members(nodes, RankOrder::Fixed);
  CHECK(ids(nodes) == std::vector<std::string>{"b_1_0", "c_1_0", "a_1_0"});
}

TEST_CASE("ranks: uneven nodes of two roles are numbered without gap, each role on its own") {
  const std::vector<Node> nodes{node("a", 2, "trainer"), node("b", 1, "reader"),
                                node("c", 3, "trainer")};
  const Ranks ranks = compute_ranks(nodes);
  CHECK(ranks.world_size == 6);
  CHECK(ranks.of == std::vector<Bases>{{0, 0, 5}, {2, 0, 1}, {3, 2, 5}});
}

namespace {

/// "node7@s0.s1": its host and its address.
Node node_at(const std::string& place, int last_rank = -1) {
  const auto parts = split(place, '@');
  Node node = make_node(place);
  node.host = parts[0];
  if (parts.size() > 1) node.topology = parts[1];
  node.last_rank = last_rank;
  return node;
}

std::vector<std::string> order_of(std::vector<Node> nodes) {
  sort_by_topology(nodes);
  std::vector<std::string> places;
  for (const Node& node : nodes)
    places.push_back(node.host + (node.topology.empty() ? "" : "@" + node.topology));
  return places;
}

using Places = std::vector<std::string>;

/// Whether the nodes of each beginning of an address are neighbours.
bool is_contiguous(const std::vector<Node>& nodes) {
  std::set<std::string> closed;
  std::vector<std::string> open;
  for (const Node& node : nodes) {
    std::vector<std::string> own;
    for (const auto& level : node.topology.empty() ? Places() : split(node.topology, '.'))
      own.push_back((own.empty() ? "" : own.back() + ".") + level);
    for (const auto& domain : open) {
      if (std::ranges::find(own, domain) == own.end()) closed.insert(domain);
    }
    for (const auto& domain : own) {
      if (closed.contains(domain)) return false;
    }
    open = std::move(own);
  }
  return true;
}

/// Of up to four levels with up to three names each, on hosts of their own.
std::vector<Node> random_nodes(std::mt19937& random, std::size_t most) {
  std::vector<Node> nodes(1 + random() % most);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Places levels;
    for (auto depth = random() % 5; depth > 0; --depth)
      levels.push_back("s" + std::to_string(9 + random() % 3));
    nodes[i] = node_at("node" + std::to_string(i) + "@" + join(levels, "."));
  }
  return nodes;
}

Rules by_topology(int min_nodes, int max_nodes) {
  Rules rules = make_rules(min_nodes, max_nodes, 9);
  rules.rank_order_topology = true;
  return rules;
}

/// A job whose nodes have addresses.
struct PlacedJob {
  explicit PlacedJob(Rules rules) : job(std::move(rules)) {}
  void join(const std::string& name, const std::string& address, int last_rank = -1) {
    if (!job.peers.contains(name)) job.peers[name] = ++job.last_peer;
    Node node = make_node(name);
    node.host = name, node.topology = address;
    const std::int64_t last = last_rank < 0 ? 0 : job.state.round_number();
    job.state.join(job.peers[name], node, {{1, last}, 0, 0, last_rank}, job.now);
    job.read();
  }
  Script job;
};

}  // namespace

TEST_CASE("topology: nodes of one switch are neighbours, in the natural order of names") {
  CHECK(order_of({node_at("n1@s0.s10"), node_at("n2@s0.s9"), node_at("n10@s0.s10"),
                  node_at("n3@s0.s9"), node_at("n2@s0.s10")}) ==
        Places{"n2@s0.s9", "n3@s0.s9", "n1@s0.s10", "n2@s0.s10", "n10@s0.s10"});
  CHECK(order_of({node_at("node10"), node_at("node9"), node_at("node1")}) ==
        Places{"node1", "node9", "node10"});
  CHECK(order_of({node_at("gpu010"), node_at("gpu009"), node_at("gpu100")}) ==
        Places{"gpu009", "gpu010", "gpu100"});
  CHECK(order_of({node_at("b@rack1.node10"), node_at("a@rack2.node1"), node_at("c@rack1.node9")}) ==
        Places{"c@rack1.node9", "b@rack1.node10", "a@rack2.node1"});
}

TEST_CASE("topology: a node that is replaced by one of its domain leaves all others in place") {
  // n1 of ranks 0 to 3 has gone; n9 of the same switch has come.
  CHECK(order_of({node_at("n2@s1", 1), node_at("n3@s2", 2), node_at("n4@s2", 3),
                  node_at("n9@s1")}) == Places{"n9@s1", "n2@s1", "n3@s2", "n4@s2"});
  CHECK(order_of({node_at("b", 1), node_at("c", 2), node_at("z")}) == Places{"z", "b", "c"});
  // Addresses that end with the node say the same.
  CHECK(order_of({node_at("b@r.n2", 1), node_at("c@r.n3", 2), node_at("z@r.n9")}) ==
        Places{"z@r.n9", "b@r.n2", "c@r.n3"});
}

TEST_CASE("topology: the order wins where a replacement is of another domain") {
  CHECK(order_of({node_at("n1@s1", 0), node_at("n3@s2", 2), node_at("n4@s2", 3),
                  node_at("n9@s2")}) == Places{"n1@s1", "n9@s2", "n3@s2", "n4@s2"});
  // Ranks that were given out twice, or to nodes that are not there, are no one's.
  CHECK(order_of({node_at("a", 1), node_at("b", 1), node_at("c", 77)}) == Places{"b", "a", "c"});
}

TEST_CASE("topology: of any nodes, however they came, all domains are neighbours, in one order") {
  std::mt19937 random(20261126);
  for (int i = 0; i < 500; ++i) {
    auto nodes = random_nodes(random, 40);
    auto sorted = nodes;
    sort_by_topology(sorted);
    CHECK(is_contiguous(sorted));
    CHECK(std::ranges::is_permutation(sorted, nodes));
    std::ranges::shuffle(nodes, random);
    sort_by_topology(nodes);
    CHECK(nodes == sorted);
    // With what agents claim of their ranks, true or not.
    for (Node& node : nodes) node.last_rank = static_cast<int>(random() % 45) - 2;
    auto claimed = nodes;
    sort_by_topology(claimed);
    CHECK(is_contiguous(claimed));
    CHECK(std::ranges::is_permutation(claimed, nodes));
  }
}

TEST_CASE("topology: a restart with one other node of the domain moves no other, of any nodes") {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    auto nodes = random_nodes(random, 30);
    sort_by_topology(nodes);
    for (std::size_t rank = 0; rank < nodes.size(); ++rank)
      nodes[rank].last_rank = static_cast<int>(rank);
    const auto before = nodes;
    const auto lost = random() % nodes.size();
    nodes[lost] = node_at("new" + std::to_string(i) + "@" + nodes[lost].topology);
    std::ranges::shuffle(nodes, random);
    sort_by_topology(nodes);
    for (std::size_t rank = 0; rank < nodes.size(); ++rank)
      CHECK((rank == lost || nodes[rank] == before[rank]));
  }
}

TEST_CASE("topology: each lost node gets the nearest spare, whichever came first") {
  const auto names = [](const Places& lost, const Places& spares) {
    std::vector<Node> gone, there;
    for (const auto& place : lost) gone.push_back(node_at(place));
    for (const auto& place : spares) there.push_back(node_at(place));
    std::vector<const Node*> wanted, offered;
    for (const Node& node : gone) wanted.push_back(&node);
    for (const Node& node : there) offered.push_back(&node);
    Places order;
    for (const auto index : nearest_first(wanted, offered)) order.push_back(there[index].host);
    return join(order, " ");
  };
  CHECK(names({"x@s0.s1"}, {"a@s9", "b@s0.s2", "c@s0.s1", "d@s0.s1"}) == "c a b d");
  CHECK(names({"x@a", "y@b"}, {"q", "b1@b", "a1@a"}) == "b1 a1 q");
  CHECK(names({"x@a"}, {"p@a", "x@a"}) == "x p");  // started again on the same machine
  CHECK(names({}, {"b", "a"}) == "b a");
  CHECK(names({"x"}, {}).empty());
}

TEST_CASE("topology: a round is ranked so, and a spare of the lost node's domain replaces it") {
  PlacedJob net(by_topology(4, 4));
  net.join("n4", "s2"), net.join("n2", "s1"), net.join("n3", "s2"), net.join("n1", "s1");
  Script& job = net.job;
  job.play("n1: 0/4#1 | n4: 3/4#1");
  net.join("far", "s3"), net.join("near", "s1");
  job.play("end n1");
  net.join("n2", "s1", 1), net.join("n3", "s2", 2), net.join("n4", "s2", 3);
  job.play("near: 0/4#2 | n2: 1/4#2 | n3: 2/4#2 | n4: 3/4#2 | far: spare");
  const auto told = json::serialize(describe(job.state, job.now));
  CHECK(told.contains(R"("rank_order":"topology")"));
  CHECK(told.contains(R"("topology":"s1","group_rank":0)"));
}

TEST_CASE("topology: a coordinator that never saw the lost node takes the spare near the others") {
  PlacedJob net(by_topology(2, 2));
  Script& job = net.job;
  job.state.set_epoch(2);
  // Rank 0 of the round before was lost with the coordinator, and n1 is still to come.
  job.state.inherit({{{1, 5}, 0, 2}, job.now + 10s});
  net.join("far", "s3"), net.join("near", "s1");
  job.peers["n1"] = ++job.last_peer;
  Node node = make_node("n1");
  node.host = "n1", node.topology = "s1";
  job.state.join(job.peers["n1"], node, {{1, 5}, 0, 2, 1}, job.now);
  job.play("20s | near: 0/2#6 | n1: 1/2#6 | far: not round");
}

TEST_CASE("topology: without the option addresses change nothing") {
  PlacedJob net(make_rules(2, 2));
  net.join("b", "s1"), net.join("a", "s2");
  CHECK(net.job.assignment("a") == "0/2#1");
  CHECK(!json::serialize(describe(net.job.state, net.job.now)).contains("rank_order"));
}
