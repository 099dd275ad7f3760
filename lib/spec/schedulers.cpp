// SPDX-License-Identifier: Apache-2.0

#include "core/text.hpp"
#include "spec/agreed_rules.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>

namespace elastrun::spec {
namespace {

/// The first name that Slurm's short form stands for: "r[01-03,7]c[2,4],m1" begins with r01c2. None
/// for a text of another form.
std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    std::size_t taken = 1;
    if (list.front() != '[') {
      host += list.front();
    } else {
      // The range's first number with its zeros, then whatever else the brackets hold.
      const auto number = list.substr(1, list.find_first_not_of("0123456789", 1) - 1);
      const auto close = list.find(']');
      if (number.empty() || close == list.npos) return std::nullopt;
      host += number;
      taken = close + 1;
    }
    list.remove_prefix(taken);
  }
  return host.empty() || host.contains(']') ? std::nullopt : std::optional(host);
}

struct Process {
  std::string name, parent, group, terminal;
};

// proc_pid_stat(5): "PID (NAME) STATE PARENT GROUP SESSION TERMINAL ...".
std::optional<Process> find_process(const HostEnvironment& around, const std::string& pid) {
  const auto stat = around.read_file(fmt::format("/proc/{}/stat", pid));
  if (!stat) return std::nullopt;
  const auto name = stat->find('('), name_end = stat->rfind(") ");
  if (name == std::string::npos || name_end == std::string::npos) return std::nullopt;
  const auto fields = split(std::string_view(*stat).substr(name_end + 2), ' ');
  if (fields.size() < 5) return std::nullopt;
  return Process{stat->substr(name + 1, name_end - name - 1), fields[1], fields[2], fields[4]};
}

// The agent has its own group, and so has a guardian below another one (process/guardian.hpp):
// what was started is the guardian on top.
std::optional<Process> find_started(const HostEnvironment& around) {
  auto found = find_process(around, "self");
  if (!found) return found;
  bool is_agent = found->name == "elastrun-agent";
  for (auto above = find_process(around, found->parent);
       above && (is_agent || above->name == found->name);
       above = find_process(around, found->parent)) {
    found = std::move(above);
    is_agent = false;
  }
  return found;
}

/// True if this program was typed into a shell with job control that runs as the process `task`, on
/// a terminal. Such a shell puts what is typed into process groups of their own; what the task is
/// itself, or a script of it starts, is in the task's group.
bool is_typed_in_shell(const HostEnvironment& around, std::int64_t task) {
  const auto started = find_started(around);
  // A shell gives each command that is typed a separate process group, and the task is the
  // shell's (credentials(7)); what srun starts itself stays in the task's group.
  return started && started->terminal != "0" && parse_int(started->group) != task;
}

using Text = std::optional<std::string>;

// Two jobs that share a node must not share a port: each takes its own out of a thousand below the
// kernel's range for outgoing connections (ip(7), ip_local_port_range).
constexpr int kFirstPort = kC10dPort, kPorts = 1000;
constexpr const char* kPytorchJob = "pytorchjob";  // the id that each of its pods knows

int port_of(std::string_view job) {
  unsigned sum = 0;
  // Computed by each node for itself, without a word between them: the same on all machines and in
  // all versions, which std::hash does not promise.
  for (const char c : job) sum = sum * 31 + static_cast<unsigned char>(c);
  return kFirstPort + static_cast<int>(sum % kPorts);
}

class Finder {
 public:
  Finder(const HostEnvironment& around, int nodes_given, std::vector<std::string>& warnings)
      : around_(around), nodes_given_(nodes_given), warnings_(warnings) {}

  std::optional<Placement> find() {
    // The workers of a launcher inherit the scheduler's variables, but have no node of their own.
    if (variable("TORCHELASTIC_RUN_ID")) return std::nullopt;
    // Open MPI first: mpirun inside an allocation starts its processes with the scheduler's
    // variables, too, but only its own tell them apart.
    for (const auto search : {&Finder::open_mpi, &Finder::slurm, &Finder::pbs, &Finder::pytorch_job,
                              &Finder::kubernetes}) {
      if (auto found = (this->*search)()) return found;
      if (decided_) return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<Placement> kubeflow() const {
    const auto host = variable("PET_MASTER_ADDR");
    const auto port = number("PET_MASTER_PORT"), rank = number("PET_NODE_RANK");
    if (!variable("KUBERNETES_SERVICE_HOST") || variable("TORCHELASTIC_RUN_ID") || !host || !port ||
        !rank) {
      return std::nullopt;
    }
    return placement(
        "Kubeflow",
        {{"node-rank"_opt, fmt::to_string(*rank), "PET_NODE_RANK"},
         {"rdzv-endpoint"_opt, endpoint(*host, *port), "PET_MASTER_ADDR, PET_MASTER_PORT"},
         {"rdzv-id"_opt, id_of_master(*host), "PET_MASTER_ADDR"}},
        *rank == 0);
  }

  std::string single_node_id(std::string_view command) const {
    const auto job = variable("SLURM_JOB_ID");
    if (!job || variable("TORCHELASTIC_RUN_ID")) return {};
    auto id = slurm_id(plain(*job), plain(variable("SLURM_STEP_ID").value_or("batch")));
    // A step that runs over the parts of a heterogeneous job counts its tasks over all of them.
    const bool several =
        number("SLURM_STEP_NUM_TASKS").value_or(1) > 1 || variable("SLURM_HET_SIZE");
    if (const auto task = number("SLURM_PROCID"); several && task) id += fmt::format("-{}", *task);
    return fmt::format("{}-{:08x}", id, checksum(command));
  }

 private:
  static std::uint32_t checksum(std::string_view text) {  // FNV-1a: the same in each version
    std::uint32_t sum = 2166136261U;
    for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 16777619U;
    return sum;
  }

  /// Older operators tell the master of a PyTorchJob "localhost", which cannot know what its
  /// workers call it ("JOB-master-0"): on the host's network its pod is called as the machine.
  static std::string id_of_master(const std::string& host) {
    const bool number = host.find_first_not_of("0123456789.") == host.npos || host.contains(':');
    const bool is_named = !number && host != "localhost" && !host.contains("-master-");
    return is_named ? plain(host.substr(0, host.find('.'))) : kPytorchJob;
  }

  Text variable(const std::string& name) const {
    auto value = around_.variable(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  std::optional<int> number(const std::string& name) const {
    const auto text = variable(name);
    const auto value = text ? parse_int(*text) : std::nullopt;
    // Anything may be in a variable: one that does not give a number of nodes or ports counts as
    // missing.
    if (!value || *value < 0 || *value > 10'000'000) return std::nullopt;
    return static_cast<int>(*value);
  }

  // Nothing, and no other scheduler is asked: this one is there but does not fit.
  std::optional<Placement> stop(std::string warning = {}) {
    decided_ = true;
    if (!warning.empty()) warnings_.push_back(std::move(warning));
    return std::nullopt;
  }

  /// An option, its value, and the variables that tell it. Without a value it is not told: JobSet
  /// and indexed jobs give no number of nodes.
  struct Told {
    Opt id;
    std::string text;
    std::string_view from;
  };

  static std::string text_of(std::optional<int> number) {
    return number ? fmt::to_string(*number) : std::string();
  }

  static Placement placement(std::string_view scheduler, const std::vector<Told>& told,
                             std::optional<bool> is_host, std::string start = {}) {
    Placement place{std::string(scheduler), {}, is_host, std::move(start)};
    const auto give = [&](Opt id, std::string text, std::string_view from) {
      place.given.push_back(
          {id, std::move(text), Origin::Scheduler, fmt::format("{} ({})", from, scheduler)});
    };
    for (const auto& [id, text, from] : told) {
      if (!text.empty()) give(id, text, from);
      if (id == "rdzv-endpoint"_opt) give("rdzv-backend"_opt, std::string(backend::kC10d), from);
    }
    return place;
  }

  static std::string endpoint(std::string_view host, int port) {
    return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                    : fmt::format("[{}]:{}", host, port);
  }

  /// With the port that the cluster's operators give.
  std::string endpoint_at(std::string_view host) const {
    return endpoint(host, number("MASTER_PORT").value_or(kFirstPort));
  }

  std::optional<Placement> slurm() {
    const auto job = variable("SLURM_JOB_ID");
    if (!job) return std::nullopt;
    const auto step = variable("SLURM_STEP_ID");
    if (!step) {
      // The batch script itself runs on the first node only.
      const auto nodes = number("SLURM_JOB_NUM_NODES");
      if (nodes.value_or(1) < 2) return stop();
      return stop(fmt::format(
          "Slurm gave this job {} nodes, but this process was not started by srun: it uses one. "
          "Start one launcher per node: srun --ntasks-per-node=1 elastrun ...",
          *nodes));
    }
    const auto list = variable("SLURM_STEP_NODELIST");
    const auto host = list ? first_host(*list) : std::nullopt;
    // The step's, not the job's: srun may use a part of the nodes.
    const int nodes = number("SLURM_STEP_NUM_NODES").value_or(number("SLURM_NNODES").value_or(1));
    if (nodes < 2) return stop();
    if (!host) return stop("SLURM_STEP_NODELIST names no hosts; --rdzv-endpoint is needed");
    if (auto why = why_not_one_per_node(nodes); !why.empty()) return stop(std::move(why));
    const auto id = slurm_id(*job, *step);
    const auto rank = number("SLURM_NODEID");
    return placement(
        "Slurm",
        {{"nnodes"_opt, fmt::to_string(nodes), "SLURM_STEP_NUM_NODES"},
         {"node-rank"_opt, text_of(rank), "SLURM_NODEID"},
         {"rdzv-endpoint"_opt, endpoint(*host, port_of(id)), "SLURM_STEP_NODELIST"},
         {"rdzv-id"_opt, id, "SLURM_CLUSTER_NAME, SLURM_JOB_USER, SLURM_JOB_ID, SLURM_STEP_ID"}},
        rank ? std::optional(*rank == 0) : std::nullopt, slurm_start());
  }

  std::string why_not_one_per_node(int nodes) const {
    if (is_typed_in_a_task()) {
      return fmt::format(
          "Slurm gave this step {} nodes, but this process was typed in the shell of srun --pty, "
          "which runs on one of them: it uses one. Start one launcher per node: srun --overlap "
          "--ntasks-per-node=1 elastrun ...",
          nodes);
    }
    const auto tasks = number("SLURM_STEP_NUM_TASKS");
    if (!tasks || *tasks == nodes) return {};
    return fmt::format(
        "srun started {} tasks on {} nodes; elastrun uses Slurm's places only "
        "with one task per node (srun --ntasks-per-node=1)",
        *tasks, nodes);
  }

  // srun --pty gives its terminal to task 0 alone. The variable says little: what srun starts from
  // within that shell inherits it, but is another task, and mostly without a terminal.
  bool is_typed_in_a_task() const {
    const auto task = number("SLURM_TASK_PID");
    return variable("SLURM_PTY_PORT") && task && is_typed_in_shell(around_, *task);
  }

  std::string slurm_id(const std::string& job, const std::string& step) const {
    std::string id = "slurm-";
    if (const auto cluster = variable("SLURM_CLUSTER_NAME")) id += plain(*cluster) + "-";
    const auto user = variable("SLURM_JOB_USER"), uid = variable("SLURM_JOB_UID");
    if (user || uid) id += plain(user.value_or(uid.value_or(""))) + "-";
    // With the step: two jobs of one allocation must not meet. Each cluster counts for itself, and
    // two may share a network: hence the cluster's name.
    return id + job + "." + step;
  }

  std::string slurm_start() const {
    const auto time = variable("SLURM_JOB_START_TIME"), count = variable("SLURM_RESTART_COUNT");
    // A job that is requeued keeps its number, but starts at another time: so what an earlier start
    // has left is told apart.
    return fmt::format("{}/{}", time.value_or(""), count.value_or("0"));
  }

  std::optional<Placement> open_mpi() {
    const auto size = number("OMPI_COMM_WORLD_SIZE"), rank = number("OMPI_COMM_WORLD_RANK");
    if (!size || !rank || *size < 2) return std::nullopt;
    // Two launchers of one node would each take all of its devices.
    if (number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1) != 1) {
      return stop(
          "mpirun started several processes on this node; elastrun uses Open MPI's places "
          "only with one process per node (mpirun --map-by ppr:1:node)");
    }
    const auto [host, from, is_rank0] = mpi_host();
    if (host.empty()) {
      return stop(
          "Open MPI does not tell the address of its first process; export MASTER_ADDR "
          "(mpirun -x MASTER_ADDR) or give --rdzv-endpoint");
    }
    const auto id =
        "ompi-" + plain(variable("PMIX_NAMESPACE")
                            .value_or(variable("OMPI_MCA_ess_base_jobid").value_or("job")));
    return placement(
        "Open MPI",
        {{"nnodes"_opt, fmt::to_string(*size), "OMPI_COMM_WORLD_SIZE"},
         {"node-rank"_opt, fmt::to_string(*rank), "OMPI_COMM_WORLD_RANK"},
         {"rdzv-endpoint"_opt, endpoint(host, number("MASTER_PORT").value_or(port_of(id))), from},
         {"rdzv-id"_opt, id, "PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid"}},
        is_rank0 ? std::optional(*rank == 0) : std::nullopt);
  }

  struct MpiHost {
    std::string host, from;
    bool is_rank0 = false;  // surely where rank 0 runs
  };

  MpiHost mpi_host() const {
    if (auto given = variable("MASTER_ADDR")) return {*given, "MASTER_ADDR", true};
    if (const auto list = variable("SLURM_JOB_NODELIST")) {
      if (const auto host = first_host(*list)) return {*host, "SLURM_JOB_NODELIST", true};
    }
    if (const auto hosts = pbs_hosts(); !hosts.empty())
      return {hosts.front(), "PBS_NODEFILE", true};
    for (const char* name :
         {"OMPI_MCA_orte_hnp_uri", "OMPI_MCA_prte_hnp_uri", "PMIX_SERVER_URI2"}) {
      if (const auto uri = variable(name)) {
        const auto host = first_address(*uri);
        // Where mpirun runs: often, not always, the node of rank 0.
        if (!host.empty()) return {host, name, false};
      }
    }
    return {};
  }

  // "123.0;tcp://10.0.0.1,192.168.0.1:4513"
  static std::string first_address(std::string_view uri) {
    const auto start = uri.find("://");
    if (start == std::string_view::npos) return {};
    uri.remove_prefix(start + 3);
    return std::string(uri.substr(0, uri.find_first_of(",:/;")));
  }

  static std::string plain(std::string text) {
    for (char& c : text) {
      const bool keep = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                        (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
      if (!keep) c = '-';
    }
    return text;
  }

  // The different hosts of PBS_NODEFILE, in order; it has a line for each slot.
  std::vector<std::string> pbs_hosts() const {
    std::vector<std::string> hosts;
    const auto path = variable("PBS_NODEFILE");
    const auto content = path ? around_.read_file(*path) : Result<std::string>();
    if (!content) return hosts;
    for (const auto& line : split(*content, '\n')) {
      std::string host(trim(line));
      if (!host.empty() && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
        hosts.push_back(std::move(host));
      }
    }
    return hosts;
  }

  std::optional<Placement> pbs() {
    const auto job = variable("PBS_JOBID");
    const auto hosts = pbs_hosts();
    if (!job || hosts.size() < 2) return std::nullopt;
    // The job script is task 1 of the first node; pbsdsh counts on from there.
    if (number("PBS_TASKNUM").value_or(1) < 2 || !number("PBS_NODENUM")) {
      return stop(fmt::format(
          "PBS gave this job {} nodes, but this process runs in the job script: it uses one. Start "
          "one launcher per node, for example with pbsdsh -u or mpirun --map-by ppr:1:node",
          hosts.size()));
    }
    // The id has the server's name in it.
    const auto user = variable("PBS_O_LOGNAME");
    const std::string id = "pbs-" + (user ? plain(*user) + "-" : "") + plain(*job);
    const auto rank = number("PBS_NODENUM");
    return placement("PBS",
                     {{"nnodes"_opt, fmt::to_string(hosts.size()), "PBS_NODEFILE"},
                      {"node-rank"_opt, text_of(rank), "PBS_NODENUM"},
                      {"rdzv-endpoint"_opt, endpoint(hosts.front(), port_of(id)), "PBS_NODEFILE"},
                      {"rdzv-id"_opt, id, "PBS_O_LOGNAME, PBS_JOBID"}},
                     *rank == 0);
  }

  std::optional<Placement> pytorch_job() {
    const auto host = variable("MASTER_ADDR");
    const auto rank = number("RANK"), world = number("WORLD_SIZE");
    // These names are common, and set by hand elsewhere: only in a pod are they an operator's word.
    if (!variable("KUBERNETES_SERVICE_HOST") || variable("JOB_COMPLETION_INDEX") || !host ||
        !rank || !world || *world < 2) {
      return std::nullopt;
    }
    return placement("PyTorchJob",
                     {{"nnodes"_opt, fmt::to_string(*world), "WORLD_SIZE"},
                      {"node-rank"_opt, fmt::to_string(*rank), "RANK"},
                      {"rdzv-endpoint"_opt, endpoint_at(*host), "MASTER_ADDR, MASTER_PORT"},
                      {"rdzv-id"_opt, kPytorchJob, "MASTER_ADDR"}},
                     *rank == 0);
  }

  std::optional<Placement> kubernetes() {
    const auto index = number("JOB_COMPLETION_INDEX");
    if (!index || nodes_given_ < 2) return std::nullopt;
    const auto set = variable("JOBSET_NAME"), group = variable("REPLICATED_JOB_NAME");
    return set && group ? job_set(*set, *group, *index) : indexed_job(*index);
  }

  // Pods are called SET-GROUP-JOB-POD in a subdomain that is called as the set, by default.
  std::optional<Placement> job_set(const std::string& set, const std::string& group, int pod) {
    const int job = number("JOB_INDEX").value_or(0);
    const auto host = variable("MASTER_ADDR").value_or(fmt::format("{0}-{1}-0-0.{0}", set, group));
    // A pod's index counts within its job alone: of several jobs the ranks would repeat.
    const auto rank = variable("JOB_INDEX") ? std::nullopt : std::optional(pod);
    return placement("JobSet",
                     {{"node-rank"_opt, text_of(rank), "JOB_COMPLETION_INDEX"},
                      {"rdzv-endpoint"_opt, endpoint_at(host), "JOBSET_NAME, REPLICATED_JOB_NAME"},
                      {"rdzv-id"_opt, set, "JOBSET_NAME"}},
                     job == 0 && pod == 0);
  }

  // Pods are called JOB-INDEX; the others resolve the name in the pod's own subdomain, which the
  // kubelet writes into /etc/hosts.
  std::optional<Placement> indexed_job(int index) {
    const auto pod = variable("HOSTNAME");
    const std::string ending = fmt::format("-{}", index);
    std::string id = "k8s", host = variable("MASTER_ADDR").value_or("");
    if (pod && pod->ends_with(ending)) {
      const auto name = pod->substr(0, pod->size() - ending.size());
      if (host.empty()) host = name + "-0" + own_domain(*pod);
      if (!name.empty()) id = name;
    }
    if (host.empty()) {
      return stop(
          "JOB_COMPLETION_INDEX is set, but HOSTNAME does not end in it, so that the first "
          "pod has no known name; give --rdzv-endpoint");
    }
    return placement("Kubernetes",
                     {{"node-rank"_opt, fmt::to_string(index), "JOB_COMPLETION_INDEX"},
                      {"rdzv-endpoint"_opt, endpoint_at(host), "JOB_COMPLETION_INDEX"},
                      {"rdzv-id"_opt, id, "HOSTNAME"}},
                     index == 0);
  }

  // ".SUBDOMAIN.NAMESPACE.svc.cluster.local", or nothing without a subdomain.
  std::string own_domain(const std::string& pod) const {
    const auto hosts = around_.read_file("/etc/hosts");
    if (!hosts) return {};
    const auto at = hosts->find(pod + ".");
    // At the beginning of a name, or "job-1" would be found within "other-job-1".
    if (at == std::string::npos || at == 0 ||
        std::string_view(" \t").find((*hosts)[at - 1]) == std::string_view::npos) {
      return {};
    }
    const auto rest = std::string_view(*hosts).substr(at + pod.size());
    return std::string(rest.substr(0, rest.find_first_of(" \t\n")));
  }

  const HostEnvironment& around_;
  int nodes_given_;
  std::vector<std::string>& warnings_;
  bool decided_ = false;
};

}  // namespace

std::optional<Placement> find_placement(const HostEnvironment& around, int nodes_given,
                                        std::vector<std::string>& warnings) {
  return Finder(around, nodes_given, warnings).find();
}

std::optional<Placement> find_kubeflow_placement(const HostEnvironment& around) {
  std::vector<std::string> warnings;
  return Finder(around, 0, warnings).kubeflow();
}

std::string single_node_run_id(const HostEnvironment& around, std::string_view command) {
  std::vector<std::string> warnings;
  return Finder(around, 0, warnings).single_node_id(command);
}

std::string requeue_command(const HostEnvironment& around) {
  const auto job = around.variable("SLURM_JOB_ID");
  const auto number = job ? parse_int(*job) : std::nullopt;
  // The number, not the text: people paste this into a shell.
  return number ? fmt::format("scontrol requeue {}", *number) : "";
}

}  // namespace elastrun::spec
