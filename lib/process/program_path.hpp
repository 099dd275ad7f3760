// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "process/launcher.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::process {

/// The file that execvpe(3) would start, found beforehand, so that a child has nothing left to do
/// but execve(2).
///
/// A name with a slash is taken as it is. Any other is looked up in the PATH of `environment`
/// (without one: /bin:/usr/bin), where an empty element is the current directory. Relative results
/// are relative to `directory` (empty: ours), because that is where the child will be.
/// Fails with Spawn: no such file, or only such that may not be executed.
Result<std::string> find_program(const std::string& name,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory);

/// Why execve(2) refused, in words: names the interpreter that a script's first line asks for and
/// that does not exist, the size of an environment that is too large, the limit that was hit.
std::string explain_exec_failure(int number, const std::string& path,
                                 const std::vector<std::string>& argv,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory);

/// How a user's program is started while a job runs: by /bin/sh. A start holds its caller up
/// until execve(2) has returned (spawn()), and the program may lie on a file system that
/// does not answer. So a shell waits for it, which can be killed, and not the loop. What cannot be
/// started is then a shell that says so on stderr and ends with 126 or 127.

/// argv of a shell that runs `line`.
std::vector<std::string> shell_line(std::string line);
/// argv of a shell that becomes the program `words[0]` with these arguments, looked up in PATH
/// unless it has a slash, and interprets none of them. `words` is not empty.
std::vector<std::string> shell_exec(const std::vector<std::string>& words);

/// A program that reads `input`, a descriptor, and writes all to our stderr.
LaunchRequest fed_program(std::vector<std::string> argv, std::vector<std::string> environment,
                          int input);

}  // namespace elastrun::process
