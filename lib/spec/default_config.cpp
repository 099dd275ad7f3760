// SPDX-License-Identifier: Apache-2.0
#include "spec/default_config.hpp"

#include "core/text.hpp"
#include "spec/option_help.hpp"
#include "spec/option_table.hpp"

#include <fmt/format.h>

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

}  // namespace elastrun::spec
