// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/journals/journal_outline.hpp"

#include <cstddef>
#include <vector>

namespace elastrun::goodput {

/// Which of these journals are of one submission, in the order of the first of each; most are
/// alone. Of one run id, each with one submission alone, their agents ran at the same time and
///   - had a round in common, or
///   - were in rounds that can be of one job, one after the other (spares that replaced all), or
///   - waited beside them as a spare for a round that never came. Pure.
std::vector<std::vector<std::size_t>> submissions_of(const std::vector<JournalOutline>& journals);

}  // namespace elastrun::goodput
