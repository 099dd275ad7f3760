// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/scratch.hpp"

namespace elastrun::test {

/// A directory in which files stand for those of /proc or /sys.
struct FakeFiles : Scratch {
  std::string root() const { return path; }
};

}  // namespace elastrun::test
