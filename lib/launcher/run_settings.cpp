// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_settings.hpp"

#include "core/host_name.hpp"
#include "core/text.hpp"
#include "logs/foreground.hpp"
#include "process/signals.hpp"
#include "workers/command.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

bool writes_files(const spec::StdMap& streams) {
  const auto some = [](const auto& one) { return one.second != spec::StdMap::kNone; };
  // A map by local rank leaves those that it does not name at none, as torch's to_map() does.
  return streams.by_local_rank.empty() ? streams.everyone != spec::StdMap::kNone
                                       : std::ranges::any_of(streams.by_local_rank, some);
}

}  // namespace

std::string mark_of_this_agent() {
  return fmt::format("{}_{}", host_name(), ::getpid());
}

Duration stuck_limit() {
  const char* text = std::getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
  const auto seconds = text == nullptr ? std::nullopt : parse_float(text);
  return seconds && *seconds > 0 ? from_seconds(*seconds) : Duration::zero();
}

telemetry::events::AgentFacts event_facts(const spec::JobSpec& spec,
                                          const rendezvous::Session& session) {
  telemetry::events::AgentFacts facts;
  facts.run_id = session.run_id();
  facts.role = spec.role;
  facts.hostname = host_name();
  facts.rdzv_backend = session.backend();
  facts.entry_point = workers::program_base_name(spec);
  return facts;
}

rendezvous::Node own_node(const spec::JobSpec& spec) {
  rendezvous::Node node;
  node.role = spec.role;
  node.local_world_size = spec.nproc_per_node;
  node.unable = spec.cannot_start;
  node.topology = spec.topology;
  return node;
}

Agent::Settings agent_settings(const spec::JobSpec& spec, const rendezvous::Node& self,
                               bool alone) {
  Agent::Settings settings{.job = spec, .self = self};
  // About what torchrun's next look at its workers would still have seen; more than a second is too
  // long for a person to wait, however seldom they want torchrun to look.
  settings.settle =
      std::min<Duration>(from_seconds(spec.monitor_interval / 2), std::chrono::seconds(1));
  settings.job_signals = process::parse_signals(spec.signals_to_handle).numbers;
  settings.stuck_after = stuck_limit();
  settings.limits.with_pauses = !alone;
  return settings;
}

bool shows_status(const spec::JobSpec& spec) {
  if (spec.status == spec::Switch::Auto) return logs::is_interactive(STDERR_FILENO);
  return spec.status == spec::Switch::On;
}

bool keeps_output(const spec::JobSpec& spec) {
  return writes_files(spec.redirects) || writes_files(spec.tee);
}

std::string lasting_report(const spec::JobSpec& spec, const logs::Layout& layout) {
  if (!spec.report_file.empty()) return spec.report_file;
  const bool stays = !layout.is_temporary() || keeps_output(spec);
  return stays && !layout.run_directory().empty() ? layout.report() : std::string();
}

bool needs_all_output(const spec::JobSpec& spec) {
  // The page shows it, and to the watch for hangs it is a sign of life.
  return spec.http || spec.hang_limit;
}

}  // namespace elastrun::agent
