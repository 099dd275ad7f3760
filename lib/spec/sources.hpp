// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/text.hpp"
#include "spec/option_table.hpp"

#include <array>
#include <cstddef>
#include <expected>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::spec {

/// Devices of one type, as torch calls it.
struct Accelerators {
  std::string type;
  int count = 0;
};

/// What `resolve` may ask the machine; nothing is asked unless needed. A program with the libraries
/// for devices counts those, and tests give all answers themselves.
class HostEnvironment {
 public:
  virtual ~HostEnvironment() = default;
  /// A variable of the environment, or nothing if it is unset.
  virtual std::optional<std::string> variable(const std::string& name) const;
  /// The names of all variables that begin with PET_, sorted.
  virtual std::vector<std::string> pet_variables() const;
  virtual Result<std::string> read_file(
      const std::string& path, std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    return elastrun::read_file(path, most);
  }
  /// Whether the path names a file at all, and one that may be executed.
  virtual bool exists(const std::string& path) const;
  virtual bool is_executable(const std::string& path) const;
  /// CPUs that this process may run on.
  virtual int count_cpus() const { return 1; }
  /// Devices that a worker would see; 0 where there are none.
  virtual int count_gpus() const { return 0; }
  virtual int count_xpus() const { return 0; }
  /// "nvlink-CLUSTER-CLIQUE" of the GPUs; empty: there is none, or the driver does not tell.
  virtual std::string nvlink_domain() const { return {}; }
  virtual std::string make_uuid() const { return random_uuid(); }
  /// The file of this program, with links resolved; empty if that is not known.
  virtual std::string own_program() const;
  /// Whether there may be accelerators of other makers, and what torch, which takes seconds to
  /// import, says of one by its name, or of the current one for "auto". Fails with an empty text
  /// where torch is not asked.
  virtual bool has_other_accelerators() const { return false; }
  virtual Result<Accelerators> ask_torch(const std::string& /*interpreter*/,
                                         const std::string& /*name*/) const {
    return fail(Code::Usage, "");
  }

  /// How this program was called, argv[0]: links are not resolved. Empty if that is not known.
  std::string called_as{};
  /// Names that a custom launcher has registered, beside the built-in ones.
  std::vector<std::string> rdzv_backends{}, event_handlers{}, logs_specs{};
};

/// Why a command line cannot be run, and how to say so.
struct Refusal {
  std::string text;         // one sentence; torchrun's where torchrun has one
  std::string hint{};       // what to do; may be empty, may have several lines
  int exit_code = 2;        // 2: what was said is wrong; 1: torchrun's launcher would raise
  bool with_usage = false;  // the usage lines stand before the text, as argparse prints them
  bool operator==(const Refusal&) const = default;
};

template <class T>
using Answer = std::expected<T, Refusal>;

/// Sources of a value, strongest first.
enum class Origin { CommandLine, Variable, File, Scheduler, Default, Implied };

/// One option as one source gives it, still text.
struct Override {
  Opt id;
  std::string text;  // of a flag: what int() takes; of a list: joined by commas
  Origin origin = Origin::Default;
  std::string source{};              // "--role on the command line", "PET_ROLE", "job.toml:12"
  std::vector<std::string> items{};  // of a list written as such (TOML); else empty
  bool listed = false;               // `items` count, not `text`
  bool operator==(const Override&) const = default;
};

/// The command line, split and spelt out, not yet converted or checked against other sources.
struct CommandLine {
  std::optional<Opt> instead;   // of a run: "help"_opt, "version"_opt, ...
  std::string argument;         // of that: the shell, the folder; "-h" of help
  std::vector<Override> given;  // each option at most once: the last occurrence
  std::optional<std::string> script;
  std::vector<std::string> script_args;
  std::vector<std::string> unrecognized;  // option-like words that are none
};

/// A route as the job file has it.
struct MetricsRouteRow {
  std::string sink;
  MetricsRoute route;
  std::string source;  // "job.toml:12"
};

/// The contents of a TOML file.
struct TomlJob {
  std::vector<Override> given;
  std::optional<std::string> script;
  std::string script_source;  // "job.toml:3"
  std::vector<std::string> script_args;
  std::map<std::string, std::string> worker_env;
  std::vector<MetricsRouteRow> metrics_routes;
};
/// Reads the text of a job file (elastrun.toml(5)). `path` is only for messages and sources.
/// Fails, with exit code 2 and "PATH:LINE:COLUMN: ...", on bad TOML, on a key that is none (naming
/// the nearest that is one) and on a value of the wrong type (naming what was expected). An empty
/// text, or 0, for a key without a default means that it is not given.
Answer<TomlJob> parse_toml(std::string_view text, std::string_view path);

/// For each option the value that won, and where it comes from. Still text.
class Values {
 public:
  Values() {
    for (const auto& option : options())
      replace({option.id(), std::string(option.fallback), Origin::Default, "default"});
  }

  const Override& operator[](Opt id) const { return values_[static_cast<std::size_t>(id)]; }
  /// True if a source gave it: it is neither the default nor implied.
  bool is_given(Opt id) const {
    const Origin origin = (*this)[id].origin;
    return origin != Origin::Default && origin != Origin::Implied;
  }
  bool is_on(Opt id) const { return parse_int((*this)[id].text).value_or(0) != 0; }  // of a flag
  /// Takes the value if its origin is at least as strong as that of the present one.
  void offer(Override value) {
    // Origins are in the order of their strength; of equal ones the last wins.
    if (value.origin <= (*this)[value.id].origin) replace(std::move(value));
  }
  /// Replaces the value whatever its origin.
  void replace(Override value) { values_[static_cast<std::size_t>(value.id)] = std::move(value); }
  /// Replaces the value by one that follows from others, as the rules of --standalone do.
  void imply(Opt id, std::string text, std::string source) {
    replace({id, std::move(text), Origin::Implied, std::move(source)});
  }

 private:
  std::array<Override, kOptions> values_;
};

/// A job that can be run, and how it came to be so.
struct Resolved {
  JobSpec spec;
  Values values;                      // for --explain
  std::string script_source;          // "on the command line", "job.toml:3"
  std::vector<std::string> warnings;  // for the launcher's log, in order; the job runs all the same
  std::vector<std::string> notes;     // the same at info level
  /// For what people have to be told who have started a job with `spec.cannot_start`.
  std::optional<Refusal> refusal{};
};

/// Reads the words after the program's name as Python's argparse takes them, with torchrun's
/// options and ours: unique prefixes, underscore spellings, `-r3`, `-r=3`, `-mr 1`, negative
/// numbers as values, `--`. Our own options take part in prefix matching only where none of
/// torchrun's matches, so that each of its abbreviations still works. What follows the script
/// belongs to the script. The values are text of the right form; whether they make a job is for
/// `resolve`.
Answer<CommandLine> parse_command_line(std::span<const std::string> words);

/// Reads the PET_* variables, and the two of torchelastic that change a default. An invalid number
/// is refused as on the command line (exit 2); a flag that is not an integer with Python's
/// ValueError (exit 1). `decided` has the options whose variable does not matter any more.
Answer<std::vector<Override>> read_variables(const HostEnvironment& around, const Values& decided);
/// A warning for each variable PET_* that no option reads, with the nearest name that one does.
std::vector<std::string> unknown_variables(const HostEnvironment& around);

/// The first argument of a script that is meant for us, as far as one can tell; empty: none.
std::string misplaced_option(const std::vector<std::string>& script_args);
/// "unrecognized arguments: --bogus", with the option that does it, or the nearest one, as a hint.
Refusal unrecognized(const std::vector<std::string>& words);

/// Writes a refusal for stderr: usage if it asks for it, `PROGRAM: error: TEXT`, the hint.
std::string refusal_text(const Refusal& refusal, std::string_view program);

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

/// Merges command line, PET_* variables, the TOML file, the scheduler's variables and the defaults,
/// in this order of strength, and checks the result. What torchrun's parser or launcher refuses is
/// refused with its texts and exit codes; what it silently drops is a warning.
/// Asks `around` alone; the same answers give the same job (but for random run ids).
Answer<Resolved> resolve(const CommandLine& line, const HostEnvironment& around);

/// For --explain: a line for each option, `name = value   source`, grouped as --help.
std::string explain_text(const Resolved& job);

}  // namespace elastrun::spec
