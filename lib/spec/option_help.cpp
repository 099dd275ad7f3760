// SPDX-License-Identifier: Apache-2.0

#include "spec/option_help.hpp"

#include "core/text.hpp"
#include "spec/option_table.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
#include <string_view>

namespace elastrun::spec {
namespace {

using Takes = Choice::Takes;

std::vector<std::string> words_of(const OptionRow& option) {
  switch (option.id()) {
    case "nproc-per-node"_opt:
      return {"auto", "gpu", "cpu", "1", "2", "4", "8"};
    case "rdzv-backend"_opt:
      return {backend::kBuiltIn.begin(), backend::kBuiltIn.end()};
    case "rdzv-conf"_opt: {
      std::vector<std::string> words;
      for (const auto& key : settings()) words.push_back(fmt::format("{}=", key.name));
      return words;
    }
    case "metrics"_opt:
      // With the colon where an argument must follow: bash_values() then adds no blank.
      return metrics_sink_names(":");
    case "event-log-handler"_opt:
      return {"null", "console"};
    case "redirects"_opt:
    case "tee"_opt:
      return {"0", "1", "2", "3"};
    default:
      return choices(option);
  }
}

/// Inside single quotes of bash and zsh.
std::string single_quoted(std::string_view text) {
  std::string out;
  // A shell has no escape within single quotes: the quote ends, an escaped one follows, and it
  // begins again.
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out;
}

/// A line for each job of this machine, for bash and zsh.
// sed reads it, because not every machine has jq.
constexpr std::string_view kJobs =
    R"~(elastrunctl status --json 2>/dev/null | sed 's/"name": *"/\n&/g' | )~"
    R"~(sed -n 's/^"name": *"\([^"]*\)".*/\1/p')~";

constexpr std::string_view kBashScript = R"(# bash completion for {0}
# Line by line, as names may hold blanks; and compgen -W would run what stands in $(...) in them.
_{0}_jobs() {{
  local job
  while IFS= read -r job; do
    [[ $job == "$cur"* ]] && COMPREPLY+=("$job")
  done < <({1})
}}
_{0}() {{
  local cur prev command="" i
  cur="${{COMP_WORDS[COMP_CWORD]}}"
  prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  # "--option=value" arrives as three words.
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]]; then
    prev="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{COMP_WORDS[i]}}" in
      {2}
    esac
  done
  case "$command $prev" in
{3}  esac
  case "$command" in
{4}  esac
}}
complete -o filenames -F _{0} {0}
)";
/// After the script everything belongs to the script.
constexpr std::string_view kBashToScript = R"({}|=) ;;
      -*)
        [[ ${{COMP_WORDS[i+1]}} == "=" ]] && ((++i))
        ((++i))
        ;;
      *)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;)";

/// All names of the options, or of those that take no value.
std::string names_of(const std::vector<Choice>& options, std::string_view between,
                     bool flags_alone = false) {
  std::vector<std::string> names;
  for (const auto& option : options) {
    if (flags_alone && option.takes != Takes::Nothing) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return join(names, between);
}

/// Cases for the word after each option that takes a value.
std::string bash_values(const std::string& command, const std::vector<Choice>& options) {
  std::string cases;
  for (const auto& option : options) {
    if (option.takes == Takes::Nothing) continue;
    std::vector<std::string> patterns;
    for (const auto& name : option.names)
      patterns.push_back(fmt::format("\"{} {}\"", command, name));
    const std::string action = option.takes == Takes::File ? "-f"
                               : option.takes == Takes::Folder
                                   ? "-d"
                                   : fmt::format("-W '{}'", join(option.words, " "));
    cases += fmt::format(
        "    {})\n      COMPREPLY=($(compgen {} -- \"$cur\"))\n"
        // What a word introduces follows it at once.
        "      [[ ${{COMPREPLY[0]}} == *[=:] ]] && compopt -o nospace 2>/dev/null\n"
        "      return\n      ;;\n",
        join(patterns, "|"), action);
  }
  return cases;
}

std::string bash_words(const std::string& pattern, const std::string& first,
                       const std::vector<Choice>& options, std::string_view more) {
  return fmt::format("    {}) COMPREPLY=($(compgen -W '{} {}' -- \"$cur\")){} ;;\n", pattern, first,
                     names_of(options, " "), more);
}

std::string inner_names(const Subcommand& command) {
  std::vector<std::string> names;
  for (const auto& [name, help] : command.inner) names.push_back(name);
  return join(names, " ");
}

std::string bash_script(const Commands& commands) {
  std::vector<std::string> names;
  std::string values = bash_values("", commands.options), words;
  for (const auto& command : commands.subcommands) {
    names.push_back(command.name);
    values += bash_values(command.name, command.options);
    words += bash_words(command.name, inner_names(command), command.options,
                        command.names_job ? fmt::format("; _{}_jobs", commands.program) : "");
  }
  const bool script = names.empty();
  words += bash_words("*", join(names, " "), commands.options,
                      script ? "; [[ $cur == -* ]] || COMPREPLY=($(compgen -f -- \"$cur\"))" : "");
  const auto walk =
      script ? fmt::format(kBashToScript, names_of(commands.options, "|", true))
             : fmt::format("{}) command=\"${{COMP_WORDS[i]}}\"; break ;;", join(names, "|"));
  return fmt::format(kBashScript, commands.program, kJobs, walk, values, words);
}

std::string zsh_lines(const std::vector<Choice>& options, std::string_view indent) {
  std::string lines;
  for (const auto& option : options) {
    std::string value;
    const auto called = escaped(to_lower(option.value), ":[]|");
    if (option.takes == Takes::File) value = fmt::format(":{}:_files", called);
    if (option.takes == Takes::Folder) value = fmt::format(":{}:_directories", called);
    if (option.takes == Takes::Word) {
      value = fmt::format(
          ":{}:{}", called,
          option.words.empty() ? " " : fmt::format("({})", escaped(join(option.words, " "), ":")));
    }
    for (const auto& name : option.names) {
      const auto attached = value.empty() ? "" : name.starts_with("--") ? "=" : "+";
      lines += fmt::format(" \\\n{}'*{}{}[{}]{}'", indent, name, attached,
                           single_quoted(escaped(option.help, "[]:")), single_quoted(value));
    }
  }
  return lines;
}

void add_zsh_name(std::string& names, const std::string& name, const std::string& help) {
  names += fmt::format("{}{}\\:\"{}\"", names.empty() ? "" : " ", name,
                       single_quoted(escaped(help, "\"\\")));
}

std::string zsh_script(const Commands& commands) {
  std::string names, cases;
  for (const auto& command : commands.subcommands) {
    add_zsh_name(names, command.name, command.help);
    std::string inner;
    for (const auto& [name, help] : command.inner) add_zsh_name(inner, name, help);
    if (!inner.empty())
      inner = fmt::format(" \\\n      '1:subcommand:(({}))' '*:file:_files'", inner);
    if (command.names_job) inner = fmt::format(" '*:job:_{}_jobs'", commands.program);
    cases += fmt::format("    {}) _arguments -S{}{} ;;\n", command.name,
                         zsh_lines(command.options, "      "), inner);
  }
  const auto arguments = names.empty()
                             ? "'1:script:_files' \\\n    '*::argument of the script:_files'"
                             : fmt::format("'1:subcommand:(({}))' \\\n    '*:: :->words'", names);
  return fmt::format(R"~(#compdef {0}
_{0}_jobs() {{
  local -a jobs
  jobs=(${{(f)"$({1})"}})
  compadd -a jobs
}}
_{0}() {{
  local curcontext="$curcontext" state line
  _arguments -C -S{2} \
    {3}
  [[ $state == words ]] || return
  case $words[1] in
{4}  esac
}}
# Loaded from fpath this is the function itself; sourced, it has yet to be announced.
if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)~",
                     commands.program, kJobs, zsh_lines(commands.options, "    "), arguments,
                     cases);
}

std::string fish_lines(const Commands& commands, const std::string& condition,
                       const std::vector<Choice>& options) {
  std::string out;
  for (const auto& option : options) {
    out += fmt::format("complete -c {}", commands.program);
    if (!condition.empty()) out += fmt::format(" -n '{}'", condition);
    for (const auto& name : option.names) {
      const bool is_long = name.starts_with("--");
      out += fmt::format(" {} {}", is_long ? "-l" : "-s", name.substr(is_long ? 2 : 1));
    }
    if (option.takes == Takes::File) out += " -r -F";
    if (option.takes == Takes::Folder) out += " -x -a '(__fish_complete_directories)'";
    if (option.takes == Takes::Word) out += " -x";
    if (!option.words.empty()) {
      out += " -a '";
      // Each with the option that it is for, where more than one word must be typed.
      for (const auto& word : option.words) {
        out += word.ends_with('=')   ? word + "\\t\"key of " + option.names.front() + "\" "
               : word.ends_with(':') ? word + "\\t\"sink\" "
                                     : word + " ";
      }
      out.back() = '\'';
    }
    out += fmt::format(" -d '{}'\n", escaped(option.help, "'\\"));
  }
  return out;
}

std::string fish_script(const Commands& commands) {
  const auto& program = commands.program;
  std::string out = fmt::format("# fish completion for {}\n", program);
  if (commands.subcommands.empty()) return out + fish_lines(commands, "", commands.options);
  out += fmt::format("complete -c {} -f\n", program);
  out += fish_lines(commands, "__fish_use_subcommand", commands.options);
  for (const auto& command : commands.subcommands) {
    out += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d '{}'\n", program,
                       command.name, escaped(command.help, "'\\"));
    const auto here = "__fish_seen_subcommand_from " + command.name;
    for (const auto& [name, help] : command.inner) {
      out += fmt::format(
          "complete -c {} -n '{}; and not __fish_seen_subcommand_from {}' -a {} -d '{}'\n", program,
          here, inner_names(command), name, escaped(help, "'\\"));
    }
    if (!command.inner.empty()) out += fmt::format("complete -c {} -n '{}' -F\n", program, here);
    if (command.names_job) {
      out += fmt::format(
          "complete -c {} -n '{}' -a '(elastrunctl status --json 2>/dev/null | string "
          "match -rag \\'\"name\": *\"([^\"]*)\"\\')' -d 'job of this machine'\n",
          program, here);
    }
    out += fish_lines(commands, here, command.options);
  }
  return out;
}

/// tcsh(1) calls these rules: n/WORD/LIST/ after a word, c/START/LIST/ within one, p/*/LIST/ else.
std::string tcsh_script(const Commands& commands) {
  std::string rules, names;
  for (const auto& option : commands.options) {
    for (const auto& name : option.names) {
      if (name.starts_with("--")) names += name.substr(2) + ' ';
      if (option.takes == Takes::Nothing) continue;
      const std::string list = option.takes == Takes::File     ? "f"
                               : option.takes == Takes::Folder ? "d"
                               : option.words.empty()
                                   ? "n"
                                   : fmt::format("({})", join(option.words, " "));
      rules += fmt::format("  'n/{}/{}/' \\\n", name, list);
    }
  }
  return fmt::format("# tcsh completion for {0}\ncomplete {0} \\\n{1}  'c/--/({2})/' 'p/*/f/'\n",
                     commands.program, rules, names);
}

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
      return option.id() == "rdzv-conf"_opt ? "{}" : toml_list(option.fallback);
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

void append_option(std::string& out, const OptionRow& option, std::size_t width) {
  std::string left = option.letter != 0 ? fmt::format("  -{}, ", option.letter) : "      ";
  left += spelling(option);
  if (!option.metavar.empty()) left += fmt::format(" {}", option.metavar);
  std::string right(option.help);
  if (option.kind == Kind::Choice) right += fmt::format(" ({})", join(choices(option), ", "));
  if (!option.fallback.empty()) right += fmt::format(" [{}]", option.fallback);
  const std::string indent(kHelpColumn, ' ');
  right = wrapped(right, width - kHelpColumn, indent);
  if (left.size() + 2 > kHelpColumn) {
    out += left + '\n' + indent + right + '\n';
  } else {
    out += left + std::string(kHelpColumn - left.size(), ' ') + right + '\n';
  }
}

std::string shown_value(const OptionRow& option, const Resolved& job) {
  if (option.kind == Kind::Flag) return job.values.is_on(option.id()) ? "on" : "off";
  const auto& text = job.values[option.id()].text;
  const auto count = fmt::to_string(job.spec.nproc_per_node);
  if (option.id() == "nproc-per-node"_opt && text != count) return text + " (" + count + ")";
  return text.empty() ? "-" : text;
}

/// One column for the sources, wide enough for the id that a job is given. Beside a longer value,
/// as of a path, the source has no room, and stands in the next line; no line is longer than 100
/// for it.
void append_value(std::string& out, std::string_view name, const std::string& value,
                  const std::string& source) {
  constexpr std::size_t kValueWidth = 36, kColumn = 64, kLineWidth = 100;
  const auto room = kLineWidth - std::min(source.size(), kLineWidth - 4);
  const bool fits = value.size() <= kValueWidth && room >= kColumn;
  const auto gap = fits ? " " : fmt::format("\n{:{}}", "", std::min(kColumn, room));
  out += fmt::format("  {:<24} {:<{}}{}{}\n", name, value, fits ? kValueWidth : 0, gap, source);
}

}  // namespace

std::string completion_script(std::string_view shell, const Commands& commands) {
  if (shell == "bash") return bash_script(commands);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  if (shell == "tcsh" && commands.subcommands.empty()) return tcsh_script(commands);
  return {};
}

Commands elastrun_commands() {
  Commands commands{"elastrun", {}, {}};
  for (const auto& row : options()) {
    Choice option{{spelling(row)},
                  Takes::Word,
                  std::string(row.metavar),
                  words_of(row),
                  std::string(row.help)};
    if (row.letter != 0) option.names.push_back({'-', row.letter});
    if (row.kind == Kind::Flag) option.takes = Takes::Nothing;
    if (row.id() == "log-dir"_opt) option.takes = Takes::Folder;
    if (row.id() == "config"_opt || row.id() == "report"_opt) option.takes = Takes::File;
    commands.options.push_back(std::move(option));
  }
  return commands;
}

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
  constexpr std::array kMostUsed{"nproc-per-node"_opt, "nnodes"_opt,  "rdzv-backend"_opt,
                                 "rdzv-endpoint"_opt,  "rdzv-id"_opt, "max-restarts"_opt,
                                 "log-dir"_opt,        "config"_opt};
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
  const auto width = static_cast<std::size_t>(std::clamp(columns <= 0 ? 80 : columns, 60, 100));
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

std::string explain_text(const Resolved& job) {
  std::string out = "Where each value comes from:\n";
  append_value(out, "script", job.spec.script, job.script_source);
  if (job.spec.mode != Mode::Program) {
    append_value(out, "interpreter", job.spec.interpreter,
                 job.spec.interpreter_given ? "PYTHON_EXEC" : "in PATH, VIRTUAL_ENV or beside it");
  }
  std::optional<Group> current;
  for (const auto& option : options()) {
    // The others of that group ask for something else than a run, and have no value in it.
    if (option.group == Group::Launch && option.id() != "config"_opt) continue;
    if (option.group != current) out += fmt::format("{}\n", title(option.group));
    current = option.group;
    append_value(out, option.name, shown_value(option, job), job.values[option.id()].source);
  }
  return out;
}

}  // namespace elastrun::spec
