// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/account/job_account.hpp"
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

/// Parts of the text: the buckets that are not empty, the largest first; the share of one, "45.2
/// %".
std::vector<Bucket> filled_buckets(const Ledger::Summary& summary);
/// Never 100.0 % or 0.0 % for something that only nearly is; of two that are as near the lower one.
std::string share_text(double share);
std::string bucket_share(Bucket bucket, const Ledger::Summary& summary);
/// The headline's: "45.2 %", "between 40.0 % and 82.1 %".
std::string goodput_text(const Share& share);

/// What a job could do with the time that it does not train.
enum class HintKind {
  CheckpointInterval,  // saves too often for the failures that it has
  LostWork,            // saves too seldom
  Saving,              // a checkpoint takes long
  Start,               // long from a start to the first step
  Data,                // waits for data
  Rendezvous,          // nodes wait for each other
  Stop,                // workers take long to end
  Hang,
};

struct Hint {
  HintKind kind;
  double share = 0;   // of the elapsed time, which this took
  double saving = 0;  // of that, at most what can be saved; never more than `share`
  std::string text;   // one sentence, with its number and what to do
};

/// Thresholds: below them the numbers do not carry a hint.
inline constexpr Duration kShortestForHints = std::chrono::seconds(60);
inline constexpr Duration kLongRun = std::chrono::minutes(10);  // its start alone is a small part
inline constexpr double kWorthAHint = 0.05;                     // of the elapsed time
inline constexpr double kWorthASaving = 0.01;                   // likewise, by another interval
inline constexpr int kFailuresForMtbf = 3;
inline constexpr int kSavesForMean = 3;
inline constexpr int kStepsForMean = 20;
inline constexpr double kOtherInterval = 1.5;  // times longer or shorter than the best one
inline constexpr std::size_t kMostHints = 3;

/// The most useful ones, by what they save; at most kMostHints, none without evidence. Pure. The
/// interval of checkpoints is judged by CheckpointPolicy, with the time in which workers trained
/// by failure as M, and the mean time of a save.
std::vector<Hint> hints(const Ledger::Summary& summary, const std::vector<RestartPath>& restarts);

/// A paragraph each, indented, at most 80 columns; empty if there are none.
std::string hints_text(const std::vector<Hint>& hints);
/// [{"kind", "share", "saving", "text"}, ...]; kinds are "checkpoint_interval", "lost_work", ...
json::array hints_json(const std::vector<Hint>& hints);

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
