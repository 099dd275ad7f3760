# SPDX-License-Identifier: Apache-2.0
elastrun_fuzz_target(journal SOURCES
  lib/export/record_line.cpp
  lib/telemetry/record.cpp
  lib/goodput/ledger/kept_steps.cpp lib/goodput/ledger/ledger.cpp
  lib/goodput/account/job_account.cpp lib/goodput/compat/goodput_calculator.cpp
  lib/goodput/journals/journal_books.cpp
  lib/goodput/reports/summary.cpp lib/core/json.cpp
  lib/core/text.cpp lib/core/error.cpp lib/core/fmt.cpp)
