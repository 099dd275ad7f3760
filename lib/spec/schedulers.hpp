// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/sources.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// This agent's place as a cluster scheduler tells it, by the variables it gives to a process
/// that it started on each of several nodes.
struct Placement {
  std::string scheduler;        // "Slurm", for people
  std::vector<Override> given;  // nnodes, rdzv-backend, rdzv-endpoint, rdzv-id, node-rank
  /// True if this node hosts the rendezvous; nothing where the variables do not tell.
  std::optional<bool> is_host;
  /// Which start of the job this is: "1700000000/1", its time and how often it was requeued, as far
  /// as that is told. The run id stays the same over requeues, so that what counts over them
  /// belongs together; an agent that an earlier start has left behind must not join all the same.
  std::string start;
};

/// The run id is the same on all nodes and over requeues, and names cluster and user where these
/// are told: job ids begin with 1 on each cluster.
///
/// Slurm, Open MPI, PBS, a Kubernetes Indexed Job or JobSet, or a PyTorchJob: found by documented
/// variables, in this order of trust: Open MPI (it may itself run under Slurm), Slurm, PBS,
/// PyTorchJob, Kubernetes. Nothing if there is one node only, if this is the worker of another
/// launcher, or if the process was not started once per node; why not goes into `warnings` where
/// the user can do something about it.
///
/// `nodes_given` is the number of nodes that the user gave, or 0. Kubernetes tells no number, so
/// without one the placement is unknown.
std::optional<Placement> find_placement(const HostEnvironment& around, int nodes_given,
                                        std::vector<std::string>& warnings);

/// The place of a pod of Kubeflow (Trainer, PyTorchJob), whose operator names node 0 and the rank
/// of this one by PET_MASTER_ADDR, PET_MASTER_PORT and PET_NODE_RANK, as torchrun's static backend
/// wants them: c10d at that address, where a pod that is created again joins. Nothing outside of a
/// pod.
std::optional<Placement> find_kubeflow_placement(const HostEnvironment& around);

/// The run id of a job of one node within Slurm, by which its requeues belong together:
/// "slurm-CLUSTER-USER-JOB.STEP-SUM". STEP is "batch" where srun has not started it, and has the
/// number of the task where a step has several; SUM tells apart what one step runs by `command`,
/// the script and its arguments. Empty elsewhere, and for the worker of another launcher.
std::string single_node_run_id(const HostEnvironment& around, std::string_view command);

/// The command that starts this job again: "scontrol requeue 4711" under Slurm, also where the
/// nodes were given by hand. Empty if there is none.
std::string requeue_command(const HostEnvironment& around);

/// Fills what says how nodes meet: backend, endpoint, run id, master address and port, node rank,
/// configuration, topology. `min_nodes` and `max_nodes` are set already. Applies torchrun's rules:
/// --standalone, or one node with nothing said about rendezvous, is c10d on localhost:0 with a
/// random run id. What these rules drop although it was given is a warning; what they decide is
/// written into the values as implied. `place` is what the scheduler knows: who hosts the
/// rendezvous (the user's own is_host in --rdzv-conf wins), and which start of the job this is.
std::optional<Refusal> choose_rendezvous(Resolved& job, const HostEnvironment& around,
                                         const std::optional<Placement>& place);

}  // namespace elastrun::spec
