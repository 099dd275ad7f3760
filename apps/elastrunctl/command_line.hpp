// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "spec/agreed_rules.hpp"

#include <optional>
#include <string>
#include <vector>

namespace elastrun::ctl {

/// A line per row, indented by two blanks, with columns as wide as their widest cell. Pure.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// Without what would steer a terminal: names come from other programs.
std::string shown(const std::string& text);

// Each subcommand is in the file of its name (`run_status`: status.cpp).

/// Exit status of every subcommand; usage errors give 2.
constexpr int kExitDone = 0, kExitFailed = 1, kExitUsage = 2;

/// Which job is meant, and what proves that we may ask.
struct JobChoice {
  std::string run_id;             // empty: any
  std::string secret_file;        // wins over ELASTRUN_SECRET
  std::string conf;               // --rdzv-conf
  spec::RendezvousConfig config;  // what that says
};
/// The job's secret, read as the agents read it; empty if there is none. Fails with Usage.
Result<std::string> secret_of(const JobChoice& job);

/// `elastrunctl status`
struct StatusOptions {
  std::string target;  // a job of this machine, or HOST[:PORT]; empty: the jobs of this machine
  JobChoice job;
  double timeout = 5;  // seconds
  bool json = false;
};
int run_status(const StatusOptions& options);

/// `elastrunctl stacks`
struct StacksOptions {
  std::string target;  // a job of this machine, or HOST[:PORT]; empty: the only job here
  JobChoice job;
  double timeout = 10;  // seconds
  bool json = false, kernel = false;
};
int run_stacks(const StacksOptions& options);

/// `elastrunctl preempt`
struct PreemptOptions {
  std::string job;                 // as runs_of takes it; empty: the only one
  std::optional<double> deadline;  // seconds; nothing: the job's own
};
int run_preempt(const PreemptOptions& options);

/// `elastrunctl clean`
int run_clean();

/// `elastrunctl logs`
struct LogsOptions {
  std::string job;          // as runs_of takes it; empty: the only one
  std::optional<int> rank;  // nothing: all of this machine
  bool follow = true;
  std::optional<int> lines;  // of the end of each file; nothing: all of the current attempt
};
int run_logs(const LogsOptions& options);

/// `elastrunctl goodput report`
struct GoodputOptions {
  std::vector<std::string> files;  // "-": standard input
  bool json = false;
  bool compatible = false;  // also what ml-goodput-measurement would say
  std::string html;         // the file for the page, "-": standard output; empty: text
};
int run_goodput_report(const GoodputOptions& options);

/// `elastrunctl goodput convert`
struct ConvertOptions {
  std::vector<std::string> files;  // as those of `report`
  std::string to;                  // kConversions
  std::string output;              // a file, or for TensorBoard a directory; empty: standard output
};
inline constexpr const char* kConversions[] = {"chrome-trace", "tensorboard", "journal"};
int run_goodput_convert(const ConvertOptions& options);

/// `elastrunctl goodput calculate`
struct CalculateOptions {
  std::string job;
  bool elastic = false;            // as ElasticGoodputCalculator
  std::vector<std::string> files;  // logs of recorders, journals; what is asked reads them on
};
int run_goodput_calculate(const CalculateOptions& options);

/// `elastrunctl goodput watch`
struct WatchOptions {
  std::string target;  // a job of this machine, or its journal or directory; empty: the only job
};
int run_goodput_watch(const WatchOptions& options);

/// `elastrunctl goodput what-if`
struct WhatIfOptions {
  std::vector<std::string> files;  // as of `report`
  std::string policy;              // torchrun or auto; empty: torchrun
  std::vector<std::string> restart_rules;
  std::optional<int> max_restarts;  // none: as recorded
  bool json = false;
};
int run_goodput_what_if(const WhatIfOptions& options);

/// `elastrunctl store`
struct StoreOptions {
  std::string listen;  // ADDRESS[:PORT]
  JobChoice job;
  bool coordinator_only = false;
  std::string state;  // file that outlives it; empty: none
};
int run_store(const StoreOptions& options);

/// One line on stderr: "elastrunctl: TEXT". Gives `exit_code` back.
int report_error(const std::string& text, int exit_code);

/// The first word to the program elastrun that makes it this program, where one file is both: in a
/// wheel, which has elastrunctl as a script (elastrunctl.sh).
constexpr const char* kAsElastrunctl = "--as-elastrunctl";

/// All of the program; what main() returns.
int run_program(int argc, char** argv);

}  // namespace elastrun::ctl
