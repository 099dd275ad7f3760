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

/// One machine, several nodes, and what would be done; they fit into 60 columns.
constexpr std::array<std::string_view, 3> kExamples = {
    "--nproc-per-node gpu --max-restarts 3 train.py",
    "--nnodes 2:4 --rdzv-backend c10d \\\n      --rdzv-endpoint node1:29400 train.py",
    "--dry-run --explain train.py",
};
constexpr std::size_t kHelpColumn = 34;  // fits nearly every option with its value

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
  std::string out =
      fmt::format("usage: {} [OPTION]... training_script [training_script_args]...\n", program);
  return out + fmt::format("       `{} --help` lists the options\n", program);
}

std::string brief_help(std::string_view program) {
  constexpr std::array kMostUsed{Opt::NprocPerNode, Opt::Nnodes, Opt::RdzvBackend,
                                 Opt::RdzvEndpoint, Opt::RdzvId, Opt::MaxRestarts,
                                 Opt::LogDir,       Opt::Config};
  constexpr std::size_t kColumn = 20;
  std::string out =
      fmt::format("usage: {} [OPTION]... training_script [training_script_args]...\n\n", program);
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
  std::string out =
      fmt::format("usage: {} [OPTION]... training_script [training_script_args]...\n", program);
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
