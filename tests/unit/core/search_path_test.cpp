// SPDX-License-Identifier: Apache-2.0
#include "core/file_io.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using Places = std::vector<std::string>;

TEST_CASE("search path: as execvp(3) looks for a program") {
  CHECK(program_candidates("python3", "/opt/bin::/usr/bin") ==
        Places{"/opt/bin/python3", "./python3", "/usr/bin/python3"});
  CHECK(program_candidates("python3", std::nullopt) == Places{"/bin/python3", "/usr/bin/python3"});
  CHECK(program_candidates("python3", "") == Places{"./python3"});
  CHECK(program_candidates("./run", "/opt/bin") == Places{"./run"});
}
