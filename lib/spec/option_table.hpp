// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace elastrun::spec {

/// Every option of the launcher, in the order of --help.
enum class Opt {
  // What to run
  Module,
  NoPython,
  RunPath,
  StartMethod,
  WarmSpares,
  Preload,
  Name,
  // Workers
  NprocPerNode,
  Role,
  VirtualLocalRank,
  NumaBinding,
  WorkerLib,
  // Nodes and rendezvous
  Nnodes,
  Standalone,
  RdzvBackend,
  RdzvEndpoint,
  RdzvId,
  RdzvConf,
  NodeRank,
  MasterAddr,
  MasterPort,
  LocalAddr,
  RankOrder,
  Topology,
  // Restarts and ending
  MaxRestarts,
  RestartPolicy,
  RestartRule,
  RoleRestart,
  RestartMemory,
  MonitorInterval,
  SignalsToHandle,
  ForwardSignals,
  ShutdownTimeout,
  PreemptSignals,
  PreemptFile,
  PreemptTimeout,
  PreemptAck,
  OnPreempt,
  ExitBarrierTimeout,
  ExitCode,
  HangTimeout,
  OnHang,
  // Output of the workers
  LogDir,
  Redirects,
  Tee,
  LocalRanksFilter,
  StdoutFilters,
  StderrFilters,
  PrefixTemplate,
  LogsSpecs,
  LogFormat,
  // Reports
  Status,
  Summary,
  Goodput,
  Report,
  Http,
  EventLogHandler,
  Metrics,
  MetricsInterval,
  Aggregations,
  // This launch
  Config,
  DryRun,
  Explain,
  PrintConfig,
  PrintCompletion,
  InstallInto,
  Version,
  Help,
};
constexpr std::size_t kOptions = static_cast<std::size_t>(Opt::Help) + 1;

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

/// One option. The parser, --help, the PET_* loader, the TOML loader, the default file, the
/// completions, the job and the test of the manual page all read these rows and nothing else.
struct OptionRow {
  Opt id;
  std::string_view name;  // "nproc-per-node": the long spelling without its dashes
  char letter;            // 'r' for -r, or 0
  Kind kind;
  Group group;
  bool torchrun;              // torchrun 2.13 has it too; its abbreviations are those of torchrun
  bool pet;                   // may be set by PET_NAME
  std::string_view toml;      // "job.nproc_per_node", or empty
  std::string_view fallback;  // the default as the user would write it; empty: none
  std::string_view choices;   // of a Choice: "a,b,c"
  std::string_view metavar;   // of a valued option, for people
  std::string_view help;      // one sentence without its full stop
  std::string_view details;   // more sentences, for the file of defaults; may be empty
  Field field{};
  std::string_view variable{};  // of torch, weaker than PET_NAME; empty: none
};

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

/// All rows; `options()[i].id == Opt(i)`.
std::span<const OptionRow, kOptions> options();
const OptionRow& row(Opt id);
/// The row whose long spelling (with dashes or underscores, without `--`) this is, or null.
const OptionRow* find_option(std::string_view name);
/// The row whose TOML key ("rendezvous.backend") this is, or null.
const OptionRow* find_toml_key(std::string_view key);

/// True if each occurrence on the command line counts, not only the last one. It is a List; such a
/// text is not divided at its commas.
constexpr bool repeats(Opt id) {
  return id == Opt::Metrics || id == Opt::Aggregations || id == Opt::RestartRule ||
         id == Opt::RoleRestart;
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
