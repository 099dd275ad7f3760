// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/account/restart_log.hpp"
#include "goodput/ledger/ledger.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace elastrun::goodput {

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
/// "checkpoint_interval", "lost_work", ...: as in the report.
std::string_view hint_name(HintKind kind);

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
/// [{"kind", "share", "saving", "text"}, ...]
json::array hints_json(const std::vector<Hint>& hints);

}  // namespace elastrun::goodput
