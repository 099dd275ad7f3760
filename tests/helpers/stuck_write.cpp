// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a file system that does not answer. As long as the file $STUCK_WHILE exists,
// write(2) to the regular file $STUCK_FILE waits, for the processes that have it loaded.
#include <cstdlib>
#include <ctime>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool is_stuck(int fd) {
  const char* const file = getenv("STUCK_FILE");
  const char* const during = getenv("STUCK_WHILE");
  if (file == nullptr || during == nullptr || access(during, F_OK) != 0) return false;
  struct stat named {
  }, given{};
  return stat(file, &named) == 0 && fstat(fd, &given) == 0 && S_ISREG(given.st_mode) &&
         named.st_dev == given.st_dev && named.st_ino == given.st_ino;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  const timespec moment{0, 20'000'000};
  while (is_stuck(fd)) nanosleep(&moment, nullptr);
  return syscall(SYS_write, fd, bytes, size);
}
