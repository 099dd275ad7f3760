// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/sources.hpp"

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
struct FakeMachine : HostEnvironment {
  FakeMachine() { called_as = "elastrun"; }
  std::map<std::string, std::string> variables = {{"PATH", "/usr/bin:/bin"}};
  std::map<std::string, std::string> files;
  std::set<std::string> existing = {"train.py"};
  std::set<std::string> programs = {"/usr/bin/python3"};
  int cpus = 6, gpus = 0, xpus = 0;
  std::string nvlink;                         // domain
  std::map<std::string, Accelerators> torch;  // what it says of these names
  std::string program = "/opt/elastrun/bin/elastrun";

  std::optional<std::string> variable(const std::string& name) const override {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::string> pet_variables() const override {
    Words names;
    for (const auto& [name, value] : variables) {
      if (name.starts_with("PET_")) names.push_back(name);
    }
    return names;
  }
  Result<std::string> read_file(const std::string& path, std::size_t most) const override {
    const auto found = files.find(path);
    if (found == files.end()) return fail(Code::Usage, path + ": No such file or directory");
    return found->second.substr(0, most);
  }
  bool exists(const std::string& path) const override {
    return existing.contains(path) || programs.contains(path);
  }
  bool is_executable(const std::string& path) const override { return programs.contains(path); }
  std::string own_program() const override { return program; }
  int count_cpus() const override { return cpus; }
  int count_gpus() const override { return gpus; }
  int count_xpus() const override { return xpus; }
  bool has_other_accelerators() const override { return torch.contains("auto"); }
  Result<Accelerators> ask_torch(const std::string& interpreter,
                                 const std::string& name) const override {
    const auto found = torch.find(name);
    if (found == torch.end()) return fail(Code::Usage, interpreter + " knows no " + name);
    return found->second;
  }
  std::string nvlink_domain() const override { return nvlink; }
  std::string make_uuid() const override { return "00000000-0000-4000-8000-000000000010"; }

  /// The whole way from words to a job.
  Answer<Resolved> run(const Words& words) const {
    const auto line = parse_command_line(words);
    if (!line) return std::unexpected(line.error());
    return resolve(*line, *this);
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
