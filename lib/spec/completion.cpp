// SPDX-License-Identifier: Apache-2.0
#include "spec/completion.hpp"

#include "core/text.hpp"
#include "spec/option_table.hpp"
#include "spec/rdzv_conf.hpp"
#include "spec/rendezvous_config.hpp"
#include "spec/sink_choices.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

// What may stand after an option, as far as a shell can know.
enum class ValueKind { None, Words, Files, Folders };

ValueKind values_of(const OptionRow& option) {
  if (option.kind == Kind::Flag) return ValueKind::None;
  if (option.id == Opt::LogDir) return ValueKind::Folders;
  if (option.id == Opt::Config || option.id == Opt::Report) return ValueKind::Files;
  return ValueKind::Words;
}

/// "console", "jsonl:", ...: what stands before the argument.
std::vector<std::string> sink_words() {
  std::vector<std::string> words;
  for (const auto& form : split(known_metrics_sinks(), ',')) {
    const auto name = trim(form);
    const auto end = name.find_first_of("[:");
    // With the colon where an argument must follow: bash_case() then adds no blank.
    words.emplace_back(name.substr(0, end != name.npos && name[end] == ':' ? end + 1 : end));
  }
  return words;
}

std::vector<std::string> conf_words() {
  auto words = rdzv_conf_keys();
  for (auto& word : words) word += '=';
  return words;
}

std::vector<std::string> words_of(const OptionRow& option) {
  switch (option.id) {
    case Opt::NprocPerNode:
      return {"auto", "gpu", "cpu", "1", "2", "4", "8"};
    case Opt::RdzvBackend:
      return {backend::kBuiltIn.begin(), backend::kBuiltIn.end()};
    case Opt::RdzvConf:
      return conf_words();
    case Opt::Metrics:
      return sink_words();
    case Opt::EventLogHandler:
      return {"null", "console"};
    case Opt::Redirects:
    case Opt::Tee:
      return {"0", "1", "2", "3"};
    default:
      return choices(option);
  }
}

std::string spellings(const OptionRow& option, std::string_view between) {
  std::string text = spelling(option);
  if (option.letter != 0) text += fmt::format("{}-{}", between, option.letter);
  return text;
}

constexpr std::string_view kBashScript = R"(# bash completion for elastrun
_elastrun() {{
  local cur prev i
{}  # After the script everything belongs to the script.
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{COMP_WORDS[i]}}" in
      {}|=) ;;
      -*)
        [[ ${{COMP_WORDS[i+1]}} == "=" ]] && ((++i))
        ((++i))
        ;;
      *)
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    esac
  done
  case "$prev" in
{}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}}
complete -o filenames -F _elastrun elastrun
)";

/// The words of an option in fish, each with what it is, where that is more than the word says.
std::string fish_words(const OptionRow& option) {
  std::string text;
  for (const auto& word : words_of(option)) {
    std::string_view what;
    if (word.ends_with('=')) what = "key of --rdzv-conf";
    if (option.id == Opt::Metrics) what = "sink";
    if (option.id == Opt::RdzvBackend) what = "rendezvous";
    text += text.empty() ? "" : " ";
    text += what.empty() ? word : fmt::format("{}\\t\"{}\"", word, what);
  }
  return text;
}

std::string bash_action(const OptionRow& option) {
  switch (values_of(option)) {
    case ValueKind::None:
      break;
    case ValueKind::Folders:
      return "-d";
    case ValueKind::Files:
      return "-f";
    case ValueKind::Words:
      return fmt::format("-W '{}'", join(words_of(option), " "));
  }
  return {};
}

std::string bash_script() {
  std::string names, flags, cases;
  for (const auto& option : options()) {
    names += spellings(option, " ") + " ";
    if (option.kind == Kind::Flag) {
      flags += spellings(option, "|") + "|";
    } else {
      cases += bash_case(spellings(option, "|"), bash_action(option));
    }
  }
  // The blank behind the last name, and the bar behind the last flag: an empty alternative in a
  // case is a syntax error to bash.
  names.pop_back();
  flags.pop_back();
  return fmt::format(kBashScript, bash_words(), flags, cases, names);
}

std::string zsh_values(const OptionRow& option) {
  switch (values_of(option)) {
    case ValueKind::None:
      return {};
    case ValueKind::Folders:
      return fmt::format(":{}:_directories", option.metavar);
    case ValueKind::Files:
      return fmt::format(":{}:_files", option.metavar);
    default:
      break;
  }
  const auto words = words_of(option);
  const std::string metavar = escaped(to_lower(option.metavar), ":[]|");
  return words.empty() ? fmt::format(":{}: ", metavar)
                       : fmt::format(":{}:({})", metavar, escaped(join(words, " "), ":"));
}

std::string zsh_script() {
  std::string lines;
  for (const auto& option : options()) {
    const std::string help = escaped(single_quoted(option.help), "[]:");
    const std::string value = zsh_values(option);
    const std::string_view attached = value.empty() ? "" : "=";
    if (option.letter != 0) {
      lines += fmt::format("    '*-{}{}[{}]{}' \\\n", option.letter, value.empty() ? "" : "+", help,
                           value);
    }
    lines += fmt::format("    '*{}{}[{}]{}' \\\n", spelling(option), attached, help, value);
  }
  return fmt::format(R"(#compdef elastrun
_elastrun() {{
  _arguments -S \
{}    '1:script:_files' \
    '*::argument of the script:_files'
}}
{})",
                     lines, zsh_announcement("elastrun"));
}

std::string fish_script() {
  std::string out = "# fish completion for elastrun\n";
  for (const auto& option : options()) {
    out += fmt::format("complete -c elastrun -l {}", option.name);
    if (option.letter != 0) out += fmt::format(" -s {}", option.letter);
    switch (values_of(option)) {
      case ValueKind::None:
        break;
      case ValueKind::Folders:
        out += " -x -a '(__fish_complete_directories)'";
        break;
      case ValueKind::Files:
        out += " -r -F";
        break;
      default:
        out += " -x";
    }
    if (const auto words = fish_words(option); !words.empty()) {
      out += fmt::format(" -a '{}'", words);
    }
    out += fmt::format(" -d '{}'\n", escaped(option.help, "'\\"));
  }
  return out;
}

}  // namespace

std::string single_quoted(std::string_view text) {
  std::string out;
  // A shell has no escape within single quotes: the quote ends, an escaped one follows, and it
  // begins again.
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out;
}

std::string bash_words() {
  return R"(  cur="${COMP_WORDS[COMP_CWORD]}"
  prev="${COMP_WORDS[COMP_CWORD-1]}"
  # "--option=value" arrives as three words.
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]]; then
    prev="${COMP_WORDS[COMP_CWORD-2]}"
  fi
)";
}

std::string bash_case(std::string_view patterns, std::string_view action) {
  return fmt::format(
      "    {})\n      COMPREPLY=($(compgen {} -- \"$cur\"))\n"
      // What a word introduces follows it at once.
      "      [[ ${{COMPREPLY[0]}} == *[=:] ]] && compopt -o nospace 2>/dev/null\n"
      "      return\n      ;;\n",
      patterns, action);
}

std::string zsh_announcement(std::string_view program) {
  return fmt::format(
      R"(# Loaded from fpath this is the function itself; sourced, it has yet to be announced.
if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)",
      program);
}

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  return {};
}

}  // namespace elastrun::spec
