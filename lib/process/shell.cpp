// SPDX-License-Identifier: Apache-2.0
#include "process/shell.hpp"

#include <unistd.h>
#include <utility>

namespace elastrun::process {

std::vector<std::string> shell_line(std::string line) {
  return {"/bin/sh", "-c", std::move(line)};
}

std::vector<std::string> shell_exec(const std::vector<std::string>& words) {
  // The words are parameters and no part of the line, so nothing in them is read as shell syntax.
  // By exec, so that signals reach the program, and its end is that of the child.
  auto argv = shell_line(R"(exec "$0" "$@")");
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

LaunchRequest fed_program(std::vector<std::string> argv, std::vector<std::string> environment,
                          int input) {
  LaunchRequest request;
  request.argv = std::move(argv);
  request.environment = std::move(environment);
  request.stdin_fd = input;
  // What it prints must not come among the workers' output, which others read from our stdout.
  request.stdout_fd = request.stderr_fd = STDERR_FILENO;
  return request;
}

}  // namespace elastrun::process
