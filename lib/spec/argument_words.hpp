// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace elastrun::spec {

/// The words of a command line as a parser without argparse's liberties understands them: each
/// option with its full spelling, its value as the next word.
struct PlainWords {
  std::vector<std::string> options;       // "--max-restarts", "3", "--standalone", ...
  std::vector<std::string> positionals;   // the script and its arguments
  std::vector<std::string> unrecognized;  // option-like words that are none
  /// Why the reading ended there, in argparse's text: an ambiguous prefix, a missing value, a flag
  /// with a value. What an option before it asks for, or its wrong value, comes first.
  std::optional<Refusal> refusal;
};

/// Spells words out as Python's argparse takes them, with torchrun's options and ours: unique
/// prefixes, underscore spellings, `-r3`, `-r=3`, `-mr 1`, negative numbers as values, `--`. What
/// follows the script belongs to the script, ambiguous prefixes too. Our own options take part in
/// prefix matching only where none of torchrun's matches, so that each of its abbreviations still
/// works. What the options mean is for the parser. `words` does not hold the program's name.
PlainWords plain_words(std::span<const std::string> words);

/// The first argument of a script that is meant for us, as far as one can tell; empty: none.
std::string misplaced_option(const std::vector<std::string>& script_args);
/// "unrecognized arguments: --bogus", with the option that does it, or the nearest one, as a hint.
Refusal unrecognized(const std::vector<std::string>& words);
/// As argparse converts a value: "argument --max-restarts/--max_restarts: invalid int value: 'x'".
/// Choices are not checked when the text comes from a variable, as in torchrun.
std::optional<Refusal> check_text(const OptionRow& option, std::string_view text);

/// 'text', with Python's choice of quotes and escapes.
std::string in_quotes(std::string_view text);

}  // namespace elastrun::spec
