// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/ledger/ledger.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

/// The share of the time that its kept steps would have taken with as many ranks as ever; none
/// where all were done with as many.
std::optional<double> at_full_pace(const Ledger::Summary& summary);

/// Remarks on bounds of goodput.
constexpr std::string_view kStepsUnknown =
    "Rank 0 reported no steps: how much was training is not known; --goodput auto tells.";
constexpr std::string_view kLossUnknown =
    "No checkpoint or later step was reported: what failures cost is not known.";

/// Where the time of the job went, for people: a headline, then one line with a bar for each bucket
/// that is not empty, in the order of the time they took, and remarks where steps or losses are not
/// known. Shares are rounded each by itself. At most 80 columns, ends with a newline. `unicode`:
/// bars of block characters, else of `#`.
std::string summary_text(const Ledger::Summary& summary, bool unicode = true);

/// The same for machines: seconds by bucket, which add up to "elapsed_s", and the share.
json::object summary_json(const Ledger::Summary& summary);

/// Of the text, by themselves: the buckets that are not empty, the largest first; what one is, in a
/// few words; its share, "45.2 %".
std::vector<Bucket> filled_buckets(const Ledger::Summary& summary);
std::string_view bucket_meaning(Bucket bucket, const Ledger::Summary& summary);
/// Never 100.0 % or 0.0 % for something that only nearly is; of two that are as near the lower one.
std::string share_text(double share);
std::string bucket_share(Bucket bucket, const Ledger::Summary& summary);
/// The headline's: "45.2 %", "between 40.0 % and 82.1 %".
std::string goodput_text(const Share& share);

}  // namespace elastrun::goodput
