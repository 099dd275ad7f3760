// SPDX-License-Identifier: Apache-2.0
#include "spec/program.hpp"

#include "core/search_path.hpp"
#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <system_error>

namespace elastrun::spec {
namespace {

bool has_slash(const std::string& name) {
  return name.find('/') != std::string::npos;
}

std::vector<std::string> candidates(const std::string& name, const HostEnvironment& around) {
  return program_candidates(name, around.variable("PATH"));
}

Refusal cannot_run(std::string_view what, const std::string& name, const HostEnvironment& around,
                   std::string hint) {
  // execvp(3) ends with EACCES where a file is there and cannot be run, and with ENOENT else: the
  // two need different advice.
  const auto paths = candidates(name, around);
  const bool there =
      std::ranges::any_of(paths, [&](const auto& path) { return around.exists(path); });
  if (there) {
    return launcher_refusal(
        fmt::format("cannot run the {} {}: Permission denied", what, in_quotes(name)),
        "it is not an executable file (chmod +x)");
  }
  return launcher_refusal(
      fmt::format("cannot run the {} {}: No such file or directory", what, in_quotes(name)),
      std::move(hint));
}

/// The interpreter of the folder that this program was called in: torchrun, installed in a virtual
/// environment and called by its path (cron, systemd), runs that one's Python. A folder of PATH
/// counts only if it is an environment's: /usr/bin/elastrun serves whatever environment is active.
/// That is so too when the caller has looked it up in PATH before: srun(1) calls by the whole path.
std::optional<std::string> beside_us(const HostEnvironment& around) {
  const auto& called = around.called_as;
  if (called.empty()) return std::nullopt;
  const auto found = find_program(called.substr(called.rfind('/') + 1), around);
  const auto program = has_slash(called) ? called : found.value_or("");
  if (!has_slash(program)) return std::nullopt;
  const auto folder = program.substr(0, program.rfind('/'));
  const bool is_environment =
      around.exists(folder + "/../pyvenv.cfg") || around.exists(folder + "/../conda-meta");
  if (program == found && !is_environment) return std::nullopt;
  for (const char* name : {"/python3", "/python"}) {
    if (around.is_executable(folder + name)) return folder + name;
  }
  return std::nullopt;
}

std::optional<std::string> of_active_environment(const HostEnvironment& around) {
  const auto environment = around.variable("VIRTUAL_ENV").value_or("");
  if (environment.empty()) return std::nullopt;
  const auto path = environment + "/bin/python3";
  return around.is_executable(path) ? std::optional(path) : std::nullopt;
}

/// The kernel takes the CR for a part of the interpreter's name or of its argument.
void check_first_line(const std::string& path, const HostEnvironment& around,
                      std::vector<std::string>& warnings) {
  const auto line = around.first_line(path);
  // execve(2) then fails with ENOENT, for an interpreter called "python3\r", and the script seems
  // to be missing.
  if (!line.starts_with("#!") || !line.ends_with("\r\n")) return;
  warnings.push_back(
      fmt::format("the first line of {}, {}, ends in CR LF, as Windows writes it, and the kernel "
                  "takes the CR for a part of it; convert the file: sed -i 's/\\r$//' {}",
                  in_quotes(path), in_quotes(line.substr(0, line.size() - 2)), path));
}

void check_script(const JobSpec& job, const HostEnvironment& around,
                  std::vector<std::string>& warnings) {
  // The interpreter of PYTHON_EXEC may mean something else by its argument; `$local_rank` is not
  // replaced yet.
  const bool is_path = job.mode == Mode::Script || job.mode == Mode::RunPath;
  if (!is_path || job.script == "-" || job.interpreter_given ||
      job.script.find('$') != std::string::npos || around.exists(job.script)) {
    return;
  }
  const auto name = job.script.substr(job.script.rfind('/') + 1);
  const bool is_python = name.starts_with("python") && !name.ends_with(".py");
  warnings.push_back(
      fmt::format("the script {} does not exist{}{}", in_quotes(job.script),
                  job.script.starts_with('/') ? "" : " in the current directory",
                  is_python ? "; elastrun starts Python itself: leave out " + job.script : ""));
}

/// A pipe gives each of its bytes to one reader, and readers of one open file go on where another
/// one is: with several workers each would run a part of the script, or nothing.
std::optional<Refusal> check_input(const JobSpec& job) {
  const bool is_path = job.mode == Mode::Script || job.mode == Mode::RunPath;
  std::error_code error;
  const bool is_input = job.mode == Mode::Script && job.script == "-";
  const bool is_pipe = is_path && std::filesystem::is_fifo(job.script, error);
  if (job.nproc_per_node == 1 || (!is_input && !is_pipe)) return std::nullopt;
  return Refusal{
      fmt::format("the script {} is {}, which only one of the {} workers of this node "
                  "could read",
                  job.script, is_input ? "standard input" : "a pipe", job.nproc_per_node),
      2, false, "give elastrun a file, or --nproc-per-node 1"};
}

}  // namespace

std::optional<std::string> find_program(const std::string& name, const HostEnvironment& around) {
  for (const auto& path : candidates(name, around)) {
    if (around.is_executable(path)) return path;
  }
  return std::nullopt;
}

std::optional<Refusal> find_interpreter(JobSpec& job, const HostEnvironment& around) {
  if (const auto given = around.variable("PYTHON_EXEC")) {
    job.interpreter_given = true;
    job.interpreter = *given;
    if (given->empty()) {
      return launcher_refusal("PYTHON_EXEC is empty", "unset it, or name a Python interpreter");
    }
    if (find_program(*given, around)) return std::nullopt;
    return cannot_run("interpreter", *given, around,
                      "it is named by PYTHON_EXEC; correct or unset the variable");
  }
  // PATH before VIRTUAL_ENV: an active environment is first in PATH anyway, and where it is not,
  // the user has put something before it.
  if (auto path = beside_us(around)) {
    job.interpreter = *path;
  } else if (auto first = find_program("python3", around)) {
    job.interpreter = *first;
  } else if (auto active = of_active_environment(around)) {
    job.interpreter = *active;
  } else if (auto last = find_program("python", around)) {
    job.interpreter = *last;
  } else {
    return launcher_refusal("no python3 and no python in PATH: No such file or directory",
                            "activate a virtual environment, set PYTHON_EXEC, or use --no-python");
  }
  return std::nullopt;
}

std::optional<Refusal> find_programs(JobSpec& job, const HostEnvironment& around,
                                     std::vector<std::string>& warnings) {
  if (job.mode == Mode::Program) {
    if (const auto path = find_program(job.script, around)) {
      check_first_line(*path, around, warnings);
      return std::nullopt;
    }
    return cannot_run("program", job.script, around,
                      has_slash(job.script)
                          ? "the path is relative to the current directory"
                          : "it is not in PATH; write ./NAME for a file of this directory");
  }
  if (auto refusal = check_input(job)) return refusal;
  if (auto refusal = find_interpreter(job, around)) return refusal;
  check_script(job, around, warnings);
  return std::nullopt;
}

}  // namespace elastrun::spec
