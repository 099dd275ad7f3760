// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "goodput/ledger/ledger.hpp"
#include "goodput/reports/checkpoint_interval.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace elastrun::goodput {

/// What is not given is what was recorded.
struct WhatIfQuestion {
  std::optional<double> mtbf;            // seconds from one failure to the next, on average
  std::optional<double> save_time;       // seconds, of one checkpoint
  std::optional<std::int64_t> interval;  // steps from one checkpoint to the next
  /// Seconds of a save, used where the record has no mean (SaveTimes).
  std::optional<double> observed_save = {};
};

/// What a checkpoint interval would have made of the job.
struct IntervalOutcome {
  double steps = 0;      // from one checkpoint to the next
  double goodput = 0;    // the share of the time that is kept steps, expected by Daly's formula
  double seconds = 0;    // for all steps, likewise
  double simulated = 0;  // the same share, of jobs whose failures were drawn
};

struct WhatIf {
  std::int64_t steps = 0;  // of the recorded job, as far as they are timed
  double step_time = 0;    // seconds, of one
  CheckpointPolicy policy;
  bool restart_recorded = true;  // else a restart is taken to last as long as the first start
  bool save_observed = false;    // by what passed between a step and its checkpoint
  std::optional<IntervalOutcome> asked, recorded;
  IntervalOutcome best;  // no longer than the job
};

/// The steps of a recorded job under another policy, by the formulas of CheckpointPolicy, and by a
/// simulation of kJobs jobs with a fixed seed: what is not kept at a failure is done again, also a
/// restart that fails. Pure; the same answer each time. Fails with Usage if neither question nor
/// record say how often the job fails, how long a save takes or how long a step.
Result<WhatIf> what_if(const Ledger::Summary& recorded, const WhatIfQuestion& question);

/// A line for each interval; at most 80 columns.
std::string what_if_text(const WhatIf& answer);
json::object what_if_json(const WhatIf& answer);

}  // namespace elastrun::goodput
