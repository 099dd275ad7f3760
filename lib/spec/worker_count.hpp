// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace elastrun::spec {

/// Of one node: more is a slip of the finger, or hostile. Those of as many nodes as a round has at
/// most are still a number.
constexpr std::int64_t kMostWorkers = 20'000;

}  // namespace elastrun::spec
