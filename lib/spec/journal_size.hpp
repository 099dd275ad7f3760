// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"

#include <cstdint>

namespace elastrun::spec {

/// --journal-size: "67108864", "64M", "1G" (units of 1024), in bytes; at least 64K. 0: never.
/// Refuses (exit code 2) what is none of that, and names who said it.
Answer<std::uint64_t> journal_size(const Override& given);

}  // namespace elastrun::spec
