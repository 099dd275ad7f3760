// SPDX-License-Identifier: Apache-2.0
#include "files/whole_file.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::files {
namespace {

std::unexpected<Error> refused(const std::string& path, int number) {
  return std::unexpected(errno_error(Code::Io, "cannot write " + path, number));
}

/// 0 or an errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put < 0 ? errno : ENOSPC;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return 0;
}

Status write_to(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC));
  const int number = fd ? write_all(fd.get(), text) : errno;
  if (number != 0) return refused(path, number);
  return {};
}

Status replace(const std::string& path, std::string_view text, mode_t mode) {
  // Several nodes may write the same file of a shared file system: each has its draft.
  const std::string draft = fmt::format("{}.{}.part", path, random_text(8));
  UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return refused(path, errno);
  int number = write_all(fd.get(), text);
  // NFS says only now that its disk is full.
  if (::close(fd.release()) != 0 && number == 0) number = errno;
  if (number == 0 && ::rename(draft.c_str(), path.c_str()) != 0) number = errno;
  if (number == 0) return {};
  ::unlink(draft.c_str());
  return refused(path, number);
}

/// Where a symbolic link leads; the path itself if there is none, or it leads nowhere.
std::string target_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr), &::free);
  return real ? real.get() : path;
}

}  // namespace

bool is_written_to(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  // /dev/shm is a folder for files like any other; the links in /dev lead to /proc/self/fd.
  const bool stream =
      path.starts_with("/proc/") || path.starts_with("/dev/std") || path.starts_with("/dev/fd/");
  return stream || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
}

bool is_open_at(const std::string& path, int fd) {
  struct stat there {};
  struct stat open {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(fd, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

Status put_file(const std::string& path, std::string_view text, mode_t mode) {
  if (is_written_to(path)) return write_to(path, text);
  return replace(target_of(path), text, mode);
}

std::string with_word(const std::string& path, std::string_view word) {
  const auto name = path.rfind('/') + 1;  // npos + 1 is 0
  auto dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return fmt::format("{}.{}{}", path.substr(0, dot), word, path.substr(dot));
}

}  // namespace elastrun::files
