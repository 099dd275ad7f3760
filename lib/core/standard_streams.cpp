// SPDX-License-Identifier: Apache-2.0
#include "core/standard_streams.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace elastrun {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // open(2) takes the lowest free number, which is this one: those below it are open by now.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

void close_descriptors_from(int first) {
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  // Linux before 5.9. What we open is close-on-exec anyway; this is for what we inherited.
  for (int fd = first; fd < 4096; ++fd) ::close(fd);
}

}  // namespace elastrun
