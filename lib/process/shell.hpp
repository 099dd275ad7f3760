// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/launcher.hpp"

#include <string>
#include <vector>

/// How a user's program is started while a job runs: by /bin/sh. A start holds its caller up
/// until execve(2) has returned (vfork_launcher.hpp), and the program may lie on a file system that
/// does not answer. So a shell waits for it, which can be killed, and not the loop. What cannot be
/// started is then a shell that says so on stderr and ends with 126 or 127.
namespace elastrun::process {

/// argv of a shell that runs `line`.
std::vector<std::string> shell_line(std::string line);
/// argv of a shell that becomes the program `words[0]` with these arguments, looked up in PATH
/// unless it has a slash, and interprets none of them. `words` is not empty.
std::vector<std::string> shell_exec(const std::vector<std::string>& words);

/// A program that reads `input`, a descriptor, and writes all to our stderr.
LaunchRequest fed_program(std::vector<std::string> argv, std::vector<std::string> environment,
                          int input);

}  // namespace elastrun::process
