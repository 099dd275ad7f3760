// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace elastrun::process {

/// All of a small file that the kernel makes up, of proc(5) or a cgroup; what could be read of it,
/// so empty if it is not there or not for us.
std::string read_kernel_file(const std::string& path);

}  // namespace elastrun::process
