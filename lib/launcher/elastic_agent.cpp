// SPDX-License-Identifier: Apache-2.0

#include "launcher/elastic_agent.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/text.hpp"
#include "launcher/job_run.hpp"
#include "net/endpoint.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"
#include "spec/agreed_rules.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <ranges>
#include <signal.h>
#include <sys/prctl.h>

namespace elastrun::agent {
namespace {

Status check(const WorkerSpec& spec) {
  const auto wrong = [](std::string text) { return fail(Code::Usage, std::move(text)); };
  if (spec.entrypoint.empty()) return wrong("WorkerSpec::entrypoint must name a program");
  if (!spec.rdzv_handler) {
    return wrong("WorkerSpec::rdzv_handler is missing: see rendezvous::get_rendezvous_handler");
  }
  if (spec.local_world_size < 1 || spec.local_world_size > spec::kMostWorkers) {
    return wrong(fmt::format("WorkerSpec::local_world_size must be from 1 to {}, not {}",
                             spec::kMostWorkers, spec.local_world_size));
  }
  const auto ends_early = [](const std::string& word) { return word.find('\0') != word.npos; };
  if (ends_early(spec.entrypoint) || std::ranges::any_of(spec.args, ends_early) ||
      std::ranges::any_of(spec.env | std::views::values, ends_early)) {
    return wrong(
        "WorkerSpec: entrypoint, args and env must not have a null character, where "
        "execve(2) would cut them off");
  }
  if (spec.max_restarts < 0) {
    return wrong(
        fmt::format("WorkerSpec::max_restarts must be at least 0, not {}", spec.max_restarts));
  }
  // Those up to 2 are streams, which each worker gets from the launcher.
  for (const int fd : spec.inherited_fds) {
    if (fd > 2) continue;
    return wrong(fmt::format("WorkerSpec::inherited_fds must be above 2, where {} is not", fd));
  }
  if (spec.monitor_interval <= Duration::zero()) {
    return wrong("WorkerSpec::monitor_interval must be greater than 0");
  }
  if (spec.exit_barrier_timeout < Duration::zero() || spec.shutdown_timeout < Duration::zero()) {
    return wrong("WorkerSpec: exit_barrier_timeout and shutdown_timeout must not be negative");
  }
  return {};
}

/// Whether no other node can join: torchelastic's own standalone jobs meet at localhost:0.
bool is_alone(const rendezvous::RendezvousParameters& parameters) {
  if (parameters.backend != spec::backend::kC10d || parameters.max_nodes > 1) return false;
  const auto endpoint = net::parse_endpoint(parameters.endpoint, 0);
  return endpoint && endpoint->port == 0;
}

/// The code of an end that the workers did not cause.
Code code_of(const Ending& ending) {
  using Kind = Ending::Kind;
  using Why = rendezvous::Cause::Kind;
  if (ending.kind == Kind::Signalled || ending.kind == Kind::GuardianLost) return Code::Cancelled;
  if (ending.kind == Kind::NoStart) return Code::Spawn;
  if (ending.kind != Kind::JobFailed) return Code::Rendezvous;
  if (ending.cause.kind == Why::Timeout) return Code::Timeout;
  return ending.cause.kind == Why::Closed ? Code::Closed : Code::Rendezvous;
}

WorkerState state_of(const Ending& ending) {
  using Kind = Ending::Kind;
  if (ending.kind == Kind::Succeeded) return WorkerState::Succeeded;
  if (ending.kind == Kind::NotNeeded) return WorkerState::Stopped;
  if (ending.kind == Kind::Stuck) return WorkerState::Unhealthy;
  const bool elsewhere =
      ending.kind == Kind::JobFailed && ending.cause.kind == rendezvous::Cause::Kind::WorkerFailed;
  const bool failed = ending.kind == Kind::WorkersFailed || elsewhere;
  return failed ? WorkerState::Failed : WorkerState::Unknown;
}

/// The state of the process that a run changes, as it was before.
class ProcessState {
 public:
  ProcessState() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
    }
    logs::ignore_console_signals();
  }
  ~ProcessState() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, subreaper_ ? 1 : 0, 0, 0, 0);
  }
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGPIPE, SIGTTOU, SIGCHLD};
  std::array<struct sigaction, kSignals.size()> before_{};
  // The program around us may be one for children that it has started itself (prctl(2)).
  const bool subreaper_ = process::is_subreaper();
};

OwnRendezvous own_rendezvous(const WorkerSpec& spec) {
  const bool built_in =
      dynamic_cast<rendezvous::BuiltInHandler*>(spec.rdzv_handler.get()) != nullptr;
  // A built-in handler only holds parameters, and job_of() has read them.
  return {.handler = built_in ? nullptr : spec.rdzv_handler,
          .master = {spec.master_addr, spec.master_port}};
}

}  // namespace

rendezvous::RendezvousParameters parameters_of(const spec::JobSpec& job) {
  return {.endpoint = job.rdzv_endpoint,
          .min_nodes = job.min_nodes,
          .max_nodes = job.max_nodes,
          .node_rank = job.node_rank,
          .conf = job.rdzv_conf};
}

void meet_by(const rendezvous::RendezvousParameters& parameters,
             const rendezvous::BootstrapStoreInfo& master, spec::JobSpec& job) {
  job.rdzv_backend = parameters.backend;
  job.rdzv_endpoint = parameters.endpoint;
  job.run_id = parameters.run_id;
  job.rdzv_conf = parameters.conf;
  job.rendezvous = spec::read_rendezvous_config(job.rdzv_conf);
  job.min_nodes = parameters.min_nodes;
  job.max_nodes = parameters.max_nodes;
  job.node_rank = parameters.node_rank;
  job.node_rank_given = true;
  job.standalone = is_alone(parameters);
  if (job.local_addr.empty()) job.local_addr = parameters.local_addr;
  job.master_addr = master.master_addr;
  if (master.master_port != 0) job.master_port = master.master_port;
  if (job.rdzv_backend == spec::backend::kStatic && !master.master_addr.empty()) {
    job.rdzv_endpoint = net::format_endpoint(master.master_addr, master.master_port);
  }
}

Result<spec::JobSpec> job_of(const WorkerSpec& spec) {
  if (const auto sound = check(spec); !sound) return std::unexpected(sound.error());
  auto job = spec.options;
  job.mode = spec::Mode::Program;
  job.script = spec.entrypoint;
  job.script_args = spec.args;
  job.worker_env = spec.env;
  job.role = spec.role;
  job.nproc_per_node = spec.local_world_size;
  job.max_restarts = spec.max_restarts;
  job.monitor_interval = to_seconds(spec.monitor_interval);
  job.exit_barrier_timeout = spec.exit_barrier_timeout;
  job.shutdown_timeout = spec.shutdown_timeout;
  job.signals_to_handle = spec.signals_to_handle;
  job.signals_text = join(spec.signals_to_handle, ",");
  job.numa = spec.numa_binding;
  job.virtual_local_rank = spec.virtual_local_rank;
  // The terminal belongs to the program around us, which may draw on it, too.
  job.status = spec::Switch::Off;
  job.log_dir = spec.logs.log_dir;
  job.redirects = spec.logs.redirects;
  job.tee = spec.logs.tee;
  job.local_ranks_filter = spec.logs.local_ranks_filter;
  job.prefix_template = spec.logs.prefix_template;
  job.stdout_filters = spec.duplicate_stdout_filters;
  job.stderr_filters = spec.duplicate_stderr_filters;
  job.event_log_handler = spec.event_log_handler;
  job.local_addr = spec.local_addr;
  const rendezvous::BootstrapStoreInfo master{spec.master_addr, spec.master_port};
  if (const auto* own = dynamic_cast<const rendezvous::BuiltInHandler*>(spec.rdzv_handler.get())) {
    if (const auto sound = own->parameters().check(); !sound) return std::unexpected(sound.error());
    meet_by(own->parameters(), master, job);
  } else {
    // A handler of the user's forms the rounds itself: nothing else can be read from it.
    auto parameters = parameters_of(job);
    parameters.backend = spec.rdzv_handler->get_backend();
    parameters.run_id = spec.rdzv_handler->get_run_id();
    meet_by(parameters, master, job);
  }
  return job;
}

std::string_view state_name(WorkerState state) {
  // torch's WorkerState, in its order.
  constexpr std::array<std::string_view, 7> kNames = {
      "UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"};
  return kNames[static_cast<std::size_t>(state)];
}

Result<RunResult> run_result(const JobResult& result) {
  RunResult out;
  out.state = state_of(result.ending);
  if (out.state == WorkerState::Unknown) {
    return fail(code_of(result.ending), verdict_sentence(result));
  }
  if (result.judgement) {
    for (const auto& failure : result.judgement->failures) out.failures[failure.rank] = failure;
  }
  if (out.state != WorkerState::Succeeded || !result.round) return out;
  for (int local_rank = 0; local_rank < result.local_world_size; ++local_rank) {
    // A program returns its exit code alone, and a success has 0.
    out.return_values[result.round->rank_base + local_rank] = 0;
  }
  return out;
}

LocalElasticAgent::LocalElasticAgent(const WorkerSpec& spec, guardian::Agent* guardian)
    : LocalElasticAgent(job_of(spec), own_rendezvous(spec), spec.inherited_fds, guardian) {}

Result<RunResult> LocalElasticAgent::run() {
  job_result_.reset();
  if (!job_) return std::unexpected(job_.error());
  // Before the run and so destroyed after it: while that closes its files, SIGPIPE must still be
  // ignored.
  const ProcessState process_state;
  process::let_children_inherit(inherited_fds_);
  guardian::Agent no_guardian;
  auto run = JobRun::make(*job_, guardian_ != nullptr ? *guardian_ : no_guardian, own_);
  if (!run) return std::unexpected(run.error().error);
  (*run)->tell_process();
  (*run)->end_with(ends_with_);
  job_result_ = (*run)->run();
  (*run)->finish();
  (*run)->console().finish();
  return run_result(*job_result_);
}

}  // namespace elastrun::agent
