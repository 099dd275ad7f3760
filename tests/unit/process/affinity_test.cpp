// SPDX-License-Identifier: Apache-2.0
#include "process/affinity.hpp"

#include "core/json.hpp"
#include "support/children.hpp"

#include <doctest/doctest.h>
#include <fstream>
#include <sstream>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;

namespace {

using Cpus = std::vector<int>;

Topology made(const std::string& synthetic) {
  auto topology = make_topology(synthetic);
  REQUIRE(topology);
  return *topology;
}

int number(const json::value& value) {
  return static_cast<int>(value.as_int64());
}

Cpus numbers(const json::value& list) {
  Cpus result;
  for (const auto& each : list.as_array()) result.push_back(number(each));
  return result;
}

Topology topology_of(const json::value& one) {
  Topology topology;
  for (const auto& cpu : one.at("cpus").as_array()) {
    const Cpus field = numbers(cpu);
    topology.cpus.push_back({field[0], field[1], field[2], field[3], field[4]});
  }
  return topology;
}

// Torch answers for one device at a time, we plan for all workers: with one worker more each time,
// the last one must get what torch says, until a device that torch refuses makes the plan fail.
void compare(BindingMode mode, const json::value& one, const json::value& answers) {
  const Topology topology = topology_of(one);
  const Cpus devices = numbers(one.at("devices"));
  bool refused = false;
  for (std::size_t device = 0; device < devices.size(); ++device) {
    CAPTURE(device);
    const auto& answer = answers.as_array()[device];
    refused = refused || answer.is_null();
    const auto plan = plan_binding(mode, topology, devices, static_cast<int>(device) + 1);
    REQUIRE(plan.has_value() == !refused);
    if (plan) CHECK(plan->cpus.back() == numbers(answer));
  }
}

}  // namespace

TEST_CASE("affinity: every rule gives each device what torch gives it") {
  std::ifstream file(ELASTRUN_SOURCE_DIR "/tests/data/numa-vectors.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto cases = parse_json(text.str());
  REQUIRE(cases);
  REQUIRE(cases->as_array().size() == 60);
  int index = 0;
  for (const auto& one : cases->as_array()) {
    CAPTURE(index++);
    compare(BindingMode::Node, one, one.at("node"));
    compare(BindingMode::Socket, one, one.at("socket"));
    compare(BindingMode::Exclusive, one, one.at("exclusive"));
    compare(BindingMode::CoreComplex, one, one.at("core-complex"));
  }
}

TEST_CASE("affinity: hwloc's objects become CPUs with node, package, core and last cache") {
  const auto topology = made("package:2 numa:1 l3:2 l2:2 core:1 pu:2");
  REQUIRE(topology.cpus.size() == 16);
  CHECK(topology.cpus[0] == Cpu{0, 0, 0, 0, 0});
  CHECK(topology.cpus[1] == Cpu{1, 0, 0, 0, 0});
  CHECK(topology.cpus[2] == Cpu{2, 0, 0, 2, 0});  // another core, the same L3
  CHECK(topology.cpus[5] == Cpu{5, 0, 0, 4, 4});  // another L3
  CHECK(topology.cpus[15] == Cpu{15, 1, 1, 14, 12});
  const auto bare = made("numa:2 pu:2");  // a machine that tells of no cache and no package
  CHECK(bare.cpus.back().node == 1);
  CHECK(bare.cpus.back().cache == bare.cpus.back().number);
}

TEST_CASE("affinity: without devices the workers are spread over the nodes, which is said") {
  const auto topology = made("numa:2 core:2 pu:1");
  const auto plan = plan_binding(BindingMode::Node, topology, {}, 4);
  REQUIRE(plan);
  CHECK(plan->cpus == std::vector<Cpus>{{0, 1}, {0, 1}, {2, 3}, {2, 3}});
  CHECK(plan->note == "no GPU is visible, so 4 workers are spread over 2 NUMA nodes");
  const auto alone = plan_binding(BindingMode::Exclusive, topology, {}, 1);
  REQUIRE(alone);
  CHECK(alone->note == "no GPU is visible, so 1 worker is spread over 1 NUMA node");
  const auto exclusive = plan_binding(BindingMode::Exclusive, topology, {}, 4);
  REQUIRE(exclusive);
  CHECK(exclusive->cpus == std::vector<Cpus>{{0}, {1}, {2}, {3}});
}

TEST_CASE("affinity: what cannot be bound is explained") {
  const auto topology = made("numa:2 core:2 pu:1");
  const auto text = [&](BindingMode mode, const Cpus& devices, int workers) {
    const auto plan = plan_binding(mode, topology, devices, workers);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == Code::Usage);
    return plan.error().text;
  };
  CHECK(
      text(BindingMode::Node, {0}, 2) ==
      "cannot bind local rank 1: only 1 device is visible, and each worker is bound near its own");
  CHECK(text(BindingMode::Node, {0, 7}, 2).find("near NUMA node 7, on whose CPUs") !=
        std::string::npos);
  CHECK(text(BindingMode::Exclusive, {1, 1, 1}, 1).find("NUMA node 1 has 2 for 3") !=
        std::string::npos);
  CHECK_FALSE(plan_binding(BindingMode::Node, Topology{}, {}, 1));
  CHECK_FALSE(make_topology("numa:x"));
}

TEST_CASE("affinity: lists of CPUs are written as the kernel writes them") {
  CHECK(format_cpus({}).empty());
  CHECK(format_cpus({3}) == "3");
  CHECK(format_cpus({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11");
}

TEST_CASE("affinity: the CPUs of this machine are those that this process may use") {
  const auto topology = read_topology();
  const auto allowed = affinity_of(0);
  REQUIRE(topology);
  REQUIRE(allowed);
  Cpus found;
  for (const Cpu& cpu : topology->cpus) found.push_back(cpu.number);
  CHECK(found == *allowed);
}

TEST_CASE("affinity: a binding is read back, and a different one is told") {
  Nursery nursery;
  Ear ear;
  const int first = affinity_of(0).value().front();
  auto request = nursery.stub({"say=up", "stay"}, ear.mouth());
  request.cpus = {first};
  const auto worker = nursery.start(request);
  REQUIRE(worker);
  const pid_t pid = (*worker)->child->pid();
  CHECK(check_binding(pid, {first}));
  const auto wrong = check_binding(pid, {first, first + 1});
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().text.find("may run on CPUs " + std::to_string(first) + ", not on ") !=
        std::string::npos);
  CHECK_FALSE(check_binding(0x3fffffff, {first}));
}
