// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a wall clock that is set back by an hour as soon as the file $CLOCK_STEP exists,
// for the processes that have it loaded. The steady clock goes on, as the kernel's does.
#include <cstdlib>
#include <ctime>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

timespec read_clock(clockid_t id) {
  timespec now{};
  syscall(SYS_clock_gettime, id, &now);
  const char* const file = getenv("CLOCK_STEP");
  if (id == CLOCK_REALTIME && file != nullptr && access(file, F_OK) == 0) now.tv_sec -= 3600;
  return now;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t id, timespec* now) noexcept {
  *now = read_clock(id);
  return 0;
}

int gettimeofday(timeval* now, void*) noexcept {
  const auto exact = read_clock(CLOCK_REALTIME);
  *now = {exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const auto seconds = read_clock(CLOCK_REALTIME).tv_sec;
  if (now != nullptr) *now = seconds;
  return seconds;
}
}
