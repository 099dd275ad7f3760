// SPDX-License-Identifier: Apache-2.0
#include "launcher/restart_parts.hpp"

#include "agent/files/log_folders.hpp"
#include "core/temporary_places.hpp"
#include "files/bounded_call.hpp"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

RestartParts::RestartParts(Parts parts)
    : parts_(std::move(parts)),
      saving_({.clock = parts_.clock,
               .report = parts_.report,
               .pages = parts_.pages,
               .counts_checkpoints = parts_.spec.restart_policy_auto,
               .all = parts_.spec.preempt_ack_all,
               .save_takes =
                   [this](Duration time) {
                     if (sources_) sources_->save_takes(time);
                   }}),
      memory_(parts_.spec, parts_.clock, parts_.thread) {
  if (!parts_.spec.restart_policy_auto) return;
  check_.emplace(parts_.loop.get_executor(), parts_.clock,
                 std::vector<std::string>{parts_.spec.log_dir, temporary_places().front()},
                 static_cast<std::size_t>(parts_.spec.nproc_per_node), parts_.needs);
}

std::function<void(RestartCheck::Then)> RestartParts::check() {
  if (!check_) return nullptr;
  return std::bind_front(&RestartCheck::look, &*check_);
}

void RestartParts::begin(PreemptionSources::Preempt preempt) {
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  sources_.emplace(parts_.loop, parts_.clock, parts_.spec, end != nullptr ? end : "",
                   std::move(preempt));
}

Result<std::shared_ptr<const rendezvous::RestartMemory>> read_restart_memory(
    const spec::JobSpec& spec, WallTime now) {
  using Memory = std::shared_ptr<const rendezvous::RestartMemory>;
  if (spec.restart_memory.empty()) return Memory();
  // It may lie on a file system that does not answer; before the loop SIGTERM ends the agent.
  return files::result_within(
      "--restart-memory " + spec.restart_memory, LogFolders::kTimeLimit,
      [path = spec.restart_memory, now] { return RestartMemoryFile::read(path, now); });
}

}  // namespace elastrun::agent
