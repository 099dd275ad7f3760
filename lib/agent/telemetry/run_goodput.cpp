// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/run_goodput.hpp"

#include "core/text.hpp"
#include "workers/environment.hpp"

#include <utility>

namespace elastrun::agent {
namespace {

/// Other schedulers tell their processes nothing of the kind.
std::optional<WallTime> start_of_allocation(const std::vector<std::string>& environment) {
  const auto text = workers::find_variable(environment, "SLURM_JOB_START_TIME");
  const auto seconds = text ? parse_int(*text) : std::nullopt;
  if (!seconds || *seconds <= 0 || *seconds > 9'000'000'000) return std::nullopt;
  return WallTime(std::chrono::seconds(*seconds));
}

}  // namespace

RunGoodput::RunGoodput(Clock& clock, TimePoint job_start, const spec::JobSpec& spec)
    : clock_(clock),
      job_start_(job_start),
      spec_(spec),
      account_(clock, job_start, spec.max_nodes > 1) {
  observers_.add(&account_);
}

void RunGoodput::watch(const Parts& parts) {
  const auto& options = spec_.goodput_options;
  if (spec_.goodput == spec::Goodput::Off || (parts.host == nullptr && !options.alert)) return;
  GoodputMonitor::Parts monitor{.clock = clock_,
                                .account = account_,
                                .pipeline = parts.pipeline,
                                .host = parts.host,
                                .scheduled = start_of_allocation(workers::own_environment()),
                                .notify = {}};
  if (options.alert && !options.alert->command.empty()) {
    programs_ = process::make_posix_launcher(parts.loop, clock_);
    parts.containment.spare([programs = programs_.get(), alive = lifetime_.token()] {
      return alive ? programs->children() : std::vector<pid_t>();
    });
    command_ = std::make_unique<AlertCommand>(clock_, *programs_, options.alert->command,
                                              workers::own_environment());
    monitor.notify = [this](std::string json) { command_->run(std::move(json)); };
  }
  monitor_ = std::make_unique<GoodputMonitor>(std::move(monitor), job_start_, options);
  observers_.add(monitor_.get());
}

void RunGoodput::heard(const workers::Worker& worker, const workers::Message& message) {
  if (spec_.goodput == spec::Goodput::Off) return;
  account_.heard(worker, message);
  if (monitor_) monitor_->heard(worker, message);
}

}  // namespace elastrun::agent
