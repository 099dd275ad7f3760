// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <cstddef>
#include <limits>
#include <string>

namespace elastrun {

/// The whole file, or its first `most` bytes. May wait for the file system, or for the writer of a
/// FIFO. Fails with Io: the path and the reason.
Result<std::string> read_file(const std::string& path,
                              std::size_t most = std::numeric_limits<std::size_t>::max());

/// All of a small file that the kernel makes up, of proc(5), sysfs or a cgroup; what could be read
/// of it, so empty if it is not there or not for us.
std::string read_kernel_file(const std::string& path);

}  // namespace elastrun
