// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/ledger/bucket.hpp"

#include <optional>
#include <string_view>

namespace elastrun::goodput {

/// Where the time of a phase goes that a script or a recorder calls `name`, in letters of any case:
/// "eval" is Evaluation, "save" Checkpoint, "train" Running, and what is not known Custom.
Bucket bucket_of_phase(std::string_view name);
/// Of a phase that is Checkpoint: whether the name says loading, or saving; none: neither.
std::optional<bool> says_loading(std::string_view name);

}  // namespace elastrun::goodput
