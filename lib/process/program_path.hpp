// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::process {

/// The file that execvpe(3) would start, found beforehand, so that a child has nothing left to do
/// but execve(2).
///
/// A name with a slash is taken as it is. Any other is looked up in the PATH of `environment`
/// (without one: /bin:/usr/bin), where an empty element is the current directory. Relative results
/// are relative to `directory` (empty: ours), because that is where the child will be.
/// Fails with Spawn: no such file, or only such that may not be executed.
Result<std::string> find_program(const std::string& name,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory);

/// Why execve(2) refused, in words: names the interpreter that a script's first line asks for and
/// that does not exist, the size of an environment that is too large, the limit that was hit.
std::string explain_exec_failure(int number, const std::string& path,
                                 const std::vector<std::string>& argv,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory);

}  // namespace elastrun::process
