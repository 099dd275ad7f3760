// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a file system that does not answer. As long as the file $STUCK_WHILE exists,
// write(2) to the regular file $STUCK_FILE, and mkdir(2), open(2) and stat(2) of a path that has
// $STUCK_FOLDER in it wait, for the processes that have it loaded.
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
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

extern "C" int mkdir(const char* path, mode_t mode) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

extern "C" int stat(const char* path, struct stat* facts) {
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return fstatat(AT_FDCWD, path, facts, 0);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  while (is_stuck(path)) nanosleep(&kMoment, nullptr);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  while (is_stuck(fd)) nanosleep(&kMoment, nullptr);
  return syscall(SYS_write, fd, bytes, size);
}
