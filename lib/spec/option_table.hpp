// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace elastrun::spec {

/// How the text of an option is read. A List is separated by commas.
enum class Kind { Text, Int, Float, Flag, Choice, List };
enum class Group { Script, Workers, Nodes, Restarts, Output, Reports, Launch };

/// The member of the job that an option fills (option_values.cpp); none: it takes several options,
/// or more than its type, to tell the value, which `resolve` does.
using Field =
    std::variant<std::monostate, std::string JobSpec::*, bool JobSpec::*, int JobSpec::*,
                 double JobSpec::*, Duration JobSpec::*, Switch JobSpec::*, Summary JobSpec::*,
                 Goodput JobSpec::*, OnHang JobSpec::*, NumaBinding JobSpec::*, StdMap JobSpec::*,
                 std::vector<int> JobSpec::*, std::optional<std::vector<std::string>> JobSpec::*,
                 std::optional<ListenAddress> JobSpec::*>;

/// An option: its place in the table.
enum class Opt : std::size_t {};

/// One option. The parser, --help, the PET_* loader, the TOML loader, the default file, the
/// completions, the job and the test of the manual page all read these rows and nothing else.
struct OptionRow {
  std::string_view name;  // "nproc-per-node": the long spelling without its dashes
  Kind kind;
  Group group;
  bool torchrun;               // torchrun 2.13 has it too; its abbreviations are those of torchrun
  bool pet;                    // may be set by PET_NAME
  std::string_view toml;       // "job.nproc_per_node", or empty
  std::string_view fallback;   // the default as the user would write it; empty: none
  std::string_view metavar;    // of a valued option, for people
  std::string_view help;       // one sentence without its full stop
  std::string_view details{};  // more sentences, for the file of defaults; may be empty
  Field field{};
  std::string_view choices{};   // of a Choice: "a,b,c"
  std::string_view variable{};  // of torch, weaker than PET_NAME; empty: none
  char letter = 0;              // 'r' for -r, or 0
  constexpr Opt id() const;
};

namespace table {
using enum Kind;
using enum Group;
// Columns that repeat: ours or torchrun's, with a PET_ variable or without.
constexpr bool kTorchrun = true, kOurs = false, kPet = true, kNoPet = false;
constexpr std::string_view kNone;
constexpr Field kNoField;

// All options, in the order of --help. A new one is its row here, and the member of JobSpec
// that it fills, of its base AgreedRules if all nodes have to agree on it. The type of the member
// says how the text is read (option_values.cpp). The pages: a paragraph in man/elastrun.1,
// `elastrun --print-config > config/elastrun.toml`, and the keys of elastrun.toml(5), which
// `ELASTRUN_WRITE_PAGES=1 unit_spec -tc='man:*'` writes. Tests name what is missing.
inline constexpr OptionRow kRows[] = {
    {"module", Flag, Script, kTorchrun, kPet, "job.module", kNone, kNone,
     "Run the script as a Python module, like `python -m`", kNone, kNoField, kNone, kNone, 'm'},
    {"no-python", Flag, Script, kTorchrun, kPet, "job.no_python", kNone, kNone,
     "Run the script as a program, without an interpreter",
     "It is looked up in PATH; no shell is involved."},
    {"run-path", Flag, Script, kTorchrun, kPet, "job.run_path", kNone, kNone,
     "Run the script with runpy in a child of a Python process", "Wins over no_python and module."},
    {"start-method", Choice, Script, kTorchrun, kPet, "job.start_method", "spawn", "METHOD",
     "How to restart workers: forkserver and auto fork them",
     "spawn and fork: by exec, as the first time.", &JobSpec::start_method,
     "spawn,fork,forkserver,auto"},
    {"warm-spares", Int, Script, kOurs, kPet, "job.warm_spares", kNone, "N",
     "Number of forked workers kept ready, with open accelerators",
     "Default: one per worker, which opens no accelerator. 0: fork when needed."},
    {"preload", List, Script, kOurs, kPet, "job.preload", kNone, "MODULE,...",
     "Modules that the fork server imports", "Default: those that it learns from the workers.",
     &JobSpec::preload},
    {"name", Text, Script, kOurs, kPet, "job.name", kNone, "NAME",
     "Name of the job in elastrunctl, reports and pages",
     "Default: the id given for the rendezvous, else the script's name without .py."},

    {"nproc-per-node", Text, Workers, kTorchrun, kPet, "job.nproc_per_node", "1", "N|auto|gpu|cpu",
     "Number of workers on this node",
     "A number, or what to count: \"gpu\", \"cpu\", \"xpu\", or another accelerator of torch, such "
     "as \"npu\"; \"auto\" counts accelerators, and CPUs where there are none."},
    {"role", Text, Workers, kTorchrun, kPet, "job.role", "default", "NAME",
     "Role of this node's workers", kNone, &JobSpec::role},
    {"virtual-local-rank", Flag, Workers, kTorchrun, kPet, "job.virtual_local_rank", kNone, kNone,
     "Give each worker LOCAL_RANK=0 and one visible device", kNone, &JobSpec::virtual_local_rank},
    {"numa-binding", Choice, Workers, kTorchrun, kNoPet, "job.numa_binding", kNone, "MODE",
     "Bind each worker to the CPUs near its device",
     "node: all CPUs of the device's NUMA node; socket: of its package; exclusive: an equal share "
     "of the node's cores; core-complex: cores that share a cache. Default: no binding.",
     &JobSpec::numa, "node,socket,exclusive,core-complex"},
    {"worker-lib", Flag, Workers, kOurs, kPet, "job.worker_lib", kNone, kNone,
     "Let workers import the elastrun Python package",
     "Appends its folder to their PYTHONPATH, and gives each a page in memory for its last step "
     "and values."},

    {"nnodes", Text, Nodes, kTorchrun, kPet, "rendezvous.nnodes", "1:1", "N|MIN:MAX",
     "Number of nodes"},
    {"standalone", Flag, Nodes, kTorchrun, kPet, "rendezvous.standalone", kNone, kNone,
     "Run on this node alone, without any address",
     "Implied for one node without rendezvous options."},
    {"rdzv-backend", Text, Nodes, kTorchrun, kPet, "rendezvous.backend", "static", "NAME",
     "How nodes meet: static, c10d, etcd, etcd-v2 or file"},
    {"rdzv-endpoint", Text, Nodes, kTorchrun, kPet, "rendezvous.endpoint", kNone, "HOST[:PORT]",
     "Address at which the nodes meet",
     "A directory for the file backend. Default port: 29400 for c10d, 2379 for etcd."},
    {"rdzv-id", Text, Nodes, kTorchrun, kPet, "rendezvous.id", "none", "ID",
     "Id of the job, the same on all nodes"},
    {"rdzv-conf", List, Nodes, kTorchrun, kPet, "rendezvous.conf", kNone, "KEY=VALUE,...",
     "Settings of the rendezvous backend",
     "In this file also as a table: conf = { join_timeout = 600 }. Keys: see elastrun(1)."},
    {"node-rank", Int, Nodes, kTorchrun, kPet, "rendezvous.node_rank", "0", "RANK",
     "Rank of this node (static backend)"},
    {"master-addr", Text, Nodes, kTorchrun, kPet, "rendezvous.master_addr", "127.0.0.1", "HOST",
     "Address of node 0 (static backend)", "IPv6 addresses are written in brackets.",
     &JobSpec::master_addr},
    {"master-port", Int, Nodes, kTorchrun, kPet, "rendezvous.master_port", kNone, "PORT",
     "Port on node 0 (static backend); 29500 for several nodes"},
    {"local-addr", Text, Nodes, kTorchrun, kPet, "rendezvous.local_addr", kNone, "HOST",
     "Address of this node for the others", "Default: detected.", &JobSpec::local_addr},
    {"rank-order", Choice, Nodes, kOurs, kPet, "rendezvous.rank_order", "torchrun", "ORDER",
     "Order of ranks: as torchrun sorts nodes, or by the network",
     "topology: nodes of one switch, block or NVLink domain are neighbours, and a spare of the "
     "same one replaces a lost node. See --topology.",
     &JobSpec::rank_order_topology, "torchrun,topology"},
    {"topology", Text, Nodes, kOurs, kPet, "rendezvous.topology", kNone, "ADDR",
     "Place of this node in the network, outermost first: zone1.rack7",
     "Default: Slurm's switches or block, then the NVLink domain of the GPUs; within that, by "
     "name."},

    {"max-restarts", Int, Restarts, kTorchrun, kPet, "restart.max_restarts", "0", "N",
     "Number of restarts before the job fails", kNone, &JobSpec::max_restarts},
    {"restart-policy", Choice, Restarts, kOurs, kPet, "restart.policy", "torchrun", "POLICY",
     "Count all failures like torchrun, or judge each by its outcome",
     "auto: the same error at the same step twice ends the job with exit code 93; a new checkpoint "
     "refills the restarts; without one they wait, up to 60 s; bad nodes are left out. See "
     "elastrun-restarts(7).",
     &JobSpec::restart_policy_auto, "torchrun,auto"},
    {"restart-rule", List, Restarts, kOurs, kPet, "restart.rules", kNone, "CAUSE:ACTION",
     "Action for a cause: exit=93:fail, oom:1, gpu:2/1h,exclude or preempted:free; repeatable",
     "The first that matches decides, before the policy. See elastrun-restarts(7)."},
    {"role-restart", List, Restarts, kOurs, kPet, kNone, kNone, "ROLE=own|all",
     "Restart only the agents of a failed worker's role, or all; repeatable"},
    {"restart-memory", Text, Restarts, kOurs, kPet, "restart.memory", kNone, "FILE",
     "Keep restarts and bad nodes in FILE across requeues",
     "On a file system that all nodes share. Not with torchrun's policy alone.",
     &JobSpec::restart_memory},
    {"monitor-interval", Float, Restarts, kTorchrun, kPet, "restart.monitor_interval", "0.1",
     "SECONDS", "Accepted for compatibility; failures are seen at once", kNone,
     &JobSpec::monitor_interval},
    {"signals-to-handle", List, Restarts, kTorchrun, kPet, "restart.signals_to_handle",
     "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "NAME,...",
     "Signals that end the job; workers get them, too"},
    {"forward-signals", List, Restarts, kOurs, kPet, "restart.forward_signals", "SIGUSR1,SIGUSR2",
     "NAME,...", "Signals passed on to the workers without ending the job",
     "A signal that every process of the job got is not passed on again."},
    {"shutdown-timeout", Int, Restarts, kTorchrun, kPet, "restart.shutdown_timeout", "30",
     "SECONDS", "Time for workers to end before they are killed",
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT changes the default.", &JobSpec::shutdown_timeout, kNone,
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {"preempt-signals", List, Restarts, kOurs, kPet, "restart.preempt_signals", kNone, "NAME,...",
     "Signals that make the job save and end with exit code 75", "See elastrun-preemption(7)."},
    {"preempt-file", Text, Restarts, kOurs, kPet, "restart.preempt_file", kNone, "FILE",
     "Save and end once FILE exists, such as one from a preStop hook", kNone,
     &JobSpec::preempt_file},
    {"preempt-timeout", Text, Restarts, kOurs, kPet, "restart.preempt_timeout", kNone, "SECONDS",
     "Time for a preempted job to save", "Default: shutdown_timeout."},
    {"preempt-ack", Choice, Restarts, kOurs, kPet, "restart.preempt_ack", "rank0", "WHO",
     "Ranks whose checkpoint ends that time", kNone, &JobSpec::preempt_ack_all, "rank0,all"},
    {"on-preempt", Choice, Restarts, kOurs, kPet, "restart.on_preempt", "exit", "WHAT",
     "After the save: exit with code 75, or have Slurm requeue first", kNone, &JobSpec::requeues,
     "exit,requeue"},
    {"exit-barrier-timeout", Float, Restarts, kOurs, kPet, "restart.exit_barrier_timeout", "300",
     "SECONDS", "Time that a finished node waits for the others",
     "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT changes the default.", &JobSpec::exit_barrier_timeout,
     kNone, "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"},
    {"exit-code", Choice, Restarts, kOurs, kPet, "restart.exit_code", "torchrun", "WHICH",
     "Exit code of a failed job: 1, or that of the first failed worker", kNone,
     &JobSpec::exit_code_of_worker, "torchrun,worker"},

    {"hang-timeout", Text, Restarts, kOurs, kPet, "restart.hang_timeout", "off", "SECONDS|auto|off",
     "Time without progress of any worker that counts as a hang",
     "auto: learnt from reported steps, at least 10 min; off: learnt, too, but a hang is only "
     "reported."},
    {"on-hang", Choice, Restarts, kOurs, kPet, "restart.on_hang", "report", "WHAT",
     "Reaction to a hang, after taking the stacks of all workers",
     "restart: start the workers again, as after a failure; fail: end the job.", &JobSpec::on_hang,
     "report,restart,fail"},

    {"log-dir", Text, Output, kTorchrun, kPet, "logs.dir", kNone, "DIR",
     "Parent of each run's new log directory", "Default: a temporary one.", &JobSpec::log_dir},
    {"redirects", Text, Output, kTorchrun, kPet, "logs.redirects", "0", "STD|RANK:STD,...",
     "Write streams of workers to log files instead of the console",
     "0: none, 1: stdout, 2: stderr, 3: both; for all local ranks or by rank: \"0:3,1:2\".",
     &JobSpec::redirects, kNone, kNone, 'r'},
    {"tee", Text, Output, kTorchrun, kPet, "logs.tee", "0", "STD|RANK:STD,...",
     "Write streams of workers to log files and to the console", "Values as for redirects.",
     &JobSpec::tee, kNone, kNone, 't'},
    {"local-ranks-filter", List, Output, kTorchrun, kPet, "logs.local_ranks_filter", kNone,
     "RANK,...", "Show the output of these local ranks only", "Log files are written all the same.",
     &JobSpec::local_ranks_filter},
    {"duplicate-stdout-filters", List, Output, kTorchrun, kPet, "logs.duplicate_stdout_filters",
     kNone, "TEXT,...",
     "Copy lines of stdout that contain one of these texts to filtered_stdout.log",
     "In a text, two commas stand for a literal one; a list holds the texts as they are.",
     &JobSpec::stdout_filters},
    {"duplicate-stderr-filters", List, Output, kTorchrun, kPet, "logs.duplicate_stderr_filters",
     kNone, "TEXT,...",
     "Copy lines of stderr that contain one of these texts to filtered_stderr.log",
     "In a text, two commas stand for a literal one; a list holds the texts as they are.",
     &JobSpec::stderr_filters},
    {"log-line-prefix-template", Text, Output, kOurs, kPet, "logs.prefix_template",
     "[${role_name}${local_rank}]:", "TEMPLATE", "Prefix of each line shown by --tee",
     "Knows ${role_name}, ${local_rank}, ${rank} and ${hostname}. "
     "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE changes the default.",
     kNoField, kNone, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {"logs-specs", Text, Output, kTorchrun, kNoPet, "logs.specs", kNone, "NAME",
     "Name of a registered log specification; \"default\" is built in", kNone,
     &JobSpec::logs_specs},
    {"log-format", Choice, Output, kOurs, kPet, "logs.format", "text", "FORM",
     "Form of the launcher's own log lines",
     "text: like torch; json: an object a line, for the collector of a cluster.",
     &JobSpec::json_log, "text,json"},

    {"status", Choice, Reports, kOurs, kPet, "reports.status", "auto", "WHEN",
     "Show a live status line; auto shows it on a terminal", kNone, &JobSpec::status,
     "auto,on,off"},
    {"summary", Choice, Reports, kOurs, kPet, "reports.summary", "full", "FORM",
     "Length of the account of time at the end",
     "full: an account on the node with group rank 0, a line on the others; short: a line.",
     &JobSpec::summary, "full,short,off"},
    {"goodput", Choice, Reports, kOurs, kPet, "reports.goodput", "agent", "HOW",
     "Sources of the account of time",
     "agent: what the launcher sees and workers report; auto: hooks in torch, too, for scripts "
     "that report nothing; off: none.",
     &JobSpec::goodput, "auto,agent,off"},
    {"report", Text, Reports, kOurs, kPet, "reports.file", kNone, "FILE",
     "Write the result of the job to FILE as JSON", kNone, &JobSpec::report_file},
    {"http", Text, Reports, kOurs, kPet, "reports.http", kNone, "[ADDRESS:]PORT",
     "Serve a live page, metrics and health of the job",
     "Without an address: for this machine only. 0.0.0.0:9400 or [::]:9400 serves anyone who can "
     "reach it, without a password. Port 0 takes a free one and prints it.",
     &JobSpec::http},
    {"event-log-handler", Text, Reports, kTorchrun, kPet, "reports.event_log_handler", "null",
     "NAME", "Destination of the launcher's events: null or console", kNone,
     &JobSpec::event_log_handler},
    {"metrics", List, Reports, kOurs, kPet, "metrics.sinks", kNone, "SINK[:ARG]",
     "Send metrics and events to console, jsonl:FILE, prometheus:FILE, tensorboard:DIR, "
     "trace:FILE, otlp:URL, exec:COMMAND or none; repeatable",
     "In the variable commas separate sinks, and two commas stand for a literal one. "
     "[[metrics.route]] selects what a sink gets, see elastrun.toml(5)."},
    {"metrics-interval", Float, Reports, kOurs, kPet, "metrics.interval", "10", "SECONDS",
     "Interval of metrics pages and pushes"},
    {"aggregations", List, Reports, kOurs, kPet, "metrics.aggregations", kNone,
     "PATTERN=NAME[+NAME...]",
     "Summarise matching Stats of workers like this, whatever the script says: 'train.*=p95+p99'; "
     "repeatable",
     "In the variable commas separate them. The names are value, mean, count, sum, max, min, "
     "stddev, p50, p90, p95, p99, p999 and histogram; the first matching pattern counts."},

    {"config", Text, Launch, kOurs, kPet, kNone, kNone, "FILE",
     "Read options, script and workers' variables from a TOML file"},
    {"dry-run", Flag, Launch, kOurs, kNoPet, kNone, kNone, kNone,
     "Print the workers that would start, and start none", kNone, &JobSpec::dry_run},
    {"explain", Flag, Launch, kOurs, kNoPet, kNone, kNone, kNone,
     "Print the source of each value before the run", kNone, &JobSpec::explain},
    {"print-config", Flag, Launch, kOurs, kNoPet, kNone, kNone, kNone,
     "Print a TOML file with all keys, defaults and meanings"},
    {"print-completion", Choice, Launch, kOurs, kNoPet, kNone, kNone, "SHELL",
     "Print a completion script for a shell", kNone, kNoField, "bash,zsh,fish,tcsh"},
    {"install-into", Text, Launch, kOurs, kNoPet, kNone, kNone, "DIR",
     "Copy this program to DIR/bin, also as torchrun, for another container"},
    {"version", Flag, Launch, kOurs, kNoPet, kNone, kNone, kNone, "Print the version"},
    {"help", Flag, Launch, kTorchrun, kNoPet, kNone, kNone, kNone, "Print this help", kNone,
     kNoField, kNone, kNone, 'h'},
};
}  // namespace table

constexpr std::size_t kOptions = std::size(table::kRows);
constexpr Opt OptionRow::id() const {
  return static_cast<Opt>(this - table::kRows);
}
/// "rdzv-id"_opt: the option of that name. Another name does not compile.
consteval Opt operator""_opt(const char* name, std::size_t size) {
  for (const OptionRow& row : table::kRows) {
    if (row.name == std::string_view(name, size)) return row.id();
  }
  throw "no row has this name";
}

/// One key of --rdzv-conf. The type of its member says how its text is read and checked
/// (option_values.cpp); without a member the key is accepted, as by torchrun, and changes nothing.
struct SettingRow {
  std::string_view name;
  std::string_view backends;  // those that read it
  std::variant<std::monostate, Duration RendezvousConfig::*, int RendezvousConfig::*,
               bool RendezvousConfig::*, std::optional<bool> RendezvousConfig::*,
               PortRange RendezvousConfig::*, std::string RendezvousConfig::*>
      field{};
};
/// All keys. If two fill one member, the later one wins.
std::span<const SettingRow> settings();

constexpr std::span<const OptionRow, kOptions> options() {
  return table::kRows;
}
constexpr const OptionRow& row(Opt id) {
  return table::kRows[static_cast<std::size_t>(id)];
}
/// The row whose long spelling (with dashes or underscores, without `--`) this is, or null.
const OptionRow* find_option(std::string_view name);
/// The row whose TOML key ("rendezvous.backend") this is, or null.
const OptionRow* find_toml_key(std::string_view key);

/// True if each occurrence on the command line counts, not only the last one. It is a List; such a
/// text is not divided at its commas.
constexpr bool repeats(Opt id) {
  return id == "metrics"_opt || id == "aggregations"_opt || id == "restart-rule"_opt ||
         id == "role-restart"_opt;
}

/// "--rdzv-id": the spelling shown to people.
std::string spelling(const OptionRow& option);
/// "--rdzv_id", or empty for a name of one word.
std::string underscore_spelling(const OptionRow& option);
/// "-r/--redirects", "--rdzv-id/--rdzv_id": as argparse names an option in its errors.
std::string error_name(const OptionRow& option);
/// "PET_RDZV_ID", or empty if no variable sets it.
std::string pet_name(const OptionRow& option);
std::vector<std::string> choices(const OptionRow& option);
std::string_view title(Group group);

}  // namespace elastrun::spec
