// SPDX-License-Identifier: Apache-2.0
#include "completion.hpp"

#include "core/text.hpp"
#include "spec/completion.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

bool takes_file(const Choice& option) {
  return option.value == "FILE";
}

std::vector<std::string> words_of(const Choice& option) {
  if (option.value.find('|') == std::string::npos) return {};
  return split(option.value, '|');
}

/// A line for each job of this machine, for bash and zsh.
// By sed, because not every machine has jq.
constexpr std::string_view kJobs =
    R"~(elastrunctl status --json 2>/dev/null | sed 's/"name": *"/\n&/g' | )~"
    R"~(sed -n 's/^"name": *"\([^"]*\)".*/\1/p')~";

constexpr std::string_view kBashScript = R"(# bash completion for elastrunctl
# Line by line, as names may hold blanks; and compgen -W would run what stands in $(...) in them.
_elastrunctl_jobs() {{
  local job
  while IFS= read -r job; do
    [[ $job == "$cur"* ]] && COMPREPLY+=("$job")
  done < <({})
}}
_elastrunctl() {{
  local cur prev command="" i
{}  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{COMP_WORDS[i]}}" in
      {}) command="${{COMP_WORDS[i]}}"; break ;;
    esac
  done
  case "$command $prev" in
{}  esac
  case "$command" in
{}  esac
}}
complete -o filenames -F _elastrunctl elastrunctl
)";

/// What comes after each option that takes a value.
std::string bash_values(const std::string& command, const std::vector<Choice>& options) {
  std::string cases;
  for (const auto& option : options) {
    if (option.value.empty()) continue;
    std::string patterns;
    for (const auto& name : option.names) {
      patterns += fmt::format("{}\"{} {}\"", patterns.empty() ? "" : "|", command, name);
    }
    const std::string action =
        takes_file(option) ? "-f" : fmt::format("-W '{}'", join(words_of(option), " "));
    cases += spec::bash_case(patterns, action);
  }
  return cases;
}

std::string bash_words(const std::string& pattern, const std::string& first,
                       const std::vector<Choice>& options, bool names_job = false) {
  std::string words = first;
  for (const auto& option : options) {
    for (const auto& name : option.names) words += (words.empty() ? "" : " ") + name;
  }
  return fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")){} ;;\n", pattern, words,
                     names_job ? "; _elastrunctl_jobs" : "");
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
    words += bash_words(command.name, inner_names(command), command.options, command.names_job);
  }
  words += bash_words("*", join(names, " "), commands.options);
  return fmt::format(kBashScript, kJobs, spec::bash_words(), join(names, "|"), values, words);
}

std::string zsh_line(const std::string& name, const Choice& option) {
  std::string value;
  if (takes_file(option)) {
    value = fmt::format(":{}:_files", option.value);
  } else if (!option.value.empty()) {
    const auto words = words_of(option);
    value = fmt::format(":{}:{}", escaped(to_lower(option.value), ":[]|"),
                        words.empty() ? " " : "(" + join(words, " ") + ")");
  }
  return fmt::format("'{}{}[{}]{}'", name, value.empty() ? "" : "=",
                     spec::single_quoted(escaped(option.help, "[]:")), spec::single_quoted(value));
}

std::string zsh_lines(const std::vector<Choice>& options, std::string_view indent) {
  std::string lines;
  for (const auto& option : options) {
    for (const auto& name : option.names) {
      lines += fmt::format(" \\\n{}{}", indent, zsh_line(name, option));
    }
  }
  return lines;
}

void add_zsh_name(std::string& names, const std::string& name, const std::string& help) {
  names += fmt::format("{}{}\\:\"{}\"", names.empty() ? "" : " ", name,
                       spec::single_quoted(escaped(help, "\"\\")));
}

std::string zsh_script(const Commands& commands) {
  std::string names, cases;
  for (const auto& command : commands.subcommands) {
    add_zsh_name(names, command.name, command.help);
    std::string inner;
    for (const auto& [name, help] : command.inner) add_zsh_name(inner, name, help);
    if (!inner.empty())
      inner = fmt::format(" \\\n      '1:subcommand:(({}))' '*:file:_files'", inner);
    if (command.names_job) inner = " '*:job:_elastrunctl_jobs'";
    cases += fmt::format("    {}) _arguments -S{}{} ;;\n", command.name,
                         zsh_lines(command.options, "      "), inner);
  }
  return fmt::format(R"~(#compdef elastrunctl
_elastrunctl_jobs() {{
  local -a jobs
  jobs=(${{(f)"$({})"}})
  compadd -a jobs
}}
_elastrunctl() {{
  local curcontext="$curcontext" state line
  _arguments -C -S{} \
    '1:subcommand:(({}))' \
    '*:: :->words'
  [[ $state == words ]] || return
  case $words[1] in
{}  esac
}}
{})~",
                     kJobs, zsh_lines(commands.options, "    "), names, cases,
                     spec::zsh_announcement("elastrunctl"));
}

std::string fish_lines(const std::string& condition, const std::vector<Choice>& options) {
  std::string out;
  for (const auto& option : options) {
    out += fmt::format("complete -c elastrunctl -n '{}'", condition);
    for (const auto& name : option.names) {
      const bool is_long = name.starts_with("--");
      out += fmt::format(" {} {}", is_long ? "-l" : "-s", name.substr(is_long ? 2 : 1));
    }
    if (takes_file(option)) {
      out += " -r -F";
    } else if (!option.value.empty()) {
      out += " -x";
    }
    if (const auto words = words_of(option); !words.empty()) {
      out += fmt::format(" -a '{}'", join(words, " "));
    }
    out += fmt::format(" -d '{}'\n", escaped(option.help, "'\\"));
  }
  return out;
}

std::string fish_script(const Commands& commands) {
  std::string out = "# fish completion for elastrunctl\ncomplete -c elastrunctl -f\n";
  out += fish_lines("__fish_use_subcommand", commands.options);
  for (const auto& command : commands.subcommands) {
    out += fmt::format("complete -c elastrunctl -n __fish_use_subcommand -a {} -d '{}'\n",
                       command.name, escaped(command.help, "'\\"));
    const auto here = "__fish_seen_subcommand_from " + command.name;
    for (const auto& [name, help] : command.inner) {
      out += fmt::format(
          "complete -c elastrunctl -n '{}; and not __fish_seen_subcommand_from {}' -a {} -d '{}'\n",
          here, inner_names(command), name, escaped(help, "'\\"));
    }
    if (!command.inner.empty()) {
      out += fmt::format("complete -c elastrunctl -n '{}' -F\n", here);
    }
    if (command.names_job) {
      out += fmt::format(
          "complete -c elastrunctl -n '{}' -a '(elastrunctl status --json 2>/dev/null | string "
          "match -rag \\'\"name\": *\"([^\"]*)\"\\')' -d 'job of this machine'\n",
          here);
    }
    out += fish_lines(here, command.options);
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell, const Commands& commands) {
  if (shell == "bash") return bash_script(commands);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  return {};
}

}  // namespace elastrun::ctl
