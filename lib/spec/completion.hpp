// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::spec {

/// An option, as a shell has to know it.
struct Choice {
  enum class Takes { Nothing, Word, File, Folder };
  std::vector<std::string> names;  // with their hyphens
  Takes takes = Takes::Nothing;
  std::string value;               // what people call the value
  std::vector<std::string> words;  // values that are offered
  std::string help;
};
struct Subcommand {
  std::string name, help;
  std::vector<Choice> options;                             // also those of its subcommands
  std::vector<std::pair<std::string, std::string>> inner;  // these, with their help
  bool names_job = false;  // an argument is the name of a job that runs here
};
/// A program that has subcommands, or runs a script whose arguments follow it.
struct Commands {
  std::string program;
  std::vector<Choice> options;  // before any subcommand
  std::vector<Subcommand> subcommands;
};

/// A script that teaches `shell` (bash, zsh, fish; tcsh without subcommands) the words of a
/// program. Empty for any other shell. Pure.
std::string completion_script(std::string_view shell, const Commands& commands);
/// The words of elastrun.
Commands elastrun_commands();

}  // namespace elastrun::spec
