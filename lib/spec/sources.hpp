// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/text.hpp"
#include "spec/option_table.hpp"

#include <array>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::spec {

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

/// Actions that the command line asks for instead of a run.
enum class Action { Run, Help, Version, Completion, Config, Install };

/// The command line, split and spelt out, not yet converted or checked against other sources.
struct CommandLine {
  Action action = Action::Run;
  std::string argument;         // the shell of Completion, the folder of Install, "-h" of Help
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
      replace({option.id, std::string(option.fallback), Origin::Default, "default"});
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

}  // namespace elastrun::spec
