// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::files {

/// True if something at `path` is written to and never replaced: a device, a FIFO, a socket, or one
/// of our own streams (/dev/stdout, /proc/self/fd/N), whatever that is.
bool is_written_to(const std::string& path);

/// True if `fd` has open what is at `path`, under any name. May wait for the file system.
bool is_open_at(const std::string& path, int fd);

/// Checks that another user has put no link on the way to `path` into a folder of everybody's, such
/// as /tmp: it could have us write elsewhere. Fails with Io.
Status check_links(const std::string& path);

/// Opens a file that a user or an option has named for writing; every one is opened here. `flags`
/// are those of open(2), to which O_NOCTTY and O_CLOEXEC come. A symbolic link is followed, see
/// check_links(); another user's file or FIFO in a folder of everybody's is refused as well. May
/// wait for as long as the file system, or the reader of a FIFO, does. Fails with Io; errno says
/// why, EACCES for what is another user's.
Result<UniqueFd> open_by_name(const std::string& path, int flags, mode_t mode = 0);

/// Puts a file of this content there. Readers see an older file or the whole new one: it is written
/// beside it, under a temporary name, and renamed. A symbolic link stays, and what it leads to is
/// replaced or made; open_by_name() refuses the same. An older file leaves its mode, else it is
/// `mode` less the umask. A file that cannot be replaced but written to (mounted alone, or in a
/// folder that we may not change) is written in place. What is_written_to() gets the text. May wait
/// for as long as the file system, or the reader of a FIFO, does. Fails with Io.
Status put_file(const std::string& path, std::string_view text, mode_t mode);

/// `path` with a word put before its ending: "out/report.json", "node1" -> "out/report.node1.json".
std::string with_word(const std::string& path, std::string_view word);

}  // namespace elastrun::files
