// SPDX-License-Identifier: Apache-2.0
#include "core/standard_streams.hpp"

#include <fcntl.h>

namespace elastrun {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace elastrun
