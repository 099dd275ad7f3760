// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/subcommands.hpp"

#include "core/text.hpp"
#include "rendezvous/election/make_elected.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>

namespace elastrun::ctl {

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    text += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string shown(const std::string& text) {
  // Names come from other processes and machines: an escape sequence in one could rewrite the
  // terminal.
  return without_controls(text);
}

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
