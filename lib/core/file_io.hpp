// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun {

/// Lists where execvp(3) looks for the program `name`, in this order. `path` is the value of PATH,
/// if set. A name with a slash is its only candidate.
std::vector<std::string> program_candidates(const std::string& name,
                                            std::optional<std::string_view> path);

/// From the current directory, without dots and a slash at its end.
std::string absolute_path(const std::string& path);

/// Folders for temporary files, absolute, the best first, as Python's tempfile has them: what
/// TMPDIR, TEMP and TMP name, /tmp, /var/tmp, /usr/tmp, the current directory. None is looked at:
/// take the first that can be used. `memory`: one to be taken rather than a disk where the user
/// has named none; empty: there is none.
std::vector<std::string> temporary_places(const std::string& memory = {});

/// Folders for a socket, the best first: what TMPDIR names, /tmp, /dev/shm.
std::vector<std::string> socket_places();

/// True if the user has named one.
bool names_temporary_place();

/// A name in the file system of a socket or FIFO of ours, and the folder that was made for it
/// alone, if any. Its end removes both. Making it and its end may wait for the file system.
struct OwnName {
  std::string path, own_folder;  // own_folder empty: none
  bool made = false;             // the name is there, and ours to remove

  OwnName() = default;
  OwnName(const OwnName&) = delete;
  OwnName& operator=(const OwnName&) = delete;
  ~OwnName() { take_removal()(); }

  /// Makes a folder FOLDER_XXXXXX, in which `path` is to be `name`. Fails with Io.
  Status make_folder(std::string folder, const std::string& name);
  /// Returns what removes both, in place of the end, for a thread: unlink(2) on a network TMPDIR
  /// may hang. If it is never called, both stay.
  std::function<void()> take_removal();
};

/// Opens /dev/null where a program was started without one of its standard streams: what is opened
/// later must not become 0, 1 or 2, where others would write into it, or be handed it.
void open_standard_streams();

/// Closes `first` and all descriptors above it. System calls alone: a child may do it before
/// execve(2) in its parent's memory.
void close_descriptors_from(int first);

/// Writes all of it, and waits for as long as the reader takes, also where another process that
/// shares the open file has made it non-blocking (a terminal, a pipe of ssh(1) or node.js). 0 or an
/// errno.
int write_all(int fd, std::string_view text);

/// A file in memory with this text, to be read from its beginning by who gets the descriptor, which
/// shares the offset (unix(7)). Fails with Io.
Result<UniqueFd> memory_file(const char* name, std::string_view text);

/// Sends a packet with up to kMostDescriptors descriptors over a unix socket, and does not
/// wait for a peer that does not read. False: it was not sent.
constexpr std::size_t kMostDescriptors = 5;
bool send_with(int socket, std::string_view text, std::span<const int> descriptors);

/// The whole file, or its first `most` bytes. May wait for the file system, or for the writer of a
/// FIFO. Fails with Io: the path and the reason.
Result<std::string> read_file(const std::string& path,
                              std::size_t most = std::numeric_limits<std::size_t>::max());

/// All of a small file that the kernel makes up, of proc(5), sysfs or a cgroup; what could be read
/// of it, so empty if it is not there or not for us.
std::string read_kernel_file(const std::string& path);

}  // namespace elastrun
