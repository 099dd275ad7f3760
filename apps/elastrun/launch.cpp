// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include "called_run.hpp"
#include "command_line.hpp"
#include "core/log.hpp"
#include "core/read_file.hpp"
#include "dry_run.hpp"
#include "end_of_run.hpp"
#include "exit_code.hpp"
#include "install_into.hpp"
#include "launcher/job_run.hpp"
#include "process/cgroup.hpp"
#include "process/descriptor_limit.hpp"
#include "process/devices.hpp"
#include "process/guardian.hpp"
#include "process/torch_devices.hpp"
#include "rendezvous/session/handler.hpp"
#include "spec/explain.hpp"
#include "start_of_run.hpp"
#include "system/nvml.hpp"
#include "telemetry/events.hpp"

#include <cstdlib>
#include <signal.h>
#include <utility>

namespace elastrun {
namespace {

/// This machine, for `spec::resolve`. `called_as`: argv[0].
spec::HostEnvironment real_host_environment(std::string called_as) {
  const process::ReadVariable variable = [](const char* name) { return std::getenv(name); };
  auto around = spec::system_host_environment([variable] { return process::count_gpus(variable); },
                                              [] { return process::count_xpus(); });
  around.count_cpus = [cpus = std::move(around.count_cpus)] {
    return process::cpus_within_quota(cpus(), read_kernel_file("/proc/self/cgroup"),
                                      read_kernel_file("/proc/self/mountinfo"));
  };
  around.has_other_accelerators = [] { return process::has_other_accelerators(); };
  around.ask_torch = process::ask_torch;
  around.nvlink_domain = [] { return system::nvlink_domain(std::chrono::seconds(10)); };
  around.called_as = std::move(called_as);
  around.rdzv_backends = rendezvous::registered_backends();
  around.event_handlers = telemetry::events::handler_names();
  // resolve knows these two by itself.
  std::erase_if(around.event_handlers,
                [](const auto& name) { return name == "null" || name == "console"; });
  return around;
}

int run_job(guardian::Agent& guardian, int argc, char** argv) {
  const auto program = program_name(argc, argv);
  // First, because all that follows may log.
  if (const auto refused = set_log_level()) return refuse(*refused, program);
  if (const auto caller = caller_descriptor(argc, argv)) return run_for_caller(guardian, *caller);
  const auto line =
      // argc may be 0: Linux before 5.18 lets execve(2) start a program without any argument.
      parse_command_line(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (!line) return refuse(line.error(), program);
  const auto around = real_host_environment(argc > 0 ? argv[0] : "");
  if (line->action == spec::Action::Install) {
    const auto done = install_into(line->argument, around.own_program());
    return done ? 0 : give_up(done.error(), program);
  }
  if (line->action != spec::Action::Run) return answer(*line, program);
  const auto job = spec::resolve(*line, around);
  if (!job) return refuse(job.error(), program);
  if (job->spec.explain && print(spec::explain_text(*job)) != 0) return kExitFailed;
  // Before the first line of this run: what parses the log gets no other form in between.
  if (job->spec.json_log) log::set_format(log::Format::Json);
  say_warnings(*job);
  if (job->spec.dry_run) return print_plan(job->spec, program);
  say_start(*job);
  if (job->refusal) say_refusal(*job->refusal, program);
  // Before anything is opened, so that it fails here with advice and not in the middle of a start.
  if (const auto enough = process::enough_descriptors(); !enough) {
    return give_up(enough.error(), program);
  }
  auto run = agent::JobRun::make(job->spec, guardian);
  if (!run) return give_up(run.error(), program);
  (*run)->tell_process();
  const auto result = (*run)->run();
  return end_of_run(result, job->spec, **run);
}

/// They must not end the agent, which listens to them as soon as it knows the job. Workers
/// start with none blocked.
void hold_passing_signals() {
  sigset_t passing;
  ::sigemptyset(&passing);
  ::sigaddset(&passing, SIGUSR1);
  ::sigaddset(&passing, SIGUSR2);
  ::sigprocmask(SIG_BLOCK, &passing, nullptr);
}

}  // namespace

int launch(int argc, char** argv) {
  auto guardian = guardian::split();
  return launch(guardian, argc, argv);
}

int launch(guardian::Agent& guardian, int argc, char** argv) {
  hold_passing_signals();
  return run_job(guardian, argc, argv);
}

}  // namespace elastrun
