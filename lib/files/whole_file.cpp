// SPDX-License-Identifier: Apache-2.0

#include "files/whole_file.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tuple>
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

namespace {

std::unexpected<Error> refused(const std::string& path, int number) {
  return std::unexpected(errno_error(Code::Io, "cannot write " + path, number));
}

/// Refuses others' files in a folder where everybody may put files, as the kernel does with
/// fs.protected_symlinks, _regular and _fifos (proc_sys_fs(5)): they were put there to read what we
/// write, or to have us write elsewhere. We ask here because we read links here, and because the
/// kernel asks only where a file may be made.
Status check_owner(const struct stat& there, const std::filesystem::path& path) {
  constexpr mode_t kEverybodys = S_ISVTX | S_IWOTH;
  const auto parent = path.parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  struct stat place {};
  if (there.st_uid == ::geteuid()) return {};
  if (::stat(folder.c_str(), &place) != 0) return refused(path, errno);
  // The rule of fs.protected_regular (proc_sys_fs(5)), by which open(2) would fail without a
  // reason.
  if ((place.st_mode & kEverybodys) != kEverybodys || place.st_uid == there.st_uid) return {};
  errno = EACCES;
  return fail(Code::Io,
              fmt::format("cannot write {}: it belongs to user {}, and everybody may put files "
                          "into {}; have it removed, or choose another path",
                          path.string(), there.st_uid, folder));
}

/// True for errors of a name beside the file, or of a rename onto it, while the file itself can be
/// written: a file that is mounted alone (EBUSY, EXDEV; Kubernetes' /dev/termination-log), a folder
/// that is not ours (EACCES, EPERM) or is mounted read-only (EROFS).
bool may_yet_be_written(int number) {
  constexpr std::array kNumbers{EBUSY, EACCES, EPERM, EROFS, EXDEV};
  return std::ranges::find(kNumbers, number) != kNumbers.end();
}

/// Readers may see half of it, and a crash leaves half of it: the last resort.
Status write_in_place(const std::string& path, std::string_view text) {
  auto fd = open_by_name(path, O_WRONLY | O_TRUNC);
  if (!fd) return std::unexpected(fd.error());
  int number = write_all(fd->get(), text);
  // This is the only copy: until it is on the disk, a crash leaves the old text emptied and the
  // new one unwritten.
  if (number == 0 && ::fsync(fd->get()) != 0) number = errno;
  if (::close(fd->release()) != 0 && number == 0) number = errno;
  if (number != 0) return refused(path, number);
  return {};
}

/// Lets a draft have the owner and the mode of the file that it will replace: who could read that
/// one can read this one, and no other user. Another owner is only root's to give.
void take_after(int fd, const struct stat& old) {
  struct stat own {};
  if (::fstat(fd, &own) != 0) return;
  if (own.st_uid != old.st_uid || own.st_gid != old.st_gid) {
    std::ignore = ::fchown(fd, old.st_uid, old.st_gid);
  }
  // After fchown(2): with the bits first, those for its group would let ours read it meanwhile.
  std::ignore = ::fchmod(fd, old.st_mode & 0777);
}

/// 0 or an errno.
int write_and_rename(const std::string& path, std::string_view text, mode_t mode,
                     const struct stat* old) {
  // Several nodes may write the same file of a shared file system: each has its draft.
  Draft draft(AT_FDCWD, fmt::format("{}.{}.part", path, random_text(8)));
  // Closed to all others until it has the owner and mode of the file that it replaces: those who
  // could not read that one cannot read the draft in between either.
  int number = draft.open(old == nullptr ? mode : 0600);
  if (number != 0) return number;
  if (old != nullptr) take_after(draft.fd(), *old);
  number = draft.write(text);
  return number != 0 ? number : draft.put_in_place(path);
}

Status replace(const std::string& path, std::string_view text, mode_t mode) {
  struct stat info {};
  // lstat(2), because links were followed one by one before: what is a link now was put there
  // since.
  const bool is_there = ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  if (is_there) {
    if (const auto allowed = check_owner(info, path); !allowed) return allowed;
  }
  const int number = write_and_rename(path, text, mode, is_there ? &info : nullptr);
  if (number == 0) return {};
  // A file that is not there yet cannot be mounted, and a folder that takes no draft takes no file.
  if (is_there && may_yet_be_written(number)) return write_in_place(path, text);
  return refused(path, number);
}

/// Follows a symbolic link, also when nothing is there yet; the path itself if it is none.
Result<std::string> target_of(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel, path_resolution(7)
  std::filesystem::path target = path;
  std::array<char, PATH_MAX> next{};
  for (int i = 0; i < kMostLinks; ++i) {
    if (const auto allowed = check_links(target.string()); !allowed) {
      return std::unexpected(allowed.error());
    }
    // Held, so that what is read is what was looked at.
    const UniqueFd link(::open(target.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    // O_PATH opens the link itself, and runs no open of a device or FIFO that is there (open(2)).
    if (!link || ::fstat(link.get(), &info) != 0 || !S_ISLNK(info.st_mode)) break;
    if (const auto allowed = check_owner(info, target); !allowed) {
      return std::unexpected(allowed.error());
    }
    // With the empty path it reads the link that is open, as readlink(2) says for Linux since
    // 2.6.39.
    const auto size = ::readlinkat(link.get(), "", next.data(), next.size());
    if (size <= 0) break;
    target = target.parent_path() / std::string_view(next.data(), static_cast<std::size_t>(size));
  }
  return target.string();
}

/// /dev/shm is a folder for files like any other; the links in /dev lead to /proc/self/fd.
bool is_stream(const std::string& path) {
  return path.starts_with("/proc/") || path.starts_with("/dev/std") || path.starts_with("/dev/fd/");
}

}  // namespace

Status check_links(const std::string& path) {
  struct stat info {};
  for (std::filesystem::path part = path; part.has_relative_path(); part = part.parent_path()) {
    if (::lstat(part.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) continue;
    if (const auto allowed = check_owner(info, part); !allowed) return allowed;
  }
  return {};
}

bool is_written_to(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  return is_stream(path) || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
}

bool ends_torn(int fd) {
  struct stat info {};
  char last = '\n';
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  // By descriptor, since the path may name another file by now; reopened, since a FIFO that is
  // opened for both never waits for its reader, so files are opened for writing alone.
  const auto open_one = fmt::format("/proc/self/fd/{}", fd);
  const UniqueFd reader(::open(open_one.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // pread(2) moves no offset.
  return reader && ::pread(reader.get(), &last, 1, info.st_size - 1) == 1 && last != '\n';
}

bool is_open_at(const std::string& path, int fd) {
  struct stat there {};
  struct stat open {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(fd, &open) == 0 &&
         // An inode has its number within one file system only, so the device counts, too.
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

Result<UniqueFd> open_by_name(const std::string& path, int flags, mode_t mode) {
  const bool stream = is_stream(path);
  const auto target = stream ? path : target_of(path);
  if (!target) return std::unexpected(target.error());
  struct stat info {};
  // Before it is opened, because a FIFO waits for its reader then.
  auto allowed = ::lstat(target->c_str(), &info) == 0 ? check_owner(info, *target) : Status();
  if (!allowed) return std::unexpected(allowed.error());
  // O_NOCTTY, or a terminal could become the agent's controlling one (open(2)). O_TRUNC would empty
  // the file of another user before its owner is known.
  const int follow = stream ? 0 : O_NOFOLLOW;
  UniqueFd fd(::open(target->c_str(), (flags & ~O_TRUNC) | follow | O_NOCTTY | O_CLOEXEC, mode));
  // Looked at again, for it may have been put there since.
  if (!fd || ::fstat(fd.get(), &info) != 0) return refused(path, errno);
  if (allowed = check_owner(info, *target); !allowed) return std::unexpected(allowed.error());
  const bool empties = (flags & O_TRUNC) != 0 && S_ISREG(info.st_mode);
  if (empties && ::ftruncate(fd.get(), 0) != 0) return refused(path, errno);
  return fd;
}

Status put_file(const std::string& path, std::string_view text, mode_t mode) {
  if (!is_written_to(path)) {
    const auto target = target_of(path);
    return target ? replace(*target, text, mode) : std::unexpected(target.error());
  }
  // Without O_CREAT: if it has gone since it was looked at, no plain file comes in its place.
  const auto fd = open_by_name(path, O_WRONLY | O_APPEND);
  if (!fd) return std::unexpected(fd.error());
  const int number = write_all(fd->get(), text);
  if (number != 0) return refused(path, number);
  return {};
}

std::string with_word(const std::string& path, std::string_view word) {
  const auto name = path.rfind('/') + 1;  // npos + 1 is 0
  auto dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return fmt::format("{}.{}{}", path.substr(0, dot), word, path.substr(dot));
}

}  // namespace elastrun::files
