// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::files {

/// Whether something is at `path` that is to be written to and never replaced: a device, a FIFO, a
/// socket, or one of our own streams (/dev/stdout, /proc/self/fd/N), whatever that is.
bool is_written_to(const std::string& path);

/// Whether `fd` has open what is at `path`, under whatever name. May wait for the file system.
bool is_open_at(const std::string& path, int fd);

/// Puts a file of this content there. Readers see an older file or the whole new one: it is written
/// beside it, under a temporary name, and renamed. A symbolic link stays, and what it leads to is
/// replaced or made. What another user has put into a folder of everybody's, such as /tmp, is
/// refused: a link, a file, a FIFO. An older file leaves its mode, else it is `mode` less the
/// umask. A file that cannot be replaced but written to (mounted alone, or in a folder that we may
/// not change) is written in place. What is_written_to() gets the text. May wait for as long as the
/// file system, or the reader of a FIFO, does. Fails with Io.
Status put_file(const std::string& path, std::string_view text, mode_t mode);

/// `path` with a word put before its ending: "out/report.json", "node1" -> "out/report.node1.json".
std::string with_word(const std::string& path, std::string_view word);

}  // namespace elastrun::files
