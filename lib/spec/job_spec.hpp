// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/agreed_rules.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::spec {

/// Which standard streams of which local ranks: `--redirects`, `--tee`. Bits as torchrun's Std.
struct StdMap {
  static constexpr unsigned kNone = 0, kOut = 1, kErr = 2, kBoth = 3;
  unsigned everyone = kNone;
  std::map<int, unsigned> by_local_rank;  // if not empty, ranks not listed get kNone
  unsigned of(int local_rank) const {
    if (by_local_rank.empty()) return everyone;
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? kNone : found->second;
  }
  bool operator==(const StdMap&) const = default;
};

/// The address at which a server listens.
struct ListenAddress {
  std::string address = "127.0.0.1";  // a number, IPv6 without brackets
  std::uint16_t port = 0;             // 0: any that is free
  bool operator==(const ListenAddress&) const = default;
};

/// One [[metrics.route]] of a job file: which records a sink gets, by group (scope) and name, each
/// as it is or ending in `*`, and by least severity. What is empty matches all.
struct MetricsRoute {
  std::string group, name;
  std::string severity;  // "warn", in lower case
  bool operator==(const MetricsRoute&) const = default;
};

/// One destination of metrics and events: `--metrics NAME[:ARGUMENT]`. Checked, not opened.
struct SinkChoice {
  enum class Kind {
    Console,
    JsonLines,
    Prometheus,
    TensorBoard,
    Trace,
    Otlp,
    Exec
  } kind = Kind::Console;
  std::string text;  // as it was given: its name in logs and reports
  std::string argument;
  /// True if it gets each sample of a worker, false if it gets the sum of a second of them.
  bool each = false;
  std::vector<MetricsRoute> routes{};  // empty: what it takes by default
  bool openmetrics = false;            // prometheus: in that form
  bool operator==(const SinkChoice&) const = default;
};

/// How the workers are started.
enum class Mode { Script, Module, Program, RunPath };
// In the order of the choices in the option table, after None if an option lacks a default.
enum class NumaBinding { None, Node, Socket, Exclusive, CoreComplex };
enum class Switch { Auto, On, Off };
enum class Summary { Full, Short, Off };
enum class Goodput { Auto, Agent, Off };
enum class OnHang { Report, Restart, Fail };

/// The whole job as plain data: what command line, PET_*, TOML and scheduler said, merged, checked
/// and converted. Made once by `resolve`, then only read.
struct JobSpec : AgreedRules {
  // What to run
  std::string script;
  std::vector<std::string> script_args;
  std::string name;    // what people call the job; never empty
  bool named = false;  // by --name: log directories are called so, too
  const std::string& directory_name() const { return named ? name : run_id; }
  Mode mode = Mode::Script;
  std::string interpreter;                        // PYTHON_EXEC, or python3/python found in PATH
  bool interpreter_given = false;                 // by PYTHON_EXEC: the report is titled with it
  std::string start_method = "spawn";             // of restarts: forkserver, auto
  std::map<std::string, std::string> worker_env;  // [env] of the TOML file
  bool worker_lib = false;                        // whose PYTHONPATH then has our package

  /// Why its workers cannot be started on this node: the others are told. Empty: they can.
  std::string cannot_start;

  // How many, where
  int nproc_per_node = 1;
  std::string role = "default";
  int node_rank = 0;
  bool node_rank_given = false;

  // Rendezvous
  bool standalone = false;  // given, or implied: one node and nothing said about rendezvous
  std::string rdzv_backend{backend::kStatic};  // after the implicit rules: "c10d" when standalone
  std::string rdzv_endpoint;  // effective: localhost:0 when standalone, ADDR:PORT if static
  std::string run_id = "none";
  std::map<std::string, std::string> rdzv_conf;  // --rdzv-conf, for a handler that is not ours
  RendezvousConfig rendezvous;                   // the same for ours
  std::string job_start;  // which start of the job this is, as the scheduler tells; may be empty
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  std::string local_addr;       // empty: found out
  std::string topology;         // where this node is, as "zone1.rack7"; empty: not known
  std::string requeue_command;  // which starts this job again, if the scheduler has one

  // Restarts and ending
  std::string restart_memory;     // a file of what the restart policy knows; empty: none
  double monitor_interval = 0.1;  // accepted for compatibility: nothing here polls
  std::vector<std::string> signals_to_handle = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"};
  std::vector<std::string> forward_signals = {"SIGUSR1", "SIGUSR2"};  // none of those to handle
  std::string signals_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // for TORCHELASTIC_SIGNALS_TO_HANDLE
  Duration shutdown_timeout = std::chrono::seconds(30);
  // Preemption: asks that are obeyed by saving, and exit code 75.
  std::vector<std::string> preempt_signals;  // some of those to handle
  std::string preempt_file;                  // which asks by being there; empty: none
  std::optional<Duration> preempt_timeout;   // none: shutdown_timeout
  bool requeues = false;                     // --on-preempt requeue: scontrol requeue
  bool saves_when_preempted() const { return !preempt_signals.empty() || !preempt_file.empty(); }
  bool exit_code_of_worker = false;  // --exit-code worker
  Duration exit_barrier_timeout = std::chrono::seconds(300);
  bool hang_auto = false;              // --hang-timeout auto
  std::optional<Duration> hang_limit;  // --hang-timeout SECONDS; nothing: off, or auto
  OnHang on_hang = OnHang::Report;

  // Logs and reports
  std::string log_dir;  // empty: a temporary one, kept only if it holds something of use
  StdMap redirects, tee;
  std::vector<int> local_ranks_filter;  // empty: all
  std::optional<std::vector<std::string>> stdout_filters, stderr_filters;
  std::string logs_specs;        // a registered one; empty or "default": ours
  std::string prefix_template;   // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; empty: [ROLELOCAL_RANK]:
  bool json_log = false;         // --log-format json
  std::string report_file;       // --report
  Switch status = Switch::Auto;  // --status: the live line on a terminal
  Summary summary = Summary::Full;
  Goodput goodput = Goodput::Agent;  // --goodput: who tells where the time goes
  std::vector<SinkChoice> metrics;   // --metrics; empty: none
  Duration metrics_interval = std::chrono::seconds(10);
  /// --aggregations: by pattern, instead of those that a script or an instrument names.
  std::vector<std::pair<std::string, std::vector<std::string>>> aggregations{};
  std::optional<ListenAddress> http;  // --http
  std::string event_log_handler = "null";

  // Binding
  NumaBinding numa = NumaBinding::None;
  bool virtual_local_rank = false;

  // OMP_NUM_THREADS is unset, is not in [env], and several workers share the node: the workers
  // get 1.
  bool limit_omp_threads = false;

  // Asked for instead of a run
  bool dry_run = false, explain = false;

  // The fork server of --start-method forkserver and auto
  std::optional<std::vector<std::string>> preload;  // none: what it finds
  std::optional<int> warm_spares;                   // its children that are forked ahead
  std::string fork_server;                          // its file; empty: there is none
  int fork_socket = -1;  // to a copy of the caller that forks all workers; -1: there is none
};

}  // namespace elastrun::spec
