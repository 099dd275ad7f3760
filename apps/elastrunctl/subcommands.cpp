// SPDX-License-Identifier: Apache-2.0
#include "subcommands.hpp"

#include "core/text.hpp"
#include "rendezvous/election/make_elected.hpp"

#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>

namespace elastrun::ctl {

Result<std::string> secret_of(const JobChoice& job) {
  const char* given = std::getenv("ELASTRUN_SECRET");
  const std::string& file = job.secret_file.empty() ? job.config.secret_file : job.secret_file;
  return rendezvous::read_secret(file, given == nullptr ? "" : given);
}

int report_error(const std::string& text, int exit_code) {
  fmt::print(stderr, "elastrunctl: {}\n", without_controls(text, "\n"));
  return exit_code;
}

}  // namespace elastrun::ctl
