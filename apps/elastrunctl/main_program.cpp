// SPDX-License-Identifier: Apache-2.0
#include "elastrunctl/main_program.hpp"

#include "command_line.hpp"
#include "core/standard_streams.hpp"
#include "subcommands.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>

namespace elastrun::ctl {

int run_program(int argc, char** argv) {
  // First: with stdout closed, the next file that is opened would become descriptor 1, and the
  // answer would be written into it.
  open_standard_streams();
  const int code = run_command(argc, argv);
  // Who reads an answer from a file must not take half of it for the whole.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return report_error(fmt::format("cannot write to stdout: {}", std::strerror(errno)), kExitFailed);
}

}  // namespace elastrun::ctl
