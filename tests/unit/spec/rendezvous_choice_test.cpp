// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/sources.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

constexpr const char* kUuid = "00000000-0000-4000-8000-000000000010";

bool has_warning(const Resolved& job, std::string_view part) {
  for (const auto& warning : job.warnings) {
    if (contains(warning, part)) return true;
  }
  return false;
}

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

TEST_CASE("rendezvous choice: what the rules of one node drop is said") {
  FakeMachine machine;
  const auto implicit = machine.job({"--rdzv-id=mine", "train.py"});
  CHECK(implicit.spec.run_id == kUuid);
  CHECK(has_warning(implicit, "--rdzv-id=mine is not used, except as the job's name: one node"));
  const auto asked = machine.job(
      {"--standalone", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1", "--rdzv-id=x", "train.py"});
  CHECK(asked.spec.rdzv_backend == "c10d");
  CHECK(has_warning(asked,
                    "--rdzv-backend=etcd, --rdzv-endpoint=h:1, --rdzv-id=x is not used, except"));
  const auto port = machine.job({"--standalone", "--master-port", "70000", "train.py"});
  CHECK(has_warning(port, "--master-port=70000 is not used: --standalone overrides it"));
  const auto ranked = machine.job({"--node-rank", "-1", "train.py"});
  CHECK(has_warning(ranked, "--node-rank has no effect with the backend"));
  CHECK(
      machine
          .job({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=mine", "train.py"})
          .spec.run_id == "mine");
}

TEST_CASE("rendezvous choice: static knows node 0 by address and port") {
  FakeMachine machine;
  const auto one = machine.job({"--master-addr=n0", "--master-port=1234", "train.py"}).spec;
  for (const auto* own : {"fd00::1", "[fd00::1]"}) {
    const auto six = machine.job({"--nnodes=2", "--master-addr", own, "train.py"}).spec;
    CHECK(six.rdzv_endpoint == "[fd00::1]:29500");
    CHECK(six.master_addr == "fd00::1");
  }
  CHECK(!one.standalone);
  CHECK(one.rdzv_backend == "static");
  CHECK(one.rdzv_endpoint == "n0:1234");
  CHECK(one.run_id == "none");
  CHECK(one.rdzv_conf.at("rank") == "0");
  CHECK(one.rdzv_conf.at("timeout") == "900");
  const auto two = machine.job({"--nnodes=2", "--node-rank=1", "train.py"}).spec;
  CHECK(two.master_addr == "127.0.0.1");
  CHECK(two.master_port == 29500);
  CHECK(two.node_rank == 1);
  CHECK(two.node_rank_given);
  const auto given =
      machine.job({"--nnodes=2", "--rdzv-endpoint=[::1]:77", "--master-addr=x", "train.py"});
  CHECK(given.spec.master_addr == "::1");
  CHECK(given.spec.master_port == 77);
  CHECK(has_warning(given, "--rdzv-endpoint is given"));
  CHECK(has_warning(machine.job({"--nnodes=1:2", "train.py"}), "always waits for all 2 nodes"));
  CHECK(machine.refusal({"--rdzv-endpoint=n0", "train.py"}) ==
        "1: port is missing in endpoint: n0. Try to specify --master-port");
  CHECK(contains(machine.refusal({"--master-port=70000", "train.py"}), "The port number"));
  CHECK(machine.refusal({"--nnodes=2", "--node-rank=2", "train.py"}) ==
        "1: --node-rank 2 is not a rank of 2 nodes");
  CHECK(
      machine.refusal({"--nnodes=2", "--node-rank=-1", "train.py"}).starts_with("1: --node-rank"));
}

TEST_CASE("rendezvous choice: several nodes are not to meet at an empty address") {
  FakeMachine machine;
  const auto refused = [&](const Words& words, std::string_view option, std::string_view source) {
    const auto refusal = machine.run(words).error();
    CHECK(refusal.exit_code == 2);
    CHECK(refusal.text.starts_with(std::string(option) + " is empty"));
    CHECK(contains(refusal.hint, source));
  };
  refused({"--nnodes=2", "--master-addr=", "train.py"}, "--master-addr", "command line");
  refused({"--nnodes=2", "--master-addr=", "--master-port=77", "train.py"}, "--master-addr",
          "command line");
  for (const auto* backend : {"static", "c10d", "etcd", "etcd-v2", "file"}) {
    refused({"--nnodes=1:2", "--rdzv-backend", backend, "--rdzv-endpoint=", "train.py"},
            "--rdzv-endpoint", "command line");
  }
  machine.variables["PET_RDZV_ENDPOINT"] = "";
  refused({"--nnodes=2", "--rdzv-backend=c10d", "train.py"}, "--rdzv-endpoint",
          "PET_RDZV_ENDPOINT");
  // What torchrun takes instead.
  CHECK(machine.job({"--nnodes=2", "--master-addr=n0", "train.py"}).spec.rdzv_endpoint ==
        "n0:29500");
  machine.variables = {{"PET_MASTER_ADDR", ""}};
  refused({"--nnodes=2", "train.py"}, "--master-addr", "PET_MASTER_ADDR");
  CHECK(machine.job({"--nnodes=1", "train.py"}).spec.standalone);
}

TEST_CASE("rendezvous choice: all addresses are those of the node that hosts") {
  FakeMachine machine;
  for (const auto* any : {"0.0.0.0:77", "[::]:77"}) {
    const Words c10d{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint", any};
    const auto with = [](Words words, const Words& more) {
      words.insert(words.end(), more.begin(), more.end());
      words.emplace_back("train.py");
      return words;
    };
    CHECK(machine.job(with(c10d, {})).warnings.empty());
    CHECK(machine.job(with(c10d, {"--rdzv-conf=is_host=1"})).warnings.empty());
    CHECK(contains(machine.refusal(with(c10d, {"--rdzv-conf=is_host=0"})), "means this node"));
    const Words fixed{"--nnodes=2", "--rdzv-endpoint", any};
    CHECK(machine.job(with(fixed, {})).warnings.empty());
    CHECK(contains(machine.refusal(with(fixed, {"--node-rank=1"})), "means this node"));
  }
}

TEST_CASE("rendezvous choice: nodes that are told no place hear that they meet on this machine") {
  FakeMachine machine;
  CHECK(has_warning(machine.job({"--nnodes=2", "train.py"}),
                    "--master-addr is not given: this node waits for the others at "
                    "127.0.0.1:29500, which other machines cannot reach"));
  CHECK(has_warning(machine.job({"--nnodes=2", "--node-rank=1", "train.py"}),
                    "--master-addr is not given: node 0 is looked for at 127.0.0.1:29500"));
  CHECK(has_warning(machine.job({"--nnodes=1:2", "--rdzv-backend=c10d", "train.py"}),
                    "--rdzv-endpoint is not given: this node waits for the others at "
                    "localhost:29400"));
  CHECK(machine.job({"--nnodes=2", "--master-addr=localhost", "train.py"}).warnings.empty());
  CHECK(machine.job({"--nnodes=1", "--rdzv-backend=c10d", "train.py"}).warnings.empty());
}

TEST_CASE("rendezvous choice: a node of several machines that is known by its loopback hears so") {
  FakeMachine machine;
  const auto warns = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--nnodes=2", "train.py"});
    return has_warning(machine.job(words), "other machines cannot reach this node there");
  };
  for (const std::string own : {"127.0.0.1", "localhost", "::1", "127.1.2.3"}) {
    CHECK(warns({"--local-addr=" + own, "--rdzv-backend=c10d", "--rdzv-endpoint=head:1"}));
    CHECK(warns({"--local-addr=" + own, "--master-addr=head"}));
    CHECK_FALSE(warns({"--local-addr=" + own, "--master-addr=127.0.0.1"}));
  }
  CHECK_FALSE(warns({"--local-addr=10.0.0.2", "--master-addr=head"}));
  CHECK(machine.job({"--local-addr=127.0.0.1", "train.py"}).warnings.empty());
}

TEST_CASE("rendezvous choice: backends and endpoints are checked before anybody connects") {
  FakeMachine machine;
  CHECK(machine.refusal({"--rdzv-backend=pigeon", "--rdzv-endpoint=localhost:1", "train.py"}) ==
        "1: The rendezvous backend 'pigeon' is not registered.");
  CHECK(machine.refusal({"--rdzv-backend=", "train.py"}) ==
        "1: A rendezvous backend needs a name, and this one is empty.");
  CHECK(contains(
      machine.refusal({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:70000", "train.py"}),
      "The port number of the rendezvous endpoint 'localhost:70000'"));
  CHECK(contains(machine.refusal({"--rdzv-backend=etcd", "--rdzv-endpoint=a:1,b:x", "train.py"}),
                 "The port number of the rendezvous endpoint 'b:x'"));
  CHECK(machine.refusal({"--rdzv-backend=etcd-v2", "--rdzv-endpoint=https://a:1,b:2",
                         "train.py"}) == "accepted");
  CHECK(
      contains(machine.refusal({"--rdzv-backend=file", "train.py"}), "needs --rdzv-endpoint DIR"));
  CHECK(machine.refusal({"--rdzv-backend=file", "--rdzv-endpoint=/shared/$x", "train.py"}) ==
        "accepted");
  CHECK(machine.refusal({"--rdzv-backend=c10d", "--rdzv-conf=store_type=file",
                         "--rdzv-endpoint=/tmp/a b", "train.py"}) == "accepted");
  machine.rdzv_backends = {"pigeon"};
  CHECK(machine.refusal({"--rdzv-backend=pigeon", "--rdzv-endpoint=a$b", "train.py"}) ==
        "accepted");
  CHECK(has_warning(machine.job({"--rdzv-backend=c10d", "--master-addr=x", "train.py"}),
                    "--master-addr has no effect"));
}

TEST_CASE("rendezvous choice: several nodes do not meet by a random id or at a random port") {
  FakeMachine machine;
  const auto refused = [&](const Words& words, std::string_view text, std::string_view hint) {
    const auto refusal = machine.run(words).error();
    CHECK(refusal.exit_code == 2);
    CHECK(refusal.text.starts_with(text));
    CHECK(contains(refusal.hint, hint));
  };
  refused({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-id=", "train.py"},
          "--rdzv-id is empty", "--rdzv-id on the command line");
  refused({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "train.py"},
          "'h:0' has port 0", "--rdzv-endpoint on the command line");
  refused({"--nnodes=2", "--master-addr=h", "--master-port=0", "train.py"}, "'h:0' has port 0",
          "--master-addr on the command line");
  CHECK(machine.job({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "train.py"})
            .spec.max_nodes == 2);
}

TEST_CASE("rendezvous choice: a password on the command line is warned of, elsewhere it is not") {
  FakeMachine machine;
  const Words etcd{"--rdzv-backend=etcd", "--rdzv-endpoint=e:2379", "--nnodes=2"};
  const auto with = [&](const std::string& conf) {
    auto words = etcd;
    if (!conf.empty()) words.push_back("--rdzv-conf=" + conf);
    words.push_back("train.py");
    return machine.job(words);
  };
  CHECK(has_warning(with("user=u,password=p"), "password_file=PATH"));
  CHECK_FALSE(has_warning(with("user=u,password_file=/secret"), "password_file=PATH"));
  machine.variables["PET_RDZV_CONF"] = "user=u,password=p";
  CHECK_FALSE(has_warning(with(""), "password_file=PATH"));
}

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
    std::string nvlink_domain() const override { throw std::runtime_error("asked"); }
  };
  for (const Words& words :
       {Words{"train.py"}, with({"--standalone"}, {"train.py"}), with({"--topology=rack1"})}) {
    CHECK(Unasked().refusal(words) == "accepted");
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
