// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "logs/console.hpp"

#include <optional>
#include <string>

namespace elastrun::logs {

/// Which of our own streams, open as these descriptors, is at that path, under whatever name:
/// /dev/stdout, /proc/self/fd/1, a link, the file itself. It is to be written by the console, which
/// knows where the next byte goes: of a file that the shell has opened without O_APPEND who opens
/// it again overwrites what is there, or is overwritten. May wait for the file system.
std::optional<Console::Stream> own_stream(const std::string& path, int out, int err);

}  // namespace elastrun::logs
