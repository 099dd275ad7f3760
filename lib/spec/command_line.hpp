// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/sources.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// Reads the words after the program's name as Python's argparse takes them, with torchrun's
/// options and ours: unique prefixes, underscore spellings, `-r3`, `-r=3`, `-mr 1`, negative
/// numbers as values, `--`. Our own options take part in prefix matching only where none of
/// torchrun's matches, so that each of its abbreviations still works. What follows the script
/// belongs to the script. The values are text of the right form; whether they make a job is for
/// `resolve`.
Answer<CommandLine> parse_command_line(std::span<const std::string> words);

/// The first argument of a script that is meant for us, as far as one can tell; empty: none.
std::string misplaced_option(const std::vector<std::string>& script_args);
/// "unrecognized arguments: --bogus", with the option that does it, or the nearest one, as a hint.
Refusal unrecognized(const std::vector<std::string>& words);

/// Writes a refusal for stderr: usage if it asks for it, `PROGRAM: error: TEXT`, the hint.
std::string refusal_text(const Refusal& refusal, std::string_view program);

}  // namespace elastrun::spec
