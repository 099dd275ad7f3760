// SPDX-License-Identifier: Apache-2.0
#include "files/draft.hpp"

#include "core/write_all.hpp"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace elastrun::files {

Draft::~Draft() {
  if (exists_) ::unlinkat(directory_, name_.c_str(), 0);
}

int Draft::open(mode_t mode) {
  // O_EXCL follows no link and takes no file that is there (open(2)): in a folder where others may
  // write, one could have been put under the name.
  file_.reset(::openat(directory_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  exists_ = bool(file_);
  return exists_ ? 0 : errno;
}

int Draft::write(std::string_view text) {
  return write_all(file_.get(), text);
}

int Draft::put_in_place(const std::string& name) {
  // NFS says only now that its disk is full.
  if (::close(file_.release()) != 0) return errno;
  // rename(2) puts it in place in one step: a reader sees the old text or the new one.
  if (::renameat(directory_, name_.c_str(), directory_, name.c_str()) != 0) return errno;
  exists_ = false;
  return 0;
}

}  // namespace elastrun::files
