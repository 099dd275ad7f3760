// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::spec {

/// The whole of --help: usage, then the options by group, each with its default. Lines are at most
/// `columns` long, within 60 to 100.
std::string help_text(std::string_view program, int columns);
/// The text of -h: one screen, of 80 columns and 15 lines, with the options that most jobs use.
std::string brief_help(std::string_view program);
/// The two lines that precede an error about the command line.
std::string usage_text(std::string_view program);
/// Words of `text` in lines of at most `width` columns; the lines have no line ends.
std::string wrapped(std::string_view text, std::size_t width, std::string_view indent);

/// The text of config/elastrun.toml: every key with its meaning and its default, commented out.
std::string default_config();

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
