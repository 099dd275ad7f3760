// SPDX-License-Identifier: Apache-2.0
#include "elastrun/command_line.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/completion.hpp"
#include "spec/default_config.hpp"
#include "spec/option_help.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/format.h>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif
#ifndef ELASTRUN_OPENSSL
#define ELASTRUN_OPENSSL "of an unknown version"
#endif

namespace elastrun {
namespace {

using spec::Kind;

spec::Override from_line(const spec::OptionRow& option, std::string text) {
  return {option.id, std::move(text),           {},
          false,     spec::Origin::CommandLine, spec::spelling(option) + " on the command line"};
}

spec::Action action_of(spec::Opt id) {
  switch (id) {
    case spec::Opt::Help:
      return spec::Action::Help;
    case spec::Opt::Version:
      return spec::Action::Version;
    case spec::Opt::PrintCompletion:
      return spec::Action::Completion;
    case spec::Opt::InstallInto:
      return spec::Action::Install;
    case spec::Opt::PrintConfig:
      return spec::Action::Config;
    default:
      return spec::Action::Run;
  }
}

// Adds to what the line has said already.
void take_one_more(spec::CommandLine& line, const spec::OptionRow& option,
                   const std::string& text) {
  auto given = std::ranges::find(line.given, option.id, &spec::Override::id);
  if (given == line.given.end()) {
    given = line.given.insert(given, from_line(option, {}));
    given->listed = true;
  }
  given->items.push_back(text);
  given->text = join(given->items, ",");
}

// Of several occurrences the last one counts, unless the option repeats. Throws CLI::Success at an
// option that asks for something else than a run: what stands behind it is not looked at.
void take(spec::CommandLine& line, const spec::OptionRow& option, const std::string& text) {
  if (spec::repeats(option.id)) return take_one_more(line, option, text);
  std::erase_if(line.given, [&](const spec::Override& one) { return one.id == option.id; });
  line.given.push_back(from_line(option, text));
  line.action = action_of(option.id);
  line.argument = text;
  if (line.action != spec::Action::Run) throw CLI::Success();
}

// Each option is checked and taken as soon as it is read, as argparse does: the first error counts.
// Only the options that occur are declared: declaring all of them costs more than parsing.
std::optional<spec::Refusal> parse_options(const std::vector<std::string>& words,
                                           spec::CommandLine& line) {
  std::optional<spec::Refusal> refused;
  CLI::App app;
  app.set_help_flag();
  app.add_flag_callback("-h", [&] { take(line, spec::row(spec::Opt::Help), "-h"); })
      ->trigger_on_parse();
  for (const auto& option : spec::options()) {
    const std::string name = spec::spelling(option);
    if (std::find(words.begin(), words.end(), name) == words.end()) continue;
    if (option.kind == Kind::Flag) {
      app.add_flag_callback(name, [&] { take(line, option, "1"); })->trigger_on_parse();
      continue;
    }
    const CLI::callback_t take_last = [&](const CLI::results_t& values) {
      take(line, option, values.back());
      return true;
    };
    const auto check = [&](const std::string& text) {
      refused = spec::check_text(option, text);
      return refused ? refused->text : std::string();
    };
    app.add_option(name, take_last)->take_last()->trigger_on_parse()->check(check);
  }
  try {
    // CLI11 takes a vector from its end.
    std::vector<std::string> last_first(words.rbegin(), words.rend());
    app.parse(last_first);
  } catch (const CLI::Success&) {
  } catch (const CLI::Error& error) {
    return refused ? refused : spec::Refusal{error.what(), 2, true, {}};
  }
  return std::nullopt;
}

}  // namespace

spec::Answer<spec::CommandLine> parse_command_line(std::span<const std::string> words) {
  auto plain = spec::plain_words(words);
  spec::CommandLine line;
  // Before the refusal of the words, which stand behind these: the first fault of the line is told,
  // as argparse does, and --help before a fault wins.
  if (auto refusal = parse_options(plain.options, line)) return std::unexpected(*refusal);
  if (line.action != spec::Action::Run) return line;
  if (plain.refusal) return std::unexpected(*plain.refusal);
  line.unrecognized = std::move(plain.unrecognized);
  if (plain.positionals.empty()) return line;
  line.script = std::move(plain.positionals.front());
  line.script_args.assign(std::make_move_iterator(plain.positionals.begin() + 1),
                          std::make_move_iterator(plain.positionals.end()));
  return line;
}

std::string answer_to(const spec::CommandLine& line, std::string_view program, int columns) {
  switch (line.action) {
    case spec::Action::Help:
      return line.argument == "-h" ? spec::brief_help(program) : spec::help_text(program, columns);
    case spec::Action::Version:
      return fmt::format("elastrun {} (OpenSSL {})\n", ELASTRUN_VERSION, ELASTRUN_OPENSSL);
    case spec::Action::Completion:
      return spec::completion_script(line.argument, spec::elastrun_commands());
    case spec::Action::Config:
      return spec::default_config();
    case spec::Action::Install:  // it does something, see install_into.hpp
    case spec::Action::Run:
      break;
  }
  return {};
}

std::string refusal_text(const spec::Refusal& refusal, std::string_view program) {
  std::string text = refusal.with_usage ? spec::usage_text(program) : std::string();
  text += fmt::format("{}: error: {}\n", program, refusal.text);
  if (refusal.hint.empty()) return text;
  for (const auto& line : split(refusal.hint, '\n')) text += fmt::format("  {}\n", line);
  return text;
}

}  // namespace elastrun
