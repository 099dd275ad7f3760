// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"

#include <span>
#include <string>

namespace elastrun {

/// Reads the words after the program's name. The values are text that has the right form; whether
/// they make a job is for `spec::resolve`. Exits nothing, prints nothing.
spec::Answer<spec::CommandLine> parse_command_line(std::span<const std::string> words);

/// Answers a line that asks for something else than a run, on stdout: help for a terminal of that
/// many columns, the version, a completion script, or the default file.
std::string answer_to(const spec::CommandLine& line, std::string_view program, int columns);

/// Writes a refusal for stderr: usage if it asks for it, `PROGRAM: error: TEXT`, the hint.
std::string refusal_text(const spec::Refusal& refusal, std::string_view program);

}  // namespace elastrun
