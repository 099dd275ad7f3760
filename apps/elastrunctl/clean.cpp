// SPDX-License-Identifier: Apache-2.0
#include "process/descendants.hpp"
#include "runs/dead_runs.hpp"
#include "subcommands.hpp"
#include "text_table.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

int run_clean() {
  int code = kExitDone;
  for (const auto& run : runs::end_dead_runs(runs::registry_places(), process::kKillBound)) {
    const auto name = shown(run.entry.name);
    fmt::print("job \"{}\": killed {}\n", name, runs::names_of(run.killed));
    if (run.alive.empty()) continue;
    code = report_error(fmt::format("job \"{}\": cannot end {}", name, runs::names_of(run.alive)),
                        kExitFailed);
  }
  return code;
}

}  // namespace elastrun::ctl
