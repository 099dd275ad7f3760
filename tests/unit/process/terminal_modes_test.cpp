// SPDX-License-Identifier: Apache-2.0
#include "process/guardian.hpp"

#include <doctest/doctest.h>

using namespace elastrun::process;

TEST_CASE("terminal modes: what was on is on again, what others have switched on stays") {
  termios before{};
  before.c_lflag = ECHO | ECHOE | ICANON | ISIG;
  before.c_iflag = ICRNL;
  before.c_oflag = OPOST | ONLCR;
  before.c_cc[VINTR] = 3;
  termios raw{};
  raw.c_iflag = IUTF8;
  raw.c_cflag = CS8;
  const auto modes = with_modes_of(before, raw);
  CHECK(modes.c_lflag == before.c_lflag);
  CHECK(modes.c_iflag == (IUTF8 | ICRNL));
  CHECK(modes.c_oflag == before.c_oflag);
  CHECK(modes.c_cflag == CS8);
  CHECK(modes.c_cc[VINTR] == 3);
}

TEST_CASE("terminal modes: what was off before is not switched on or off") {
  termios before{};
  before.c_lflag = ICANON;
  termios now = before;
  CHECK((with_modes_of(before, now).c_lflag & ECHO) == 0);
  now.c_lflag |= ECHO;
  CHECK((with_modes_of(before, now).c_lflag & ECHO) != 0);
}
