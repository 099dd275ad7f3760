// SPDX-License-Identifier: Apache-2.0
#include "text_table.hpp"

#include "core/text.hpp"

#include <algorithm>
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

}  // namespace elastrun::ctl
