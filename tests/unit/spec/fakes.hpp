// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elastrun/command_line.hpp"
#include "spec/resolve.hpp"

#include <fmt/format.h>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace elastrun::spec {

using Words = std::vector<std::string>;

/// A machine of the tests' own: variables, files and programs as they say. It has a python3 in its
/// PATH and a script, so that a job without more words resolves.
struct FakeMachine {
  std::map<std::string, std::string> variables = {{"PATH", "/usr/bin:/bin"}};
  std::map<std::string, std::string> files;
  std::set<std::string> existing = {"train.py"};
  std::set<std::string> programs = {"/usr/bin/python3"};
  int cpus = 6, gpus = 0, xpus = 0;
  std::string nvlink;                         // domain
  std::map<std::string, Accelerators> torch;  // what it says of these names
  std::vector<std::string> backends, event_handlers, logs_specs;
  std::string called_as = "elastrun", program = "/opt/elastrun/bin/elastrun";

  HostEnvironment host_environment() const {
    HostEnvironment around;
    around.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    around.pet_variables = [this] {
      Words names;
      for (const auto& [name, value] : variables) {
        if (name.starts_with("PET_")) names.push_back(name);
      }
      return names;
    };
    around.read_file = [this](const std::string& path) -> Result<std::string> {
      const auto found = files.find(path);
      if (found == files.end()) return fail(Code::Usage, path + ": No such file or directory");
      return found->second;
    };
    around.exists = [this](const std::string& path) {
      return existing.contains(path) || programs.contains(path);
    };
    around.is_executable = [this](const std::string& path) { return programs.contains(path); };
    around.first_line = [this](const std::string& path) {
      const auto found = files.find(path);
      return found == files.end() ? std::string()
                                  : found->second.substr(0, found->second.find('\n') + 1);
    };
    around.called_as = called_as;
    around.own_program = [this] { return program; };
    around.count_cpus = [this] { return cpus; };
    around.count_gpus = [this] { return gpus; };
    around.count_xpus = [this] { return xpus; };
    around.has_other_accelerators = [this] { return torch.contains("auto"); };
    around.ask_torch = [this](const std::string& interpreter,
                              const std::string& name) -> Result<Accelerators> {
      const auto found = torch.find(name);
      if (found == torch.end()) return fail(Code::Usage, interpreter + " knows no " + name);
      return found->second;
    };
    around.nvlink_domain = [this] { return nvlink; };
    around.make_uuid = [] { return std::string("00000000-0000-4000-8000-000000000010"); };
    around.rdzv_backends = backends;
    around.event_handlers = event_handlers;
    around.logs_specs = logs_specs;
    return around;
  }

  /// The whole way from words to a job.
  Answer<Resolved> run(const Words& words) const {
    const auto line = parse_command_line(words);
    if (!line) return std::unexpected(line.error());
    return resolve(*line, host_environment());
  }

  /// The job of words that must be right.
  Resolved job(const Words& words) const {
    auto answer = run(words);
    if (!answer) throw std::runtime_error("refused: " + answer.error().text);
    return std::move(*answer);
  }

  /// "EXIT CODE: TEXT" of words that must be refused, or "accepted".
  std::string refusal(const Words& words) const {
    const auto answer = run(words);
    if (answer) return "accepted";
    return fmt::format("{}: {}", answer.error().exit_code, answer.error().text);
  }
};

/// The text of a file of the source tree.
std::string read_source(const std::string& path);

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace elastrun::spec
