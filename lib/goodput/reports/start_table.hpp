// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/account/start_log.hpp"

#include <string>
#include <vector>

namespace elastrun::goodput {

/// The starts of the workers for people: a line for each of the last `most`, with its steps, the
/// share of its time that was kept work, and how it ended. At most `columns` wide; 0: how it ended
/// is told in full. Empty if there was one at most: the summary says the same of it.
std::string start_table(const std::vector<WorkersStart>& starts, std::size_t most,
                        std::size_t columns = 0);

/// All of them for machines: [{"attempt", "at_s", "ran_s", "first_step", "last_step", "goodput",
/// "ended"}, ...]; null where it is not known.
json::array starts_json(const std::vector<WorkersStart>& starts);

}  // namespace elastrun::goodput
