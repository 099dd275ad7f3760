// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/journals/journal_outline.hpp"

#include <vector>

namespace elastrun::goodput {

/// A coordinator that follows another one has the clock of another machine. Puts the clocks of all
/// that the agents of a submission have learnt on the first one: an agent that has learnt two has
/// its steady clock between them. Where several have, the least error counts, which is added to
/// that of what was learnt. Pure.
void put_on_one_clock(std::vector<JournalOutline>& journals);

}  // namespace elastrun::goodput
