// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::files {

/// A file that is written beside the one that it is to replace: readers see the old one or the
/// whole new one. It is removed with this object, unless it has been put in its place.
class Draft {
 public:
  /// `name` is new in the directory that `directory` has open, or a path with AT_FDCWD; the
  /// descriptor must stay open as long as this object.
  Draft(int directory, std::string name) : directory_(directory), name_(std::move(name)) {}
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft();

  /// Each is 0 or an errno. All may wait for the file system.
  int open(mode_t mode);
  int write(std::string_view text);
  /// Closes the file first, and fails where that tells that it could not be written.
  int put_in_place(const std::string& name);
  /// The open file; -1 before open() and after put_in_place().
  int fd() const { return file_.get(); }

 private:
  const int directory_;
  const std::string name_;
  UniqueFd file_;
  bool exists_ = false;
};

/// True if something at `path` is written to and never replaced: a device, a FIFO, a socket, or one
/// of our own streams (/dev/stdout, /proc/self/fd/N), whatever that is.
bool is_written_to(const std::string& path);

/// True if `fd` has open what is at `path`, under any name. May wait for the file system.
bool is_open_at(const std::string& path, int fd);

/// True if the plain file that `fd` has open, for writing alone maybe, ends in half a line.
bool ends_torn(int fd);

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
