// SPDX-License-Identifier: Apache-2.0

#include "spec/option_help.hpp"

#include "core/text.hpp"
#include "spec/option_table.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
#include <string_view>

namespace elastrun::spec {
namespace {

constexpr std::size_t kWidth = 96;

void append_comment(std::string& out, std::string_view text) {
  out += "# " + wrapped(text, kWidth, "# ") + "\n";
}

std::string toml_list(std::string_view text) {
  if (text.empty()) return "[]";
  std::vector<std::string> items;
  for (const auto& item : split(text, ',')) items.push_back('"' + item + '"');
  return "[" + join(items, ", ") + "]";
}

std::string toml_value(const OptionRow& option) {
  switch (option.kind) {
    case Kind::Flag:
      return "false";
    case Kind::List:
      return option.id == Opt::RdzvConf ? "{}" : toml_list(option.fallback);
    case Kind::Int:
    case Kind::Float:
      return option.fallback.empty() ? "0" : std::string(option.fallback);
    case Kind::Text:
    case Kind::Choice:
      break;
  }
  return fmt::format("\"{}\"", option.fallback);
}

void append_key(std::string& out, const OptionRow& option, std::string_view key) {
  std::string text = fmt::format("{}.", option.help);
  if (option.kind == Kind::Choice) text += fmt::format(" One of: {}.", join(choices(option), ", "));
  if (!option.details.empty()) text += fmt::format(" {}", option.details);
  append_comment(out, text);
  // Commented out: a file with all defaults in it would keep those of today when later versions
  // change them.
  out += fmt::format("# {} = {}\n\n", key, toml_value(option));
}

}  // namespace

std::string default_config() {
  std::string out = "# SPDX-License-Identifier: Apache-2.0\n";
  append_comment(out,
                 "Options of elastrun: `elastrun --config FILE`. Every key is shown with its "
                 "default; an empty text or a 0 beside \"Unset\" means that there is none. "
                 "The command line wins over PET_* variables, and those over this file. See "
                 "elastrun.toml(5).");
  out += "\n[job]\n";
  append_comment(out, "The script, module or program to run, unless the command line names one.");
  out += "# script = \"train.py\"\n\n";
  append_comment(out, "Its arguments. A command line that names a script brings its own.");
  out += "# args = []\n\n";
  std::string section = "job";
  for (const auto& option : options()) {
    if (option.toml.empty()) continue;
    const auto point = option.toml.find('.');
    const std::string own(option.toml.substr(0, point));
    if (own != section) out += fmt::format("[{}]\n", section = own);
    append_key(out, option, option.toml.substr(point + 1));
  }
  append_comment(
      out,
      "Which records a sink gets, by name, group (`*` at the end stands for anything) and "
      "least severity: { sink = \"jsonl:errors.jsonl\", severity = \"error\" }, or "
      "[[metrics.route]] sections. Several of one sink add up.");
  out += "# route = []\n\n";
  out += "[role.NAME]\n";
  append_comment(
      out,
      "Whom a failure in that role restarts: \"own\", the agents with --role NAME alone, "
      "or \"all\". See elastrun-restarts(7).");
  out += "# restart = \"all\"\n\n";
  out += "[env]\n";
  append_comment(out, "Variables for the workers, over those that the launcher has itself.");
  out += "# OMP_NUM_THREADS = \"4\"\n";
  return out;
}

namespace {

/// One machine, several nodes, and what would be done; they fit into 60 columns.
constexpr std::array<std::string_view, 3> kExamples = {
    "--nproc-per-node gpu --max-restarts 3 train.py",
    "--nnodes 2:4 --rdzv-backend c10d \\\n      --rdzv-endpoint node1:29400 train.py",
    "--dry-run --explain train.py",
};
constexpr std::size_t kHelpColumn = 34;  // fits nearly every option with its value

std::string usage_line(std::string_view program) {
  return fmt::format("usage: {} [OPTION]... training_script [training_script_args]...\n", program);
}

std::size_t usable(int columns) {
  return static_cast<std::size_t>(std::clamp(columns <= 0 ? 80 : columns, 60, 100));
}

std::string left_side(const OptionRow& option) {
  std::string text = option.letter != 0 ? fmt::format("  -{}, ", option.letter) : "      ";
  text += spelling(option);
  if (!option.metavar.empty()) text += fmt::format(" {}", option.metavar);
  return text;
}

std::string right_side(const OptionRow& option) {
  std::string text(option.help);
  if (option.kind == Kind::Choice) text += fmt::format(" ({})", join(choices(option), ", "));
  if (!option.fallback.empty()) text += fmt::format(" [{}]", option.fallback);
  return text;
}

void append_option(std::string& out, const OptionRow& option, std::size_t width) {
  const std::string left = left_side(option);
  const std::string indent(kHelpColumn, ' ');
  const std::string right = wrapped(right_side(option), width - kHelpColumn, indent);
  if (left.size() + 2 > kHelpColumn) {
    out += left + '\n' + indent + right + '\n';
  } else {
    out += left + std::string(kHelpColumn - left.size(), ' ') + right + '\n';
  }
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string out;
  std::size_t column = 0;
  for (const auto& word : split(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      out += indent;
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string usage_text(std::string_view program) {
  return fmt::format("{}       `{} --help` lists the options\n", usage_line(program), program);
}

std::string brief_help(std::string_view program) {
  constexpr std::array kMostUsed{Opt::NprocPerNode, Opt::Nnodes, Opt::RdzvBackend,
                                 Opt::RdzvEndpoint, Opt::RdzvId, Opt::MaxRestarts,
                                 Opt::LogDir,       Opt::Config};
  constexpr std::size_t kColumn = 20;
  std::string out = usage_line(program) + "\n";
  for (const Opt id : kMostUsed) {
    const auto help = row(id).help.substr(0, row(id).help.find(':'));
    out += fmt::format("  {:<{}}{}\n", spelling(row(id)), kColumn - 2,
                       wrapped(help, 80 - kColumn, std::string(kColumn, ' ')));
  }
  return out +
         fmt::format("\n`{} --help` prints all options; elastrun(1) explains them.\n", program);
}

std::string help_text(std::string_view program, int columns) {
  const std::size_t width = usable(columns);
  std::string out = usage_line(program);
  out += fmt::format("       {} --config FILE [OPTION]... [training_script ...]\n\n", program);
  out += wrapped(
      "Starts the workers of a distributed training job, watches them, restarts them after a "
      "failure and tells where the time went. Takes the place of torchrun.",
      width, "");
  out += '\n';
  std::optional<Group> current;
  for (const auto& option : options()) {
    if (option.group != current) out += fmt::format("\n{}:\n", title(option.group));
    current = option.group;
    append_option(out, option, width);
  }
  out += '\n';
  out += wrapped(
      "Options precede the script; what follows the script belongs to it. Options may be "
      "abbreviated and written with underscores. Each has a variable, PET_ and its name in "
      "capitals "
      "(PET_MAX_RESTARTS); the command line wins over variables, variables over --config.",
      width, "");
  out += "\n\nExamples:\n";
  for (const auto example : kExamples) out += fmt::format("  {} {}\n", program, example);
  return out + "\nFor more, read elastrun(1) and elastrun.toml(5).\n";
}

}  // namespace elastrun::spec
