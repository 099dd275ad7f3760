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

namespace elastrun {
namespace {

using spec::Kind;

spec::Override from_line(const spec::OptionRow& option, std::string text) {
  return {option.id, std::move(text),           {},
          false,     spec::Origin::CommandLine, spec::spelling(option) + " on the command line"};
}

// The words are plain already (full spellings, values apart), so that CLI11 has nothing to guess.
// Only the options that occur are declared: declaring all of them costs more than parsing.
std::vector<spec::Override> parse_options(const std::vector<std::string>& words) {
  std::vector<spec::Override> given;
  CLI::App app;
  app.set_help_flag();
  for (const auto& option : spec::options()) {
    const std::string name = spec::spelling(option);
    if (std::find(words.begin(), words.end(), name) == words.end()) continue;
    if (option.kind == Kind::Flag) {
      app.add_flag_callback(name, [&] { given.push_back(from_line(option, "1")); });
    } else {
      const CLI::callback_t take = [&](const CLI::results_t& values) {
        given.push_back(from_line(option, values.back()));
        return true;
      };
      app.add_option(name, take)->take_last();
    }
  }
  std::vector<std::string> last_first(words.rbegin(), words.rend());
  app.parse(last_first);
  return given;
}

}  // namespace

spec::Answer<spec::CommandLine> parse_command_line(std::span<const std::string> words) {
  auto plain = spec::plain_words(words);
  if (!plain) return std::unexpected(plain.error());
  spec::CommandLine line;
  line.wish = plain->wish;
  line.shell = plain->shell;
  line.unrecognized = std::move(plain->unrecognized);
  if (line.wish != spec::Wish::Run) return line;
  try {
    line.given = parse_options(plain->options);
  } catch (const CLI::Error& error) {
    // Cannot happen with plain words; a sentence is still better than an abort.
    return std::unexpected(spec::Refusal{error.what(), 2, true, {}});
  }
  if (plain->positionals.empty()) return line;
  line.script = std::move(plain->positionals.front());
  line.script_args.assign(std::make_move_iterator(plain->positionals.begin() + 1),
                          std::make_move_iterator(plain->positionals.end()));
  return line;
}

std::string answer_to(const spec::CommandLine& line, std::string_view program, int columns) {
  switch (line.wish) {
    case spec::Wish::Help:
      return spec::help_text(program, columns);
    case spec::Wish::Version:
      return fmt::format("elastrun {}\n", ELASTRUN_VERSION);
    case spec::Wish::Completion:
      return spec::completion_script(line.shell);
    case spec::Wish::Config:
      return spec::default_config();
    case spec::Wish::Run:
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
