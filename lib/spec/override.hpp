// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/option_table.hpp"

#include <expected>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::spec {

/// Why a command line cannot be run, and how to say so.
struct Refusal {
  std::string text;         // one sentence; torchrun's where torchrun has one
  int exit_code = 2;        // 2: what was said is wrong; 1: torchrun's launcher would raise
  bool with_usage = false;  // the usage lines stand before the text, as argparse prints them
  std::string hint;         // what to do; may be empty, may have several lines
  bool operator==(const Refusal&) const = default;
};

template <class T>
using Answer = std::expected<T, Refusal>;

/// Where a value comes from, strongest first.
enum class Origin { CommandLine, Variable, File, Scheduler, Default, Implied };

/// One option as one source gives it, still text.
struct Override {
  Opt id;
  std::string text;                // of a flag: what int() takes; of a list: joined by commas
  std::vector<std::string> items;  // of a list written as such (TOML); else empty
  bool listed = false;             // `items` count, not `text`
  Origin origin = Origin::Default;
  std::string source;  // "--role on the command line", "PET_ROLE", "job.toml:12"
  bool operator==(const Override&) const = default;
};

/// What the words of the command line ask for instead of a run.
enum class Action { Run, Help, Version, Completion, Config, Install };

/// The command line, split and spelt out, not yet converted or checked against other sources.
struct CommandLine {
  Action action = Action::Run;
  std::string argument;         // the shell of Completion, the folder of Install
  std::vector<Override> given;  // each option at most once: the last occurrence
  std::optional<std::string> script;
  std::vector<std::string> script_args;
  std::vector<std::string> unrecognized;  // option-like words that are none
};

/// One [[metrics.route]] of a job file: which records a sink gets, by group (scope) and name, each
/// as it is or ending in `*`, and by least severity. What is empty matches all.
struct MetricsRoute {
  std::string group, name;
  std::string severity;  // "warn", in lower case
  bool operator==(const MetricsRoute&) const = default;
};
struct MetricsRouteRow {
  std::string sink;
  MetricsRoute route;
  std::string source;  // "job.toml:12"
};

/// What a TOML file says.
struct TomlJob {
  std::vector<Override> given;
  std::optional<std::string> script;
  std::string script_source;  // "job.toml:3"
  std::vector<std::string> script_args;
  std::map<std::string, std::string> worker_env;
  std::vector<MetricsRouteRow> metrics_routes;
};

}  // namespace elastrun::spec
