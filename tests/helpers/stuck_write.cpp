// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a file system that does not answer. As long as the file $STUCK_WHILE exists,
// write(2) to the regular file $STUCK_FILE, execve(2), mkdir(2), open(2), openat(2), remove(3),
// stat(2), statfs(2), unlink(2) and unlinkat(2) of a path that has $STUCK_FOLDER in it, and
// fdatasync(2) if $STUCK_SYNC is set wait, for the processes that have it loaded. With
// $STUCK_REMOTE set, every file system says that it is NFS.
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool is_time() {
  const char* const during = getenv("STUCK_WHILE");
  return during != nullptr && access(during, F_OK) == 0;
}

bool is_stuck(int fd) {
  const char* const file = getenv("STUCK_FILE");
  if (file == nullptr || !is_time()) return false;
  struct stat named {
  }, given{};
  return stat(file, &named) == 0 && fstat(fd, &given) == 0 && S_ISREG(given.st_mode) &&
         named.st_dev == given.st_dev && named.st_ino == given.st_ino;
}

bool is_stuck(const char* path) {
  const char* const folder = getenv("STUCK_FOLDER");
  return folder != nullptr && strstr(path, folder) != nullptr && is_time();
}

constexpr timespec kMoment{0, 20'000'000};

}  // namespace

extern "C" int execve(const char* path, char* const argv[], char* const environment[]) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_execve, path, argv, environment));
}

extern "C" int mkdir(const char* path, mode_t mode) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

extern "C" int unlinkat(int folder, const char* path, int flags) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

extern "C" int unlink(const char* path) {
  return unlinkat(AT_FDCWD, path, 0);
}

extern "C" int statfs(const char* path, struct statfs* facts) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  const int done = static_cast<int>(syscall(SYS_statfs, path, facts));
  if (getenv("STUCK_REMOTE") != nullptr) facts->f_type = NFS_SUPER_MAGIC;
  return done;
}

extern "C" int remove(const char* path) {
  const int done = unlink(path);
  return done == 0 || errno != EISDIR ? done : rmdir(path);
}

extern "C" int fdatasync(int fd) {
  while (getenv("STUCK_SYNC") != nullptr && is_time()) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

extern "C" int stat(const char* path, struct stat* facts) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return fstatat(AT_FDCWD, path, facts, 0);
}

extern "C" int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return openat(AT_FDCWD, path, flags, mode);
}

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  while (is_stuck(fd)) nanosleep(&kMoment, nullptr);
  return syscall(SYS_write, fd, bytes, size);
}
