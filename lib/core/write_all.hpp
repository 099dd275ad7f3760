// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun {

/// Writes all of it, and waits for as long as the reader takes, also where another process that
/// shares the open file has made it non-blocking (a terminal, a pipe of ssh(1) or node.js). 0 or an
/// errno.
int write_all(int fd, std::string_view text);

}  // namespace elastrun
