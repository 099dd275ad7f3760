// SPDX-License-Identifier: Apache-2.0
#include "core/write_all.hpp"

#include <cerrno>
#include <poll.h>
#include <unistd.h>

namespace elastrun {

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto put = ::write(fd, text.data(), text.size());
    if (put > 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (put == 0) {
      return ENOSPC;  // of a disk; POSIX lets no other file say so
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);  // also ends when the reader has gone: the next write tells
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace elastrun
