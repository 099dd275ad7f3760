// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace elastrun::spec {

/// A script that teaches `shell` (bash, zsh, fish) the options of elastrun and their values. Empty
/// for any other shell.
std::string completion_script(std::string_view shell);

// What such scripts have in common, also those of other programs.

/// Inside single quotes of bash and zsh.
std::string single_quoted(std::string_view text);
/// Sets `cur` and `prev` in a function of bash, where "--option=value" arrives as three words.
std::string bash_words();
/// A branch of bash's `case` that completes with these arguments of compgen.
std::string bash_case(std::string_view patterns, std::string_view action);
/// The end of a script of zsh that defines the function _PROGRAM.
std::string zsh_announcement(std::string_view program);

}  // namespace elastrun::spec
