// SPDX-License-Identifier: Apache-2.0
#include "agent_socket.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "subcommands.hpp"
#include "text_table.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

int run_preempt(const PreemptOptions& options) {
  const auto runs = runs_of(runs_here(), options.job);
  if (!runs) return report_error(runs.error().text, kExitFailed);
  const auto& run = runs->front().entry;
  const auto& deadline = options.deadline;
  const auto question = deadline ? fmt::format(R"({{"kind":"preempt","deadline":{}}})", *deadline)
                                 : std::string(R"({"kind":"preempt"})");
  // Any agent of the job will do: it tells the coordinator, which tells all nodes.
  if (const auto asked = ask_agent(run, question); !asked) {
    return report_error(asked.error().text, kExitFailed);
  }
  fmt::print("asked the job \"{}\" to save and end\n", shown(run.name));
  return kExitDone;
}

}  // namespace elastrun::ctl
