// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace elastrun::files
