// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"
#include "core/standard_streams.hpp"
#include "subcommands.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>

int main(int argc, char** argv) {
  // First: with stdout closed, the next file that is opened would become descriptor 1, and the
  // answer would be written into it.
  elastrun::open_standard_streams();
  const int code = elastrun::ctl::run_command(argc, argv);
  // Who reads an answer from a file must not take half of it for the whole.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return elastrun::ctl::report_error(
      fmt::format("cannot write to stdout: {}", std::strerror(errno)), elastrun::ctl::kExitFailed);
}
