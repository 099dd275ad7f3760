// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace elastrun::ctl {

/// A line per row, indented by two blanks, with columns as wide as their widest cell. Pure.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// Without what would steer a terminal: names come from other programs.
std::string shown(const std::string& text);

}  // namespace elastrun::ctl
