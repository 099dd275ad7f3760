// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"

namespace elastrun::vectors {

struct Tally {
  int passed = 0;
  int failed = 0;
};

/// Plays each scenario of `vectors`, an object with `scenarios` and `helpers`, and prints what
/// differs from what is recorded, at 1e-6 relative. Fails with Protocol if the file is no such one.
Result<Tally> replay_goodput(const json::value& vectors);

}  // namespace elastrun::vectors
