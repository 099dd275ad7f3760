// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/torchrun_log.hpp"

#include "agent/round/placement.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "workers/command.hpp"

namespace elastrun::agent {
namespace {

// Area and sentences are those of torchrun, in whose output tools look for them.
constexpr std::string_view kApiArea = "api";

std::string numbers(int from, int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(std::to_string(from + i));
  return "[" + join(all, ", ") + "]";
}

std::string repeated(int number, int count) {
  return "[" +
         join(std::vector<std::string>(static_cast<std::size_t>(count), std::to_string(number)),
              ", ") +
         "]";
}

std::string launch_block(const spec::JobSpec& spec) {
  const auto row = [](std::string_view name, const auto& value) {
    return fmt::format("  {:<24} : {}\n", name, value);
  };
  return "Starting elastic_operator with launch configs:\n" + row("entrypoint", spec.script) +
         row("min_nodes", spec.min_nodes) + row("max_nodes", spec.max_nodes) +
         row("nproc_per_node", spec.nproc_per_node) + row("run_id", spec.run_id) +
         row("rdzv_backend", spec.rdzv_backend) + row("rdzv_endpoint", spec.rdzv_endpoint) +
         row("max_restarts", spec.max_restarts) + row("monitor_interval", spec.monitor_interval) +
         row("log_dir", spec.log_dir) + row("event_log_handler", spec.event_log_handler) +
         row("signals_to_handle", spec.signals_text);
}

}  // namespace

void TorchrunLog::launching() const {
  // Asked before, because the text is made before the log can decline it.
  if (log::is_on(log::Level::Info)) log::info(kApiArea, "{}", launch_block(spec_));
}

void TorchrunLog::on(const moment::PhaseChanged& seen) {
  if (seen.phase == Phase::Joining) {
    log::info(kApiArea, "[{}] Rendezvous'ing worker group", spec_.role);
  } else if (seen.phase == Phase::Barrier) {
    log::info(kApiArea,
              "[{}] worker group successfully finished. Waiting {} for other agents to finish.",
              spec_.role, format_duration(spec_.exit_barrier_timeout));
  }
}

void TorchrunLog::on(const moment::RoundReady& seen) {
  if (!log::is_on(log::Level::Info)) return;
  const int count =
      seen.round.members[static_cast<std::size_t>(seen.round.group_rank)].local_world_size;
  const auto meeting = meeting_place(spec_, seen.round);
  log::info(kApiArea, "[{}] starting workers for entrypoint: {}", spec_.role,
            workers::program_base_name(spec_));
  log::info(kApiArea,
            "[{}] Rendezvous complete for workers. Result:\n"
            "  restart_count={}\n  master_addr={}\n  master_port={}\n  group_rank={}\n"
            "  group_world_size={}\n  local_ranks={}\n  role_ranks={}\n  global_ranks={}\n"
            "  role_world_sizes={}\n  global_world_sizes={}\n  event_log_handler={}\n",
            spec_.role, seen.round.attempt, meeting.host, meeting.port, seen.round.group_rank,
            seen.round.group_world_size(), numbers(0, count),
            numbers(seen.round.role_rank_base, count), numbers(seen.round.rank_base, count),
            repeated(seen.round.role_world_size, count), repeated(seen.round.world_size, count),
            spec_.event_log_handler);
  log::info(kApiArea, "[{}] Starting worker group", spec_.role);
}

void TorchrunLog::on(const moment::Failed& seen) {
  const auto& root = seen.judgement.failures[seen.judgement.root];
  const bool run_path = spec_.mode == spec::Mode::RunPath;
  const auto what = run_path ? fmt::format("fn: {} (start_method: {})",
                                           workers::program_name(spec_), spec_.start_method)
                             : "binary: " + workers::program_name(spec_);
  log::error(kApiArea, "failed (exitcode: {}) local_rank: {} (pid: {}) of {}",
             root.status.as_python(), root.local_rank, root.pid, what);
}

void TorchrunLog::on(const moment::Restarting& seen) {
  if (seen.order.attempt_spent) {
    // torchrun prints the number from before this restart is counted, so ours is one too low for
    // it.
    log::info(kApiArea, "[{}] Worker group FAILED. {}/{} attempts left; will restart worker group",
              spec_.role, seen.order.restarts_left + 1, spec_.max_restarts);
  } else {
    log::info(kApiArea, "[{}] {}; will restart worker group", spec_.role, seen.order.cause.text);
  }
}

void TorchrunLog::on(const moment::Ended& seen) {
  if (!seen.result.ending.why.empty() && seen.result.succeeded()) {
    log::warning(kApiArea, "{}", seen.result.ending.why);
  }
  log::info(kApiArea, "[{}] The job is over: it {}", spec_.role,
            seen.result.succeeded() ? "succeeded" : "failed");
}

}  // namespace elastrun::agent
