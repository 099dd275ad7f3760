// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun {

/// Where execvp(3) looks for a program of that name, in this order: `path` is the value of PATH, if
/// there is one. A name with a slash is its own only place.
std::vector<std::string> program_candidates(const std::string& name,
                                            std::optional<std::string_view> path);

}  // namespace elastrun
