# SPDX-License-Identifier: Apache-2.0
elastrun_fuzz_target(journal SOURCES tests/fuzz/journal_fuzz.cpp
  lib/export/plain_record.cpp lib/export/record_line.cpp lib/telemetry/record.cpp
  lib/telemetry/value.cpp lib/goodput/bucket.cpp lib/goodput/checkpoint_interval.cpp
  lib/goodput/hints.cpp lib/goodput/job_account.cpp lib/goodput/journal_books.cpp
  lib/goodput/catch_up.cpp lib/goodput/journal_outline.cpp lib/goodput/one_clock.cpp
  lib/goodput/stitched_journals.cpp lib/goodput/submissions.cpp lib/goodput/kept_steps.cpp
  lib/goodput/phase_bucket.cpp lib/goodput/safe_step.cpp lib/goodput/usual_step.cpp
  lib/goodput/ledger.cpp lib/goodput/measurement_log.cpp lib/goodput/node_phase.cpp
  lib/goodput/restart_log.cpp lib/goodput/restart_table.cpp lib/goodput/start_log.cpp
  lib/goodput/start_table.cpp lib/goodput/step_series.cpp lib/goodput/summary.cpp
  lib/goodput/timeline.cpp lib/goodput/work_counts.cpp lib/core/json.cpp lib/core/text.cpp
  lib/core/utf8.cpp lib/core/error.cpp lib/core/fmt.cpp)
