// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ranks.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

using namespace elastrun::rendezvous;

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
