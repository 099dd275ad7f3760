// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/account/restart_log.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

/// Whole words of it, ".." where some are missing, in `size` columns at most.
std::string cut_words(std::string_view text, std::size_t size);

/// In eight columns: "1.2 s", "664 ms", "12.5 min"; "-" for zero.
std::string brief(Duration duration);

/// The restart waterfall for people: a line for each restart with the time of each stage, the last
/// `most` of them. At most 80 columns. Empty if there was none. `causes`: a line with the cause
/// below each.
std::string restart_table(const std::vector<RestartPath>& paths, std::size_t most, bool causes);

/// The same for machines: seconds by stage.
json::array restarts_json(const std::vector<RestartPath>& paths);

/// The starts of the workers for people: a line for each of the last `most`, with its steps, the
/// share of its time that was kept work, and how it ended. At most `columns` wide; 0: how it ended
/// is told in full. Empty if there was one at most: the summary says the same of it.
std::string start_table(const std::vector<WorkersStart>& starts, std::size_t most,
                        std::size_t columns = 0);

/// All of them for machines: [{"attempt", "at_s", "ran_s", "first_step", "last_step", "goodput",
/// "ended"}, ...]; null where it is not known.
json::array starts_json(const std::vector<WorkersStart>& starts);

}  // namespace elastrun::goodput
