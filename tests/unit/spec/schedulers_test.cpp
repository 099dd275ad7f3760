// SPDX-License-Identifier: Apache-2.0
#include "spec/sources.hpp"
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

/// "RANK/NODES BACKEND ENDPOINT ID is_host=X", then each warning; one node alone is "one".
std::string place(const FakeMachine& machine, Words words = {}) {
  words.emplace_back("train.py");
  const auto job = machine.job(words);
  const auto& spec = job.spec;
  const auto host = spec.rdzv_conf.find("is_host");
  const auto all = fmt::format("{}/{} {} {} {} is_host={}", spec.node_rank, spec.max_nodes,
                               spec.rdzv_backend, spec.rdzv_endpoint, spec.run_id,
                               host == spec.rdzv_conf.end() ? "?" : host->second);
  return (spec.standalone ? "one" : all) + (job.warnings.empty() ? "" : "\n") +
         join(job.warnings, "\n");
}

}  // namespace

TEST_CASE("schedulers: Slurm gives nodes, rank, endpoint and run id of the step") {
  auto machine = in_slurm_step();
  CHECK(place(machine) == "1/2 c10d gpu07:29742 slurm-31.0 is_host=0");
  const auto job = machine.job({"train.py"});
  CHECK(job.spec.min_nodes == 2);
  CHECK(job.values["nnodes"_opt].source == "SLURM_STEP_NUM_NODES (Slurm)");
  CHECK(contains(explain_text(job), "SLURM_STEP_NODELIST (Slurm)"));
  machine.variables["SLURM_NODEID"] = "0";
  CHECK(place(machine) == "0/2 c10d gpu07:29742 slurm-31.0 is_host=1");
}

TEST_CASE("schedulers: equal job ids of two clusters, or two users, are two jobs") {
  auto machine = in_slurm_step();
  machine.variables["SLURM_CLUSTER_NAME"] = "north";
  machine.variables["SLURM_JOB_USER"] = "ada";
  CHECK(place(machine) == "1/2 c10d gpu07:29557 slurm-north-ada-31.0 is_host=0");
  machine.variables["SLURM_CLUSTER_NAME"] = "so/uth";
  CHECK(place(machine) == "1/2 c10d gpu07:29678 slurm-so-uth-ada-31.0 is_host=0");
  machine.variables.erase("SLURM_JOB_USER");
  machine.variables["SLURM_JOB_UID"] = "1007";
  CHECK(place(machine) == "1/2 c10d gpu07:29656 slurm-so-uth-1007-31.0 is_host=0");
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
  CHECK(place(machine, {"--standalone"}) == "one");
  CHECK(place(machine, {"--nnodes=1"}) == "one");
  CHECK(place(machine, {"--rdzv-endpoint=h:1", "--rdzv-backend=c10d"}) ==
        "0/1 c10d h:1 none is_host=?");
  CHECK(place(machine, {"--master-port=1"}) == "0/1 static 127.0.0.1:1 none is_host=?");
  const Words elastic{"--nnodes=1:2", "--rdzv-id=mine", "--rdzv-conf=is_host=yes"};
  CHECK(place(machine, elastic) == "1/2 c10d gpu07:29742 mine is_host=yes");
  machine.variables["PET_NNODES"] = "1";
  CHECK(place(machine) == "one");
}

TEST_CASE(
    "schedulers: a process that is not one of one per node stays on its node, with the reason") {
  auto batch = in_slurm_step();
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"}) {
    batch.variables.erase(name);
  }
  CHECK(place(batch).starts_with("one\nSlurm gave this job 4 nodes"));
  CHECK(contains(place(batch), "srun --ntasks-per-node=1"));
  auto crowded = in_slurm_step();
  crowded.variables["SLURM_STEP_NUM_TASKS"] = "16";
  CHECK(place(crowded).starts_with("one\nsrun started 16 tasks on 2 nodes"));
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
  CHECK(place(machine).starts_with("one\nSlurm gave this step 2 nodes"));
  CHECK(contains(place(machine), "srun --overlap --ntasks-per-node=1"));
  // The task itself, which leads its session; what a script of it starts; and what srun starts from
  // that shell: it inherits SLURM_PTY_PORT, but no terminal.
  for (const char* guardian :
       {"64 (a) b) S 40 64 64 34817 64 4194304 1 0 0 0",
        "418 (a) b) S 64 64 64 34817 64 4194304 1 0 0 0",
        "64 (a) b) S 40 64 40 0 -1 4194304 1 0 0 0", "99 (a) b) S 98 98 40 0 -1 4194304 1 0 0 0"}) {
    CAPTURE(guardian);
    machine.files["/proc/418/stat"] = guardian;
    CHECK(place(machine) == "1/2 c10d gpu07:29742 slurm-31.0 is_host=0");
  }
  // A guardian that had children already is below another one of its name.
  machine.files["/proc/418/stat"] = "418 (a) b) S 64 418 64 34817 418 4194304 1 0 0 0";
  machine.files["/proc/64/stat"] = "64 (a) b) S 40 64 64 34817 418 4194304 1 0 0 0";
  CHECK(machine.job({"train.py"}).spec.max_nodes == 2);
}

TEST_CASE("schedulers: one node, and the workers of a launcher, are left alone") {
  auto single = in_slurm_step();
  single.variables["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(place(single) == "one");
  auto nested = in_slurm_step();
  nested.variables["TORCHELASTIC_RUN_ID"] = "outer";
  CHECK(place(nested) == "one");
  CHECK(
      place(on({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}})) ==
      "one");
}

TEST_CASE("schedulers: Open MPI with one process per node") {
  auto machine = on({{"OMPI_COMM_WORLD_SIZE", "3"},
                     {"OMPI_COMM_WORLD_RANK", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                     {"PMIX_NAMESPACE", "prterun-h-77@1"},
                     {"OMPI_MCA_orte_hnp_uri", "77.0;tcp://10.0.0.1,192.168.0.1:4513"}});
  const std::string id = " ompi-prterun-h-77-1 is_host=";
  CHECK(place(machine) == "2/3 c10d 10.0.0.1:29604" + id + "?");
  // Under Slurm, mpirun's own step says nothing about the processes of mpirun.
  machine.variables.merge(std::map(in_slurm_step().variables));
  machine.variables["SLURM_JOB_NODELIST"] = "gpu[05-08]";
  CHECK(place(machine) == "2/3 c10d gpu05:29604" + id + "0");
  machine.variables["MASTER_ADDR"] = "fd00::1";
  machine.variables["MASTER_PORT"] = "5000";
  CHECK(place(machine) == "2/3 c10d [fd00::1]:5000" + id + "0");
  machine.variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  CHECK(place(machine).starts_with("one\nmpirun started several processes on this node"));
}

TEST_CASE("schedulers: PBS by its node file, for processes of pbsdsh") {
  auto machine = on({{"PBS_JOBID", "12.head"},
                     {"PBS_NODEFILE", "/nodes"},
                     {"PBS_TASKNUM", "3"},
                     {"PBS_NODENUM", "1"}});
  machine.files["/nodes"] = "c1\nc1\nc2\n";
  CHECK(place(machine) == "1/2 c10d c1:30161 pbs-12.head is_host=0");
  machine.variables["PBS_O_LOGNAME"] = "ada";
  CHECK(place(machine) == "1/2 c10d c1:30122 pbs-ada-12.head is_host=0");
  machine.variables["PBS_TASKNUM"] = "1";
  CHECK(place(machine).starts_with("one\nPBS gave this job 2 nodes"));
  CHECK(contains(place(machine), "pbsdsh"));
  machine.files["/nodes"] = "c1\nc1\n";
  CHECK(place(machine) == "one");
}

TEST_CASE("schedulers: a PyTorchJob names its master") {
  auto machine = on({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                     {"MASTER_ADDR", "bert-master-0"},
                     {"MASTER_PORT", "23456"},
                     {"RANK", "0"},
                     {"WORLD_SIZE", "2"}});
  CHECK(place(machine) == "0/2 c10d bert-master-0:23456 pytorchjob is_host=1");
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
  CHECK(place(machine) == "1/2 c10d bert-node-0-0.bert:29500 bert-node-0-0 is_host=0");
  CHECK(place(machine, {"--rdzv-id=mine"}) == "1/2 c10d bert-node-0-0.bert:29500 mine is_host=0");
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
  const auto pod = [](const char* address, const char* rank, const char* host) {
    return Variables{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                     {"HOSTNAME", host},
                     {"MASTER_ADDR", address},
                     {"MASTER_PORT", "77"},
                     {"RANK", rank},
                     {"WORLD_SIZE", "2"}};
  };
  const auto pet = [](const char* address, const char* rank, const char* host) {
    return Variables{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                     {"HOSTNAME", host},
                     {"PET_MASTER_ADDR", address},
                     {"PET_MASTER_PORT", "77"},
                     {"PET_NODE_RANK", rank},
                     {"PET_NNODES", "2"}};
  };
  for (const auto variables : {+pod, +pet}) {
    for (const std::string own : {"localhost", "127.0.0.1"}) {
      // With hostNetwork a pod is called as its machine.
      for (const auto* host : {"bert-master-0", "machine7"}) {
        CHECK(place(on(variables(own.c_str(), "0", host))) ==
              "0/2 c10d " + own + ":77 pytorchjob is_host=1");
      }
    }
    CHECK(place(on(variables("bert-master-0", "1", "bert-worker-0"))) ==
          "1/2 c10d bert-master-0:77 pytorchjob is_host=0");
  }
  // Neither a port nor a name.
  auto master = pod("localhost", "0", "machine7"), worker = pod("10.0.0.9", "1", "bert-worker-0");
  for (auto* one : {&master, &worker}) one->erase("MASTER_PORT");
  CHECK(place(on(master)) == "0/2 c10d localhost:29400 pytorchjob is_host=1");
  CHECK(place(on(worker)) == "1/2 c10d 10.0.0.9:29400 pytorchjob is_host=0");
}

TEST_CASE("schedulers: Kubernetes tells the place, the user the number of nodes") {
  auto machine = on({{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "bert-2"}});
  const Words four{"--nnodes=4"};
  CHECK(place(machine) == "one");
  CHECK(place(machine, four) == "2/4 c10d bert-0:29400 bert is_host=0");
  machine.files["/etc/hosts"] =
      "127.0.0.1 localhost\n10.1.0.9\tbert-2.web.ns.svc.cluster.local\tbert-2\n";
  CHECK(place(machine, four) == "2/4 c10d bert-0.web.ns.svc.cluster.local:29400 bert is_host=0");
  machine.variables["HOSTNAME"] = "node17";
  CHECK(contains(machine.job({"--nnodes=4", "train.py"}).warnings.at(0), "--rdzv-endpoint"));
  machine.variables.merge(std::map<std::string, std::string>{
      {"JOBSET_NAME", "set"}, {"REPLICATED_JOB_NAME", "workers"}, {"JOB_INDEX", "1"}});
  CHECK(place(machine, four) == "0/4 c10d set-workers-0-0.set:29400 set is_host=0");
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
