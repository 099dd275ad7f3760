// SPDX-License-Identifier: Apache-2.0
#include "spec/topology_address.hpp"

#include "spec/explain.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

const Words kOrdered = {"--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400", "--nnodes=4",
                        "--rank-order=topology", "train.py"};

FakeMachine in_slurm(const std::string& address, const std::string& pattern) {
  FakeMachine machine;
  machine.variables["SLURM_TOPOLOGY_ADDR"] = address;
  machine.variables["SLURM_TOPOLOGY_ADDR_PATTERN"] = pattern;
  return machine;
}

std::string found(const FakeMachine& machine) {
  return machine.job(kOrdered).spec.topology;
}

Words with(Words more, Words words = kOrdered) {
  more.insert(more.end(), words.begin(), words.end());
  return more;
}

}  // namespace

TEST_CASE("topology address: Slurm's switches or block, without the node") {
  CHECK(found(in_slurm("s0.s2.node7", "switch.switch.node")) == "s0.s2");
  CHECK(found(in_slurm("block3.node7", "block.node")) == "block3");
  CHECK(found(in_slurm("s0.s[1-2].n7.example.org", "switch.switch.node")) == "s0.s[1-2]");
  CHECK(found(in_slurm("node7", "node")).empty());  // topology/flat
  CHECK(found(in_slurm("s0.node7", "switch.switch.node")).empty());
  CHECK(found(in_slurm("s0.node7", "")).empty());
  CHECK(found(in_slurm("", "switch.node")).empty());
  CHECK(found(FakeMachine()).empty());
}

TEST_CASE("topology address: the NVLink domain comes behind the switches, and is asked if needed") {
  auto machine = in_slurm("s0.node7", "switch.node");
  machine.nvlink = "nvlink-ab01-3";
  CHECK(found(machine) == "s0.nvlink-ab01-3");
  const auto job = machine.job(kOrdered);
  CHECK(contains(explain_text(job), "SLURM_TOPOLOGY_ADDR, NVLink"));
  CHECK(job.notes.back() ==
        "Ranks by topology: the address of this node is s0.nvlink-ab01-3 (SLURM_TOPOLOGY_ADDR, "
        "NVLink)");
  struct Unasked final : FakeMachine {
    explicit Unasked(const FakeMachine& machine) : FakeMachine(machine) {}
    std::string nvlink_domain() const override { throw std::runtime_error("asked"); }
  };
  const Unasked around(machine);
  for (const Words& words :
       {Words{"train.py"}, with({"--standalone"}, {"train.py"}), with({"--topology=rack1"})}) {
    const auto resolved = resolve(*parse_command_line(words), around);
    REQUIRE(resolved.has_value());
  }
}

TEST_CASE("topology address: one that is given wins, from each source") {
  auto machine = in_slurm("s0.node7", "switch.node");
  CHECK(machine.job(with({"--topology", "rack1.node3"})).spec.topology == "rack1.node3");
  machine.variables["PET_TOPOLOGY"] = "zone-a";
  CHECK(found(machine) == "zone-a");
  machine.variables["PET_TOPOLOGY"] = "";  // a label that a pod does not have
  CHECK(found(machine) == "s0");
  machine.variables.erase("PET_TOPOLOGY");
  machine.files["job.toml"] = "[rendezvous]\ntopology = \"r7\"\nrank_order = \"topology\"\n";
  const auto job = machine.job(with({"--config=job.toml"})).spec;
  CHECK(job.topology == "r7");
  CHECK(job.rank_order_topology);
}

TEST_CASE("topology address: one that is none is refused, or ignored if Slurm says it") {
  const FakeMachine machine;
  CHECK(
      machine.refusal(with({"--topology", "rack 1"})) ==
      "2: --topology on the command line: 'rack 1': it has a byte that is not printable ASCII, or "
      "a space");
  CHECK(contains(machine.refusal(with({"--topology", "a..b"})), "one of its levels is empty"));
  CHECK(contains(machine.refusal(with({"--topology", std::string(300, 'x')})),
                 "it has 300 bytes, more than 256"));
  CHECK(contains(machine.refusal(with({"--topology=r\xc3\xa4"})), "not printable ASCII"));
  CHECK(contains(machine.refusal(with({"--topology=1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17"})),
                 "it has 17 levels, more than 16"));
  CHECK(contains(machine.refusal({"--rank-order=rack", "train.py"}), "rank-order"));
  const auto job = in_slurm("s 0.node7", "switch.node").job(kOrdered);
  CHECK(job.spec.topology.empty());
  CHECK(contains(job.warnings.back(), "SLURM_TOPOLOGY_ADDR 's 0': it has a byte"));
  CHECK(contains(explain_text(job), "by host name"));
}

TEST_CASE("topology address: where the order has no effect, a warning says so") {
  const FakeMachine machine;
  const auto fixed = machine.job({"--nnodes=2", "--rank-order=topology", "train.py"});
  CHECK(contains(fixed.warnings.back(), "no effect with the backend static: --node-rank"));
  const auto unused = machine.job({"--topology=r1", "train.py"});
  CHECK(contains(unused.warnings.back(), "no effect without --rank-order topology"));
  CHECK(machine.job({"--rank-order=topology", "train.py"}).warnings.empty());  // one node
}

}  // namespace elastrun::spec
