// SPDX-License-Identifier: Apache-2.0
#include "spec/option_table.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>

namespace elastrun::spec {
namespace {

// Columns that repeat: ours or torchrun's, with a PET_ variable or without.
constexpr bool kTorchrun = true, kOurs = false, kPet = true, kNoPet = false;
constexpr std::string_view kNone;
constexpr Field kNoField;

// A new option is its enumerator in Opt, its row at the same place here, and the member of JobSpec
// that it fills, of its base AgreedRules if all nodes have to agree on it. The type of the member
// says how the text is read (option_values.cpp). The pages: a paragraph in man/elastrun.1,
// `elastrun --print-config > config/elastrun.toml`, and the keys of elastrun.toml(5), which
// `ELASTRUN_WRITE_PAGES=1 unit_spec -tc='man:*'` writes. Tests name what is missing.
constexpr std::array<OptionRow, kOptions> kRows = {{
    {Opt::Module, "module", 'm', Kind::Flag, Group::Script, kTorchrun, kPet, "job.module", kNone,
     kNone, kNone, "Run the script as a Python module, like `python -m`", kNone},
    {Opt::NoPython, "no-python", 0, Kind::Flag, Group::Script, kTorchrun, kPet, "job.no_python",
     kNone, kNone, kNone, "Run the script as a program, without an interpreter",
     "It is looked up in PATH; no shell is involved."},
    {Opt::RunPath, "run-path", 0, Kind::Flag, Group::Script, kTorchrun, kPet, "job.run_path", kNone,
     kNone, kNone, "Run the script with runpy in a child of a Python process",
     "Wins over no_python and module."},
    {Opt::StartMethod, "start-method", 0, Kind::Choice, Group::Script, kTorchrun, kPet,
     "job.start_method", "spawn", "spawn,fork,forkserver,auto", "METHOD",
     "How to restart workers: forkserver and auto fork them",
     "spawn and fork: by exec, as the first time.", &JobSpec::start_method},
    {Opt::WarmSpares, "warm-spares", 0, Kind::Int, Group::Script, kOurs, kPet, "job.warm_spares",
     kNone, kNone, "N", "Number of forked workers kept ready, with open accelerators",
     "Default: one per worker, which opens no accelerator. 0: fork when needed."},
    {Opt::Preload, "preload", 0, Kind::List, Group::Script, kOurs, kPet, "job.preload", kNone,
     kNone, "MODULE,...", "Modules that the fork server imports",
     "Default: those that it learns from the workers.", &JobSpec::preload},
    {Opt::Name, "name", 0, Kind::Text, Group::Script, kOurs, kPet, "job.name", kNone, kNone, "NAME",
     "Name of the job in elastrunctl, reports and pages",
     "Default: the id given for the rendezvous, else the script's name without .py."},

    {Opt::NprocPerNode, "nproc-per-node", 0, Kind::Text, Group::Workers, kTorchrun, kPet,
     "job.nproc_per_node", "1", kNone, "N|auto|gpu|cpu", "Number of workers on this node",
     "A number, or what to count: \"gpu\", \"cpu\", \"xpu\", or another accelerator of torch, such "
     "as \"npu\"; \"auto\" counts accelerators, and CPUs where there are none."},
    {Opt::Role, "role", 0, Kind::Text, Group::Workers, kTorchrun, kPet, "job.role", "default",
     kNone, "NAME", "Role of this node's workers", kNone, &JobSpec::role},
    {Opt::VirtualLocalRank, "virtual-local-rank", 0, Kind::Flag, Group::Workers, kTorchrun, kPet,
     "job.virtual_local_rank", kNone, kNone, kNone,
     "Give each worker LOCAL_RANK=0 and one visible device", kNone, &JobSpec::virtual_local_rank},
    {Opt::NumaBinding, "numa-binding", 0, Kind::Choice, Group::Workers, kTorchrun, kNoPet,
     "job.numa_binding", kNone, "node,socket,exclusive,core-complex", "MODE",
     "Bind each worker to the CPUs near its device",
     "node: all CPUs of the device's NUMA node; socket: of its package; exclusive: an equal share "
     "of the node's cores; core-complex: cores that share a cache. Default: no binding.",
     &JobSpec::numa},
    {Opt::WorkerLib, "worker-lib", 0, Kind::Flag, Group::Workers, kOurs, kPet, "job.worker_lib",
     kNone, kNone, kNone, "Let workers import the elastrun Python package",
     "Appends its folder to their PYTHONPATH, and gives each a page in memory for its last step "
     "and values."},

    {Opt::Nnodes, "nnodes", 0, Kind::Text, Group::Nodes, kTorchrun, kPet, "rendezvous.nnodes",
     "1:1", kNone, "N|MIN:MAX", "Number of nodes", kNone},
    {Opt::Standalone, "standalone", 0, Kind::Flag, Group::Nodes, kTorchrun, kPet,
     "rendezvous.standalone", kNone, kNone, kNone, "Run on this node alone, without any address",
     "Implied for one node without rendezvous options."},
    {Opt::RdzvBackend, "rdzv-backend", 0, Kind::Text, Group::Nodes, kTorchrun, kPet,
     "rendezvous.backend", "static", kNone, "NAME",
     "How nodes meet: static, c10d, etcd, etcd-v2 or file", kNone},
    {Opt::RdzvEndpoint, "rdzv-endpoint", 0, Kind::Text, Group::Nodes, kTorchrun, kPet,
     "rendezvous.endpoint", kNone, kNone, "HOST[:PORT]", "Address at which the nodes meet",
     "A directory for the file backend. Default port: 29400 for c10d, 2379 for etcd."},
    {Opt::RdzvId, "rdzv-id", 0, Kind::Text, Group::Nodes, kTorchrun, kPet, "rendezvous.id", "none",
     kNone, "ID", "Id of the job, the same on all nodes", kNone},
    {Opt::RdzvConf, "rdzv-conf", 0, Kind::List, Group::Nodes, kTorchrun, kPet, "rendezvous.conf",
     kNone, kNone, "KEY=VALUE,...", "Settings of the rendezvous backend",
     "In this file also as a table: conf = { join_timeout = 600 }. Keys: see elastrun(1)."},
    {Opt::NodeRank, "node-rank", 0, Kind::Int, Group::Nodes, kTorchrun, kPet,
     "rendezvous.node_rank", "0", kNone, "RANK", "Rank of this node (static backend)", kNone},
    {Opt::MasterAddr, "master-addr", 0, Kind::Text, Group::Nodes, kTorchrun, kPet,
     "rendezvous.master_addr", "127.0.0.1", kNone, "HOST", "Address of node 0 (static backend)",
     "IPv6 addresses are written in brackets."},
    {Opt::MasterPort, "master-port", 0, Kind::Int, Group::Nodes, kTorchrun, kPet,
     "rendezvous.master_port", kNone, kNone, "PORT",
     "Port on node 0 (static backend); 29500 for several nodes", kNone},
    {Opt::LocalAddr, "local-addr", 0, Kind::Text, Group::Nodes, kTorchrun, kPet,
     "rendezvous.local_addr", kNone, kNone, "HOST", "Address of this node for the others",
     "Default: detected."},
    {Opt::RankOrder, "rank-order", 0, Kind::Choice, Group::Nodes, kOurs, kPet,
     "rendezvous.rank_order", "torchrun", "torchrun,topology", "ORDER",
     "Order of ranks: as torchrun sorts nodes, or by the network",
     "topology: nodes of one switch, block or NVLink domain are neighbours, and a spare of the "
     "same one replaces a lost node. See --topology.",
     &JobSpec::rank_order_topology},
    {Opt::Topology, "topology", 0, Kind::Text, Group::Nodes, kOurs, kPet, "rendezvous.topology",
     kNone, kNone, "ADDR", "Place of this node in the network, outermost first: zone1.rack7",
     "Default: Slurm's switches or block, then the NVLink domain of the GPUs; within that, by "
     "name."},

    {Opt::MaxRestarts, "max-restarts", 0, Kind::Int, Group::Restarts, kTorchrun, kPet,
     "restart.max_restarts", "0", kNone, "N", "Number of restarts before the job fails", kNone,
     &JobSpec::max_restarts},
    {Opt::RestartPolicy, "restart-policy", 0, Kind::Choice, Group::Restarts, kOurs, kPet,
     "restart.policy", "torchrun", "torchrun,auto", "POLICY",
     "Count all failures like torchrun, or judge each by its outcome",
     "auto: the same error at the same step twice ends the job with exit code 93; a new checkpoint "
     "refills the restarts; without one they wait, up to 60 s; bad nodes are left out. See "
     "elastrun-restarts(7).",
     &JobSpec::restart_policy_auto},
    {Opt::RestartRule, "restart-rule", 0, Kind::List, Group::Restarts, kOurs, kPet, "restart.rules",
     kNone, kNone, "CAUSE:ACTION",
     "Action for a cause: exit=93:fail, oom:1, gpu:2/1h,exclude or preempted:free; repeatable",
     "The first that matches decides, before the policy. See elastrun-restarts(7)."},
    {Opt::RoleRestart, "role-restart", 0, Kind::List, Group::Restarts, kOurs, kPet, kNone, kNone,
     kNone, "ROLE=own|all", "Restart only the agents of a failed worker's role, or all; repeatable",
     kNone},
    {Opt::RestartMemory, "restart-memory", 0, Kind::Text, Group::Restarts, kOurs, kPet,
     "restart.memory", kNone, kNone, "FILE", "Keep restarts and bad nodes in FILE across requeues",
     "On a file system that all nodes share. Not with torchrun's policy alone.",
     &JobSpec::restart_memory},
    {Opt::MonitorInterval, "monitor-interval", 0, Kind::Float, Group::Restarts, kTorchrun, kPet,
     "restart.monitor_interval", "0.1", kNone, "SECONDS",
     "Accepted for compatibility; failures are seen at once", kNone, &JobSpec::monitor_interval},
    {Opt::SignalsToHandle, "signals-to-handle", 0, Kind::List, Group::Restarts, kTorchrun, kPet,
     "restart.signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", kNone, "NAME,...",
     "Signals that end the job; workers get them, too", kNone},
    {Opt::ForwardSignals, "forward-signals", 0, Kind::List, Group::Restarts, kOurs, kPet,
     "restart.forward_signals", "SIGUSR1,SIGUSR2", kNone, "NAME,...",
     "Signals passed on to the workers without ending the job",
     "A signal that every process of the job got is not passed on again."},
    {Opt::ShutdownTimeout, "shutdown-timeout", 0, Kind::Int, Group::Restarts, kTorchrun, kPet,
     "restart.shutdown_timeout", "30", kNone, "SECONDS",
     "Time for workers to end before they are killed",
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT changes the default.", &JobSpec::shutdown_timeout,
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {Opt::PreemptSignals, "preempt-signals", 0, Kind::List, Group::Restarts, kOurs, kPet,
     "restart.preempt_signals", kNone, kNone, "NAME,...",
     "Signals that make the job save and end with exit code 75", "See elastrun-preemption(7)."},
    {Opt::PreemptFile, "preempt-file", 0, Kind::Text, Group::Restarts, kOurs, kPet,
     "restart.preempt_file", kNone, kNone, "FILE",
     "Save and end once FILE exists, such as one from a preStop hook", kNone,
     &JobSpec::preempt_file},
    {Opt::PreemptTimeout, "preempt-timeout", 0, Kind::Text, Group::Restarts, kOurs, kPet,
     "restart.preempt_timeout", kNone, kNone, "SECONDS", "Time for a preempted job to save",
     "Default: shutdown_timeout."},
    {Opt::PreemptAck, "preempt-ack", 0, Kind::Choice, Group::Restarts, kOurs, kPet,
     "restart.preempt_ack", "rank0", "rank0,all", "WHO", "Ranks whose checkpoint ends that time",
     kNone, &JobSpec::preempt_ack_all},
    {Opt::OnPreempt, "on-preempt", 0, Kind::Choice, Group::Restarts, kOurs, kPet,
     "restart.on_preempt", "exit", "exit,requeue", "WHAT",
     "After the save: exit with code 75, or have Slurm requeue first", kNone, &JobSpec::requeues},
    {Opt::ExitBarrierTimeout, "exit-barrier-timeout", 0, Kind::Float, Group::Restarts, kOurs, kPet,
     "restart.exit_barrier_timeout", "300", kNone, "SECONDS",
     "Time that a finished node waits for the others",
     "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT changes the default.", &JobSpec::exit_barrier_timeout,
     "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"},
    {Opt::ExitCode, "exit-code", 0, Kind::Choice, Group::Restarts, kOurs, kPet, "restart.exit_code",
     "torchrun", "torchrun,worker", "WHICH",
     "Exit code of a failed job: 1, or that of the first failed worker", kNone,
     &JobSpec::exit_code_of_worker},

    {Opt::HangTimeout, "hang-timeout", 0, Kind::Text, Group::Restarts, kOurs, kPet,
     "restart.hang_timeout", "off", kNone, "SECONDS|auto|off",
     "Time without progress of any worker that counts as a hang",
     "auto: learnt from reported steps, at least 10 min; off: learnt, too, but a hang is only "
     "reported."},
    {Opt::OnHang, "on-hang", 0, Kind::Choice, Group::Restarts, kOurs, kPet, "restart.on_hang",
     "report", "report,restart,fail", "WHAT",
     "Reaction to a hang, after taking the stacks of all workers",
     "restart: start the workers again, as after a failure; fail: end the job.", &JobSpec::on_hang},

    {Opt::LogDir, "log-dir", 0, Kind::Text, Group::Output, kTorchrun, kPet, "logs.dir", kNone,
     kNone, "DIR", "Parent of each run's new log directory", "Default: a temporary one.",
     &JobSpec::log_dir},
    {Opt::Redirects, "redirects", 'r', Kind::Text, Group::Output, kTorchrun, kPet, "logs.redirects",
     "0", kNone, "STD|RANK:STD,...", "Write streams of workers to log files instead of the console",
     "0: none, 1: stdout, 2: stderr, 3: both; for all local ranks or by rank: \"0:3,1:2\".",
     &JobSpec::redirects},
    {Opt::Tee, "tee", 't', Kind::Text, Group::Output, kTorchrun, kPet, "logs.tee", "0", kNone,
     "STD|RANK:STD,...", "Write streams of workers to log files and to the console",
     "Values as for redirects.", &JobSpec::tee},
    {Opt::LocalRanksFilter, "local-ranks-filter", 0, Kind::List, Group::Output, kTorchrun, kPet,
     "logs.local_ranks_filter", kNone, kNone, "RANK,...",
     "Show the output of these local ranks only", "Log files are written all the same.",
     &JobSpec::local_ranks_filter},
    {Opt::StdoutFilters, "duplicate-stdout-filters", 0, Kind::List, Group::Output, kTorchrun, kPet,
     "logs.duplicate_stdout_filters", kNone, kNone, "TEXT,...",
     "Copy lines of stdout that contain one of these texts to filtered_stdout.log",
     "In a text, two commas stand for a literal one; a list holds the texts as they are.",
     &JobSpec::stdout_filters},
    {Opt::StderrFilters, "duplicate-stderr-filters", 0, Kind::List, Group::Output, kTorchrun, kPet,
     "logs.duplicate_stderr_filters", kNone, kNone, "TEXT,...",
     "Copy lines of stderr that contain one of these texts to filtered_stderr.log",
     "In a text, two commas stand for a literal one; a list holds the texts as they are.",
     &JobSpec::stderr_filters},
    {Opt::PrefixTemplate, "log-line-prefix-template", 0, Kind::Text, Group::Output, kOurs, kPet,
     "logs.prefix_template", "[${role_name}${local_rank}]:", kNone, "TEMPLATE",
     "Prefix of each line shown by --tee",
     "Knows ${role_name}, ${local_rank}, ${rank} and ${hostname}. "
     "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE changes the default.",
     kNoField, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {Opt::LogsSpecs, "logs-specs", 0, Kind::Text, Group::Output, kTorchrun, kNoPet, "logs.specs",
     kNone, kNone, "NAME", "Name of a registered log specification; \"default\" is built in", kNone,
     &JobSpec::logs_specs},
    {Opt::LogFormat, "log-format", 0, Kind::Choice, Group::Output, kOurs, kPet, "logs.format",
     "text", "text,json", "FORM", "Form of the launcher's own log lines",
     "text: like torch; json: an object a line, for the collector of a cluster.",
     &JobSpec::json_log},

    {Opt::Status, "status", 0, Kind::Choice, Group::Reports, kOurs, kPet, "reports.status", "auto",
     "auto,on,off", "WHEN", "Show a live status line; auto shows it on a terminal", kNone,
     &JobSpec::status},
    {Opt::Summary, "summary", 0, Kind::Choice, Group::Reports, kOurs, kPet, "reports.summary",
     "full", "full,short,off", "FORM", "Length of the account of time at the end",
     "full: an account on the node with group rank 0, a line on the others; short: a line.",
     &JobSpec::summary},
    {Opt::Goodput, "goodput", 0, Kind::Choice, Group::Reports, kOurs, kPet, "reports.goodput",
     "agent", "auto,agent,off", "HOW", "Sources of the account of time",
     "agent: what the launcher sees and workers report; auto: hooks in torch, too, for scripts "
     "that report nothing; off: none.",
     &JobSpec::goodput},
    {Opt::Report, "report", 0, Kind::Text, Group::Reports, kOurs, kPet, "reports.file", kNone,
     kNone, "FILE", "Write the result of the job to FILE as JSON", kNone, &JobSpec::report_file},
    {Opt::Http, "http", 0, Kind::Text, Group::Reports, kOurs, kPet, "reports.http", kNone, kNone,
     "[ADDRESS:]PORT", "Serve a live page, metrics and health of the job",
     "Without an address: for this machine only. 0.0.0.0:9400 or [::]:9400 serves anyone who can "
     "reach it, without a password. Port 0 takes a free one and prints it.",
     &JobSpec::http},
    {Opt::EventLogHandler, "event-log-handler", 0, Kind::Text, Group::Reports, kTorchrun, kPet,
     "reports.event_log_handler", "null", kNone, "NAME",
     "Destination of the launcher's events: null or console", kNone, &JobSpec::event_log_handler},
    {Opt::Metrics, "metrics", 0, Kind::List, Group::Reports, kOurs, kPet, "metrics.sinks", kNone,
     kNone, "SINK[:ARG]",
     "Send metrics and events to console, jsonl:FILE, prometheus:FILE, tensorboard:DIR, "
     "trace:FILE, otlp:URL, exec:COMMAND or none; repeatable",
     "In the variable commas separate sinks, and two commas stand for a literal one. "
     "[[metrics.route]] selects what a sink gets, see elastrun.toml(5)."},
    {Opt::MetricsInterval, "metrics-interval", 0, Kind::Float, Group::Reports, kOurs, kPet,
     "metrics.interval", "10", kNone, "SECONDS", "Interval of metrics pages and pushes", kNone},
    {Opt::Aggregations, "aggregations", 0, Kind::List, Group::Reports, kOurs, kPet,
     "metrics.aggregations", kNone, kNone, "PATTERN=NAME[+NAME...]",
     "Summarise matching Stats of workers like this, whatever the script says: 'train.*=p95+p99'; "
     "repeatable",
     "In the variable commas separate them. The names are value, mean, count, sum, max, min, "
     "stddev, p50, p90, p95, p99, p999 and histogram; the first matching pattern counts."},

    {Opt::Config, "config", 0, Kind::Text, Group::Launch, kOurs, kPet, kNone, kNone, kNone, "FILE",
     "Read options, script and workers' variables from a TOML file", kNone},
    {Opt::DryRun, "dry-run", 0, Kind::Flag, Group::Launch, kOurs, kNoPet, kNone, kNone, kNone,
     kNone, "Print the workers that would start, and start none", kNone, &JobSpec::dry_run},
    {Opt::Explain, "explain", 0, Kind::Flag, Group::Launch, kOurs, kNoPet, kNone, kNone, kNone,
     kNone, "Print the source of each value before the run", kNone, &JobSpec::explain},
    {Opt::PrintConfig, "print-config", 0, Kind::Flag, Group::Launch, kOurs, kNoPet, kNone, kNone,
     kNone, kNone, "Print a TOML file with all keys, defaults and meanings", kNone},
    {Opt::PrintCompletion, "print-completion", 0, Kind::Choice, Group::Launch, kOurs, kNoPet, kNone,
     kNone, "bash,zsh,fish,tcsh", "SHELL", "Print a completion script for a shell", kNone},
    {Opt::InstallInto, "install-into", 0, Kind::Text, Group::Launch, kOurs, kNoPet, kNone, kNone,
     kNone, "DIR", "Copy this program to DIR/bin, also as torchrun, for another container", kNone},
    {Opt::Version, "version", 0, Kind::Flag, Group::Launch, kOurs, kNoPet, kNone, kNone, kNone,
     kNone, "Print the version", kNone},
    {Opt::Help, "help", 'h', Kind::Flag, Group::Launch, kTorchrun, kNoPet, kNone, kNone, kNone,
     kNone, "Print this help", kNone},
}};

using Config = RendezvousConfig;
constexpr std::string_view kAll = "c10d etcd etcd-v2 file static";
constexpr std::string_view kDynamic = "c10d etcd etcd-v2 file";
constexpr std::string_view kEtcds = "etcd etcd-v2";
constexpr std::string_view kElected = "etcd etcd-v2 file";
// A new key is a member of RendezvousConfig, its row here, and a line in elastrun(1).
constexpr std::array<SettingRow, 29> kSettings = {{
    {"join_timeout", kDynamic, &Config::join_timeout},
    {"last_call_timeout", kDynamic, &Config::last_call_timeout},
    {"close_timeout", kDynamic, &Config::close_timeout},
    {"heartbeat_timeout", kDynamic},
    {"keep_alive_interval", kDynamic, &Config::keep_alive_interval},
    {"keep_alive_max_attempt", kDynamic, &Config::keep_alive_max_attempt},
    {"read_timeout", kAll, &Config::read_timeout},
    {"store_type", backend::kC10d, &Config::meets_in_file},
    {"is_host", backend::kC10d, &Config::is_host},
    {"store_port", kAll, &Config::store_port},
    {"secret_file", kAll, &Config::secret_file},
    {"timeout", "static etcd", &Config::timeout},
    {"rank", backend::kStatic},
    {"protocol", kEtcds, &Config::protocol},
    {"cert", kEtcds, &Config::ssl_cert},
    {"key", kEtcds, &Config::ssl_cert_key},
    {"cacert", kEtcds, &Config::ca_cert},
    {"ssl_cert", kEtcds, &Config::ssl_cert},
    {"ssl_cert_key", kEtcds, &Config::ssl_cert_key},
    {"ca_cert", kEtcds, &Config::ca_cert},
    {"etcd_prefix", kEtcds, &Config::etcd_prefix},
    {"username", kEtcds, &Config::user},
    {"user", kEtcds, &Config::user},
    {"password", kEtcds, &Config::password},
    {"password_file", kEtcds, &Config::password_file},
    {"lease_ttl", kElected, &Config::lease_ttl},
    {"isolation_timeout", kElected, &Config::isolation_timeout},
    {"coordinator_port", kElected, &Config::coordinator_port},
    {"advertise", kElected, &Config::advertise},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kOptions; ++i) {
    if (kRows[i].id != static_cast<Opt>(i)) return false;
  }
  return true;
}
static_assert(in_order(), "the rows stand in the order of Opt");

bool same_name(std::string_view name, std::string_view spelled) {
  // All dashes or all underscores: these are the two names that torchrun gives argparse, and a
  // mixture is not one of them.
  return name == spelled || std::ranges::equal(name, spelled, [](char a, char b) {
           return (a == '-' ? '_' : a) == b;
         });
}

}  // namespace

std::span<const OptionRow, kOptions> options() {
  return kRows;
}

std::span<const SettingRow> settings() {
  return kSettings;
}

const OptionRow& row(Opt id) {
  return kRows[static_cast<std::size_t>(id)];
}

const OptionRow* find_option(std::string_view name) {
  const auto found = std::find_if(kRows.begin(), kRows.end(), [&](const OptionRow& option) {
    return same_name(option.name, name);
  });
  return found == kRows.end() ? nullptr : &*found;
}

const OptionRow* find_toml_key(std::string_view key) {
  if (key.empty()) return nullptr;
  const auto found = std::find_if(kRows.begin(), kRows.end(),
                                  [&](const OptionRow& option) { return option.toml == key; });
  return found == kRows.end() ? nullptr : &*found;
}

std::string spelling(const OptionRow& option) {
  return "--" + std::string(option.name);
}

std::string underscore_spelling(const OptionRow& option) {
  if (option.name.find('-') == std::string_view::npos) return {};
  std::string text = spelling(option);
  std::replace(text.begin() + 2, text.end(), '-', '_');
  return text;
}

std::string error_name(const OptionRow& option) {
  std::string text;
  if (option.letter != 0) text = std::string("-") + option.letter + "/";
  text += spelling(option);
  const std::string other = underscore_spelling(option);
  return other.empty() ? text : text + "/" + other;
}

std::string pet_name(const OptionRow& option) {
  if (!option.pet) return {};
  std::string text = "PET_";
  for (const char c : option.name) {
    text += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return text;
}

std::vector<std::string> choices(const OptionRow& option) {
  return option.choices.empty() ? std::vector<std::string>{} : split(option.choices, ',');
}

std::string_view title(Group group) {
  constexpr std::array<std::string_view, 7> kTitles = {
      "What to run",           "Workers", "Nodes and rendezvous", "Restarts and ending",
      "Output of the workers", "Reports", "This launch"};
  return kTitles[static_cast<std::size_t>(group)];
}

}  // namespace elastrun::spec
