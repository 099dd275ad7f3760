// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::ctl {

/// An option, as a shell has to know it.
struct Choice {
  std::vector<std::string> names;  // with their hyphens
  std::string value;  // what stands after it: "" nothing, "FILE", "one|of|these", or any other name
  std::string help;
};
struct Subcommand {
  std::string name, help;
  std::vector<Choice> options;                             // also those of its subcommands
  std::vector<std::pair<std::string, std::string>> inner;  // these, with their help
  bool names_job = false;  // an argument is the name of a job that runs here
};
struct Commands {
  std::vector<Choice> options;  // before any subcommand
  std::vector<Subcommand> subcommands;
};

/// A script that teaches `shell` (bash, zsh, fish) the subcommands of elastrunctl, their options
/// and values. Empty for any other shell. Pure.
std::string completion_script(std::string_view shell, const Commands& commands);

}  // namespace elastrun::ctl
