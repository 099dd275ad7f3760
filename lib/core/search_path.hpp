// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun {

/// Lists where execvp(3) looks for the program `name`, in this order. `path` is the value of PATH,
/// if set. A name with a slash is its only candidate.
std::vector<std::string> program_candidates(const std::string& name,
                                            std::optional<std::string_view> path);

}  // namespace elastrun
