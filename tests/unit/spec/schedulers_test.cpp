// SPDX-License-Identifier: Apache-2.0
#include "spec/schedulers.hpp"

#include "spec/resolve.hpp"
#include "unit/spec/fakes.hpp"

#include <array>
#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

FakeMachine on(std::map<std::string, std::string> variables) {
  FakeMachine machine;
  machine.variables.merge(variables);
  return machine;
}

FakeMachine in_slurm_step() {
  return on({{"SLURM_JOB_ID", "31"},
             {"SLURM_JOB_NUM_NODES", "4"},
             {"SLURM_NODEID", "1"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_NODELIST", "gpu[07-08]"},
             {"SLURM_STEP_NUM_NODES", "2"},
             {"SLURM_STEP_NUM_TASKS", "2"}});
}

}  // namespace

TEST_CASE("schedulers: Slurm gives nodes, rank, endpoint and run id of the step") {
  auto machine = in_slurm_step();
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.min_nodes == 2);
  CHECK(job.spec.max_nodes == 2);
  CHECK(!job.spec.standalone);
  CHECK(job.spec.rdzv_backend == "c10d");
  CHECK(job.spec.rdzv_endpoint.starts_with("gpu07:"));
  CHECK(job.spec.run_id == "slurm-31.0");
  CHECK(job.spec.node_rank == 1);
  CHECK(job.spec.rdzv_conf.at("is_host") == "0");
  CHECK(job.warnings.empty());
  CHECK(job.values[Opt::Nnodes].source == "SLURM_STEP_NUM_NODES (Slurm)");
  CHECK(contains(explain_text(job), "SLURM_STEP_NODELIST (Slurm)"));
  machine.variables["SLURM_NODEID"] = "0";
  const auto first = machine.job({"train.py"});
  CHECK(first.spec.rdzv_conf.at("is_host") == "1");
  CHECK(first.spec.rdzv_endpoint == job.spec.rdzv_endpoint);
}

TEST_CASE("schedulers: equal job ids of two clusters, or two users, are two jobs") {
  auto machine = in_slurm_step();
  machine.variables["SLURM_CLUSTER_NAME"] = "north";
  machine.variables["SLURM_JOB_USER"] = "ada";
  const auto north = machine.job({"train.py"}).spec;
  CHECK(north.run_id == "slurm-north-ada-31.0");
  machine.variables["SLURM_CLUSTER_NAME"] = "so/uth";
  const auto south = machine.job({"train.py"}).spec;
  CHECK(south.run_id == "slurm-so-uth-ada-31.0");
  CHECK(south.rdzv_endpoint != north.rdzv_endpoint);
  machine.variables.erase("SLURM_JOB_USER");
  machine.variables["SLURM_JOB_UID"] = "1007";
  CHECK(machine.job({"train.py"}).spec.run_id == "slurm-so-uth-1007-31.0");
}

TEST_CASE("schedulers: a requeued job of Slurm keeps its run id and is another start of it") {
  auto machine = in_slurm_step();
  const auto first = machine.job({"train.py"}).spec;
  CHECK(first.job_start == "/0");
  machine.variables["SLURM_RESTART_COUNT"] = "1";
  machine.variables["SLURM_JOB_START_TIME"] = "1700000000";
  const auto second = machine.job({"train.py"}).spec;
  CHECK(second.run_id == first.run_id);
  CHECK(second.rdzv_endpoint == first.rdzv_endpoint);
  CHECK(second.job_start == "1700000000/1");
  CHECK(machine.job({"--standalone", "train.py"}).spec.job_start.empty());
}

TEST_CASE("schedulers: a job of one node within Slurm keeps its run id over requeues") {
  const std::string random = on({}).job({"train.py"}).spec.run_id;
  auto batch = on({{"SLURM_JOB_ID", "31"}, {"SLURM_JOB_USER", "ada"}});
  const auto first = batch.job({"train.py", "--lr=1"}).spec;
  CHECK(first.standalone);
  CHECK(first.run_id.starts_with("slurm-ada-31.batch-"));
  batch.variables["SLURM_RESTART_COUNT"] = "1";
  CHECK(batch.job({"train.py", "--lr=1"}).spec.run_id == first.run_id);
  CHECK(batch.job({"--standalone", "train.py", "--lr=1"}).spec.run_id == first.run_id);
  CHECK_MESSAGE(batch.job({"train.py", "--lr=2"}).spec.run_id != first.run_id, "another command");
  batch.variables["SLURM_JOB_ID"] = "32";
  CHECK_MESSAGE(batch.job({"train.py", "--lr=1"}).spec.run_id != first.run_id, "of an array");
  batch.variables["TORCHELASTIC_RUN_ID"] = first.run_id;
  CHECK_MESSAGE(batch.job({"train.py"}).spec.run_id == random, "below another launcher");
}

TEST_CASE("schedulers: steps of Slurm and their tasks on one node have run ids of their own") {
  auto step = on({{"SLURM_JOB_ID", "31"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}});
  const auto first = step.job({"train.py"}).spec.run_id;
  CHECK(first.starts_with("slurm-31.0-"));
  step.variables["SLURM_STEP_ID"] = "1";
  CHECK(step.job({"train.py"}).spec.run_id.starts_with("slurm-31.1-"));
  step.variables["SLURM_STEP_NUM_TASKS"] = "2";
  CHECK(step.job({"train.py"}).spec.run_id.starts_with("slurm-31.1-0-"));
  step.variables["SLURM_PROCID"] = "1";
  CHECK(step.job({"train.py"}).spec.run_id.starts_with("slurm-31.1-1-"));
  step.variables.erase("SLURM_STEP_NUM_TASKS");
  step.variables["SLURM_HET_SIZE"] = "2";
  CHECK(step.job({"train.py"}).spec.run_id.starts_with("slurm-31.1-1-"));
}

TEST_CASE("schedulers: the command that starts a job of Slurm again is known") {
  auto machine = in_slurm_step();
  CHECK(machine.job({"train.py"}).spec.requeue_command == "scontrol requeue 31");
  CHECK(machine.job({"--standalone", "train.py"}).spec.requeue_command == "scontrol requeue 31");
  machine.variables["SLURM_JOB_ID"] = "31; reboot";
  CHECK(machine.job({"train.py"}).spec.requeue_command.empty());
  machine.variables.erase("SLURM_JOB_ID");
  CHECK(machine.job({"train.py"}).spec.requeue_command.empty());
}

TEST_CASE("schedulers: an explicit option always wins") {
  auto machine = in_slurm_step();
  CHECK(machine.job({"--standalone", "train.py"}).spec.max_nodes == 1);
  CHECK(machine.job({"--nnodes=1", "train.py"}).spec.standalone);
  CHECK(machine.job({"--rdzv-endpoint=h:1", "--rdzv-backend=c10d", "train.py"}).spec.max_nodes ==
        1);
  CHECK(machine.job({"--master-port=1", "train.py"}).spec.rdzv_backend == "static");
  const auto elastic =
      machine.job({"--nnodes=1:2", "--rdzv-id=mine", "--rdzv-conf=is_host=yes", "train.py"});
  CHECK(elastic.spec.min_nodes == 1);
  CHECK(elastic.spec.rdzv_endpoint.starts_with("gpu07:"));
  CHECK(elastic.spec.run_id == "mine");
  CHECK(elastic.spec.rdzv_conf.at("is_host") == "yes");
  machine.variables["PET_NNODES"] = "1";
  CHECK(machine.job({"train.py"}).spec.standalone);
}

TEST_CASE(
    "schedulers: a process that is not one of one per node stays on its node, with the reason") {
  auto batch = in_slurm_step();
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"}) {
    batch.variables.erase(name);
  }
  const auto job = batch.job({"train.py"});
  CHECK(job.spec.standalone);
  REQUIRE(job.warnings.size() == 1);
  CHECK(contains(job.warnings[0], "srun --ntasks-per-node=1"));
  auto crowded = in_slurm_step();
  crowded.variables["SLURM_STEP_NUM_TASKS"] = "16";
  CHECK(crowded.job({"train.py"}).spec.standalone);
  CHECK(crowded.job({"train.py"}).warnings.size() == 1);
}

TEST_CASE("schedulers: in the shell of srun --pty one node is used, and srun from there uses all") {
  auto machine = in_slurm_step();
  machine.variables.merge(
      std::map<std::string, std::string>{{"SLURM_PTY_PORT", "44881"}, {"SLURM_TASK_PID", "64"}});
  // As a real Slurm shows it: what is typed has a process group of its own, on a terminal. The
  // agent is below its guardian, and always has a group of its own.
  machine.files["/proc/64/stat"] = "64 (bash) S 40 64 64 34817 418 4194304 1 0 0 0\n";
  machine.files["/proc/418/stat"] = "418 (a) b) S 64 418 64 34817 418 4194304 1 0 0 0\n";
  machine.files["/proc/self/stat"] =
      "420 (elastrun-agent) R 418 420 64 34817 418 4194304 1 0 0 0\n";
  const auto typed = machine.job({"train.py"});
  CHECK(typed.spec.standalone);
  REQUIRE(typed.warnings.size() == 1);
  CHECK(contains(typed.warnings[0], "srun --overlap --ntasks-per-node=1"));
  // The task itself, which leads its session; what a script of it starts; and what srun starts from
  // that shell: it inherits SLURM_PTY_PORT, but no terminal.
  for (const char* guardian :
       {"64 (a) b) S 40 64 64 34817 64 4194304 1 0 0 0",
        "418 (a) b) S 64 64 64 34817 64 4194304 1 0 0 0",
        "64 (a) b) S 40 64 40 0 -1 4194304 1 0 0 0", "99 (a) b) S 98 98 40 0 -1 4194304 1 0 0 0"}) {
    CAPTURE(guardian);
    machine.files["/proc/418/stat"] = guardian;
    CHECK(machine.job({"train.py"}).spec.max_nodes == 2);
    CHECK(machine.job({"train.py"}).warnings.empty());
  }
  // A guardian that had children already is below another one of its name.
  machine.files["/proc/418/stat"] = "418 (a) b) S 64 418 64 34817 418 4194304 1 0 0 0";
  machine.files["/proc/64/stat"] = "64 (a) b) S 40 64 64 34817 418 4194304 1 0 0 0";
  CHECK(machine.job({"train.py"}).spec.max_nodes == 2);
}

TEST_CASE("schedulers: one node, and the workers of a launcher, are left alone") {
  auto single = in_slurm_step();
  single.variables["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(single.job({"train.py"}).spec.standalone);
  CHECK(single.job({"train.py"}).warnings.empty());
  auto nested = in_slurm_step();
  nested.variables["TORCHELASTIC_RUN_ID"] = "outer";
  CHECK(nested.job({"train.py"}).spec.standalone);
  auto worker =
      on({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}});
  CHECK(worker.job({"train.py"}).spec.standalone);
}

TEST_CASE("schedulers: Open MPI with one process per node") {
  auto machine = on({{"OMPI_COMM_WORLD_SIZE", "3"},
                     {"OMPI_COMM_WORLD_RANK", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                     {"PMIX_NAMESPACE", "prterun-h-77@1"},
                     {"OMPI_MCA_orte_hnp_uri", "77.0;tcp://10.0.0.1,192.168.0.1:4513"}});
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.max_nodes == 3);
  CHECK(job.spec.node_rank == 2);
  CHECK(job.spec.rdzv_endpoint.starts_with("10.0.0.1:"));
  CHECK(job.spec.run_id == "ompi-prterun-h-77-1");
  CHECK(!job.spec.rdzv_conf.contains("is_host"));
  // Under Slurm, mpirun's own step says nothing about the processes of mpirun.
  machine.variables.merge(std::map(in_slurm_step().variables));
  machine.variables["SLURM_JOB_NODELIST"] = "gpu[05-08]";
  CHECK(machine.job({"train.py"}).spec.rdzv_endpoint.starts_with("gpu05:"));
  CHECK(machine.job({"train.py"}).spec.rdzv_conf.at("is_host") == "0");
  machine.variables["MASTER_ADDR"] = "fd00::1";
  machine.variables["MASTER_PORT"] = "5000";
  CHECK(machine.job({"train.py"}).spec.rdzv_endpoint == "[fd00::1]:5000");
  machine.variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  CHECK(machine.job({"train.py"}).spec.standalone);
  CHECK(machine.job({"train.py"}).warnings.size() == 1);
}

TEST_CASE("schedulers: PBS by its node file, for processes of pbsdsh") {
  auto machine = on({{"PBS_JOBID", "12.head"},
                     {"PBS_NODEFILE", "/nodes"},
                     {"PBS_TASKNUM", "3"},
                     {"PBS_NODENUM", "1"}});
  machine.files["/nodes"] = "c1\nc1\nc2\n";
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.max_nodes == 2);
  CHECK(job.spec.node_rank == 1);
  CHECK(job.spec.rdzv_endpoint.starts_with("c1:"));
  CHECK(job.spec.run_id == "pbs-12.head");
  machine.variables["PBS_O_LOGNAME"] = "ada";
  CHECK(machine.job({"train.py"}).spec.run_id == "pbs-ada-12.head");
  machine.variables["PBS_TASKNUM"] = "1";
  CHECK(machine.job({"train.py"}).spec.standalone);
  CHECK(contains(machine.job({"train.py"}).warnings.at(0), "pbsdsh"));
  machine.files["/nodes"] = "c1\nc1\n";
  CHECK(machine.job({"train.py"}).warnings.empty());
}

TEST_CASE("schedulers: a PyTorchJob names its master") {
  auto machine = on({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                     {"MASTER_ADDR", "bert-master-0"},
                     {"MASTER_PORT", "23456"},
                     {"RANK", "0"},
                     {"WORLD_SIZE", "2"}});
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.max_nodes == 2);
  CHECK(job.spec.rdzv_endpoint == "bert-master-0:23456");
  CHECK(job.spec.run_id == "pytorchjob");
  CHECK(job.spec.rdzv_conf.at("is_host") == "1");
  machine.variables["RANK"] = "2";
  const auto refusal = machine.run({"train.py"}).error();
  CHECK(refusal.exit_code == 2);
  CHECK(refusal.text == "RANK 2 is not a rank of 2 nodes");
  CHECK(contains(refusal.hint, "WORLD_SIZE"));
}

TEST_CASE("schedulers: Kubeflow's variables place a node, and a pod created again can join") {
  auto machine = on({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                     {"JOB_COMPLETION_INDEX", "1"},
                     {"PET_NNODES", "2"},
                     {"PET_NPROC_PER_NODE", "2"},
                     {"PET_NODE_RANK", "1"},
                     {"PET_MASTER_ADDR", "bert-node-0-0.bert"},
                     {"PET_MASTER_PORT", "29500"}});
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.rdzv_backend == "c10d");
  CHECK(job.spec.rdzv_endpoint == "bert-node-0-0.bert:29500");
  CHECK(job.spec.run_id == "bert-node-0-0");
  CHECK(job.spec.node_rank == 1);
  CHECK(job.spec.max_nodes == 2);
  CHECK(job.spec.rdzv_conf.at("is_host") == "0");
  CHECK(job.warnings.empty());
  CHECK(machine.job({"--rdzv-id=mine", "train.py"}).spec.run_id == "mine");
  // What a person has said wins, and so does what names another backend.
  CHECK(machine.job({"--rdzv-backend=static", "train.py"}).spec.rdzv_backend == "static");
  CHECK(machine.job({"--node-rank=1", "train.py"}).spec.rdzv_backend == "static");
  CHECK(machine.job({"--nnodes=1", "--node-rank=0", "train.py"}).spec.rdzv_backend == "static");
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"PET_NNODES", "1"},
                                                        {"KUBERNETES_SERVICE_HOST", ""},
                                                        {"TORCHELASTIC_RUN_ID", "outer"}}) {
    CAPTURE(name);
    auto other = machine;
    other.variables[name] = value;
    other.variables["PET_NODE_RANK"] = "0";
    CHECK(other.job({"train.py"}).spec.rdzv_backend == "static");
  }
}

TEST_CASE("schedulers: a master that its operator tells \"localhost\" meets its workers") {
  using Variables = std::map<std::string, std::string>;
  const auto both = [](Variables master, Variables worker) {
    for (auto* pod : {&master, &worker}) pod->emplace("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    master.emplace("HOSTNAME", "bert-master-0"), worker.emplace("HOSTNAME", "bert-worker-0");
    const auto one = on(master).job({"train.py"}), other = on(worker).job({"train.py"});
    CHECK(one.spec.run_id == other.spec.run_id);
    for (const auto* pod : {&one, &other}) {
      CHECK(pod->spec.rdzv_backend == "c10d");
      CHECK(pod->spec.max_nodes == 2);
      CHECK(pod->warnings.empty());
    }
    CHECK(one.spec.rdzv_conf.at("is_host") == "1");
    CHECK(other.spec.rdzv_conf.at("is_host") == "0");
    return other.spec.run_id + " " + other.spec.rdzv_endpoint;
  };
  for (const auto* own : {"localhost", "127.0.0.1"}) {
    CHECK(both({{"MASTER_ADDR", own}, {"MASTER_PORT", "77"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}},
               {{"MASTER_ADDR", "bert-master-0"},
                {"MASTER_PORT", "77"},
                {"RANK", "1"},
                {"WORLD_SIZE", "2"}}) == "pytorchjob bert-master-0:77");
    const auto pet = [](const char* address, const char* rank) {
      return Variables{{"PET_MASTER_ADDR", address},
                       {"PET_MASTER_PORT", "77"},
                       {"PET_NODE_RANK", rank},
                       {"PET_NNODES", "2"}};
    };
    CHECK(both(pet(own, "0"), pet("bert-master-0", "1")) == "pytorchjob bert-master-0:77");
    // With hostNetwork a pod is called as its machine.
    auto master = pet(own, "0");
    master.emplace("HOSTNAME", "machine7");
    CHECK(both(master, pet("bert-master-0", "1")) == "pytorchjob bert-master-0:77");
  }
  CHECK(both({{"MASTER_ADDR", "localhost"},
              {"MASTER_PORT", "77"},
              {"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"HOSTNAME", "machine7"}},
             {{"MASTER_ADDR", "bert-master-0"},
              {"MASTER_PORT", "77"},
              {"RANK", "1"},
              {"WORLD_SIZE", "2"}}) == "pytorchjob bert-master-0:77");
  // Neither a port nor a name.
  CHECK(both({{"MASTER_ADDR", "localhost"},
              {"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"HOSTNAME", "machine7"}},
             {{"MASTER_ADDR", "10.0.0.9"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}) ==
        "pytorchjob 10.0.0.9:29400");
}

TEST_CASE("schedulers: Kubernetes tells the place, the user the number of nodes") {
  auto machine = on({{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "bert-2"}});
  CHECK(machine.job({"train.py"}).spec.standalone);
  const auto job = machine.job({"--nnodes=4", "train.py"});
  CHECK(job.spec.rdzv_endpoint == "bert-0:29400");
  CHECK(job.spec.run_id == "bert");
  CHECK(job.spec.node_rank == 2);
  CHECK(job.spec.rdzv_conf.at("is_host") == "0");
  machine.files["/etc/hosts"] =
      "127.0.0.1 localhost\n10.1.0.9\tbert-2.web.ns.svc.cluster.local\tbert-2\n";
  CHECK(machine.job({"--nnodes=4", "train.py"}).spec.rdzv_endpoint ==
        "bert-0.web.ns.svc.cluster.local:29400");
  machine.variables["HOSTNAME"] = "node17";
  CHECK(contains(machine.job({"--nnodes=4", "train.py"}).warnings.at(0), "--rdzv-endpoint"));
  machine.variables.merge(std::map<std::string, std::string>{
      {"JOBSET_NAME", "set"}, {"REPLICATED_JOB_NAME", "workers"}, {"JOB_INDEX", "1"}});
  const auto set = machine.job({"--nnodes=4", "train.py"});
  CHECK(set.spec.rdzv_endpoint == "set-workers-0-0.set:29400");
  CHECK(set.spec.run_id == "set");
  CHECK(set.spec.rdzv_conf.at("is_host") == "0");
}

TEST_CASE("schedulers: nodes meet at the first host of Slurm's list") {
  auto machine = in_slurm_step();
  using Row = std::array<std::string_view, 2>;
  for (const auto& [list, host] :
       {Row{"n1", "n1"}, Row{"n1,m2", "n1"}, Row{"n[01-03,7],m1", "n01"}, Row{"n[7,01]", "n7"},
        Row{"n[098-101]", "n098"}, Row{"r[1-2]c[3-4].x", "r1c3.x"}, Row{"", ""}, Row{"n[1", ""},
        Row{"n1]", ""}, Row{"n[[1]]", ""}, Row{"n[a]", ""}, Row{"n[]", ""}, Row{"[", ""}}) {
    CAPTURE(list);
    machine.variables["SLURM_STEP_NODELIST"] = list;
    const auto job = machine.job({"train.py"});
    CHECK(job.spec.standalone == host.empty());
    CHECK((host.empty() ? contains(job.warnings.at(0), "names no hosts")
                        : job.spec.rdzv_endpoint.starts_with(std::string(host) + ":")));
  }
}

}  // namespace elastrun::spec
