// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/account/job_account.hpp"
#include "goodput/compat/measurement_log.hpp"

#include <cstdint>
#include <optional>

namespace elastrun::goodput {

struct MeasuredBooks {
  Ledger::Summary summary;
  History history;
  std::uint64_t duplicates = 0;  // the same entry again: left out
  std::uint64_t misplaced = 0;   // before the start of the job, or after its end: left out
  double first = 0, last = 0;    // POSIX seconds of the first start of the job and the last entry
};

/// The true books of a log of ml-goodput-measurement: each second in one bucket, in whatever order
/// the entries have come. None if the log has no start of the job.
///
/// What that log does not say is taken so: a step lasts until the next one begins; the last one
/// before a restart as long as the others of its start on average; from then until the next start
/// of the job is Restart. The same number again is the same step (several ranks), a lower one a
/// resume. A phase counts if its end is there; an evaluation or a load within a step is not
/// progress.
std::optional<MeasuredBooks> keep_books(const MeasurementLog& log);

}  // namespace elastrun::goodput
