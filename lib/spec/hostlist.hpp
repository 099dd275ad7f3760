// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// The names that Slurm's short form stands for: "n[01-03,7],m1" is n01, n02, n03, n7, m1. Several
/// brackets in one name give all combinations. Fails on brackets that do not match, ranges that run
/// backwards, and lists of more than a million names.
Result<std::vector<std::string>> expand_hostlist(std::string_view text);

}  // namespace elastrun::spec
