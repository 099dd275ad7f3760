// SPDX-License-Identifier: Apache-2.0
#include "agent_socket.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "runs/run_registry.hpp"
#include "subcommands.hpp"
#include "text_table.hpp"

#include <cerrno>
#include <fmt/format.h>
#include <sys/socket.h>

namespace elastrun::ctl {
namespace {

/// Any agent of the job will do: it tells the coordinator, which tells all nodes.
Status ask_to_save(const runs::RunEntry& run, const std::optional<double>& deadline) {
  if (run.channel.empty() || run.workers.empty()) {
    return fail(Code::Rendezvous, fmt::format("no worker of the job \"{}\" runs here: it is {}",
                                              shown(run.name), run.phase));
  }
  const auto socket = connect_to_agent(run.channel);
  if (!socket) return std::unexpected(socket.error());
  const auto question = deadline ? fmt::format(R"({{"kind":"preempt","deadline":{}}})", *deadline)
                                 : std::string(R"({"kind":"preempt"})");
  if (::send(socket->get(), question.data(), question.size(), MSG_NOSIGNAL) < 0) {
    return std::unexpected(errno_error(Code::Io, "cannot ask_to_save the agent", errno));
  }
  return {};
}

}  // namespace

int run_preempt(const PreemptOptions& options) {
  const auto runs = runs_of(runs::list_runs(runs::registry_places()), options.job);
  if (!runs) return report_error(runs.error().text, kExitFailed);
  const auto& run = runs->front().entry;
  if (const auto asked = ask_to_save(run, options.deadline); !asked) {
    return report_error(asked.error().text, kExitFailed);
  }
  fmt::print("asked the job \"{}\" to save and end\n", shown(run.name));
  return kExitDone;
}

}  // namespace elastrun::ctl
