// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace elastrun::spec {

/// The whole of --help: usage, then the options by group, each with its default. Lines are at most
/// `columns` long, within 60 to 100.
std::string help_text(std::string_view program, int columns);
/// The text of -h: one screen, of 80 columns and 15 lines, with the options that most jobs use.
std::string brief_help(std::string_view program);
/// The two lines that precede an error about the command line.
std::string usage_text(std::string_view program);
/// Words of `text` in lines of at most `width` columns; the lines have no line ends.
std::string wrapped(std::string_view text, std::size_t width, std::string_view indent);

/// The text of config/elastrun.toml: every key with its meaning and its default, commented out.
std::string default_config();

}  // namespace elastrun::spec
