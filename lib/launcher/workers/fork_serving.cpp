// SPDX-License-Identifier: Apache-2.0
#include "launcher/workers/fork_serving.hpp"

#include "core/log.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

using State = process::ForkServer::State;

// An import of torch takes longer than this, a fork a hundredth of it: a server that is at fault
// costs no more than the exec that replaces it.
constexpr Duration kTimeLimit = std::chrono::seconds(1);
// No exec replaces a copy of the caller, and one of 100 GB has tables of pages to be copied.
constexpr Duration kCopyLimit = std::chrono::seconds(60);
constexpr Duration kLoadLimit = std::chrono::seconds(60);  // in tests
// By then forked workers are past their first steps, which a preparation beside them would slow
// down.
constexpr Duration kRefill = std::chrono::seconds(1);
constexpr int kMostServers = 3;  // one after another, if they end or packages are installed
constexpr std::string_view kForkArea = "process";

/// All that the tests try is tried with a fork server then, from the first attempt on.
bool is_under_test() {
  return std::getenv("ELASTRUN_TEST_FORKSERVER") != nullptr;
}

bool is_asked_for(const spec::JobSpec& spec) {
  const bool named = spec.start_method == "forkserver" || spec.start_method == "auto";
  return (named || spec.warm_spares.value_or(0) > 0 || is_under_test()) &&
         spec.mode != spec::Mode::Program;
}

std::string kind_of(spec::Mode mode) {
  if (mode == spec::Mode::Module) return "module";
  return mode == spec::Mode::RunPath ? "command" : "script";
}

/// With the flags of the workers' own interpreter, which a fork inherits.
std::vector<std::string> command_of(const spec::JobSpec& spec) {
  std::vector<std::string> argv{spec.interpreter};
  if (spec.mode != spec::Mode::RunPath) argv.emplace_back("-u");
  argv.insert(argv.end(),
              {spec.fork_server, kind_of(spec.mode), workers::fill_local_rank(spec.script, 0)});
  if (spec.preload) argv.insert(argv.end(), spec.preload->begin(), spec.preload->end());
  return argv;
}

}  // namespace

std::unique_ptr<ForkServing> ForkServing::make(RunContext& run, process::PosixLauncher& launcher,
                                               process::Containment& containment) {
  const auto& spec = run.spec;
  if (spec.fork_socket < 0 && !is_asked_for(spec)) return nullptr;
  std::unique_ptr<ForkServing> serving(new ForkServing(run, launcher, containment));
  if (spec.fork_socket >= 0) {
    serving->adopt();
    serving->attach();
    return serving;
  }
  // The workers of such a job are never started a second time: no failure and no node restarts
  // them.
  if (spec.max_restarts == 0 && spec.max_nodes == 1 && !serving->serves_first_) return nullptr;
  if (spec.fork_server.empty()) {
    log::warning(kForkArea,
                 "No fork server: the Python package elastrun is not beside this program");
    return nullptr;
  }
  serving->attach();
  return serving;
}

void ForkServing::attach() {
  launcher_.serve_by([this, alive = lifetime_.token()](const auto& request) {
    return alive ? serve(request) : std::nullopt;
  });
  // The sweep after an attempt kills all other descendants, and would take the server that is to
  // serve the next one.
  containment_.spare([this, alive = lifetime_.token()]() -> std::vector<pid_t> {
    return alive && server_ ? server_->processes() : std::vector<pid_t>();
  });
}

void ForkServing::adopt() {
  auto adopted = process::ForkServer::adopt(UniqueFd(run_.spec.fork_socket), kCopyLimit);
  if (adopted) {
    server_ = std::move(*adopted);
  } else {
    said_ = adopted.error().text;  // each start says it
  }
}

ForkServing::ForkServing(RunContext& run, process::PosixLauncher& launcher,
                         process::Containment& containment)
    : run_(run),
      launcher_(launcher),
      containment_(containment),
      serves_first_(is_under_test()),
      refill_(run.clock.make_alarm()) {}

void ForkServing::plan(std::vector<workers::WorkerPlan>& plans) {
  if (plans.empty()) return;
  if (is_copy()) {
    for (auto& plan : plans) {
      plan.request.fork_slot = plan.local_rank;
      // All at once, since each takes its time in a large caller.
      if (server_) server_->prepare(plan.local_rank, false, plan.request.cgroup_fd);
    }
    return;
  }
  if (!request_) {
    request_ = plans.front().request;
    request_->argv = command_of(run_.spec);
    // Ranks and addresses are those of one worker in one round: each fork gets its own with the
    // order.
    workers::remove_placement(request_->environment);
    request_->cgroup_fd = -1;  // of an attempt, which the server outlives
    request_->cpus.clear();
  }
  if (starts_++ == 0) {
    if (!serves_first_) return;
    begin();
    if (server_) server_->wait_until_loaded(kLoadLimit);
  }
  for (auto& plan : plans) plan.request.fork_slot = plan.local_rank;
}

/// After the workers, not to delay them: those that were forked are about to take a first step.
void ForkServing::on(const moment::Started&) {
  if (is_copy()) return;
  refill_->arm(run_.clock.now() + (starts_ > 1 ? kRefill : Duration::zero()), [this] {
    if (!request_) return;
    begin();
    const auto& spec = run_.spec;
    const bool contexts = spec.warm_spares && !spec.virtual_local_rank;
    const int spares =
        std::min(spec.warm_spares.value_or(spec.nproc_per_node), spec.nproc_per_node);
    // Each preparation may find that the server has ended.
    for (int slot = 0; is_present() && slot < spares; ++slot)
      server_->prepare(slot, contexts, containment_.next_cgroup_fd());
  });
}

bool ForkServing::is_present() {
  return server_ && server_->state() != State::Gone && server_->state() != State::Refused;
}

void ForkServing::begin() {
  // A bound, because a server that dies of its imports would be started again at each restart of
  // the job.
  if (is_present() || begun_ >= kMostServers) return;
  if (server_ && server_->state() == State::Refused) return say_not_served(server_->why());
  ++begun_;
  auto started = process::ForkServer::start(run_.loop, *request_);
  if (!started) return say_not_served(started.error().text);
  server_ = std::move(*started);
}

/// While the workers are stopped and the nodes meet.
void ForkServing::on(const moment::Restarting&) {
  for (int slot = 0; is_present() && slot < run_.spec.nproc_per_node; ++slot) {
    server_->prepare(slot, false, containment_.next_cgroup_fd());
  }
}

std::optional<Result<process::Spawned>> ForkServing::serve(const process::LaunchRequest& request) {
  // A program that exec starts would not have what the function is to find.
  const auto refuse = [](std::string_view why) {
    return fail(Code::Spawn,
                fmt::format("the copy of the calling process cannot fork a worker: {}", why));
  };
  if (!server_ && is_copy()) return refuse(said_);
  if (!server_) return std::nullopt;
  auto taken = server_->take(request, is_copy() ? kCopyLimit : kTimeLimit);
  if (!taken && is_copy()) return refuse(taken.error().text);
  if (!taken) {
    say_not_served(taken.error().text);
    return std::nullopt;
  }
  log::info(kForkArea, "Local rank {} is forked, as process {}", request.fork_slot, taken->pid);
  return taken;
}

void ForkServing::say_not_served(const std::string& why) {
  // Once for a reason: each worker of each round would say it again.
  if (why == said_) return;
  said_ = why;
  const auto text = fmt::format("Workers are started without the fork server: {}", why);
  run_.spec.start_method == "auto" ? log::info(kForkArea, "{}", text)
                                   : log::warning(kForkArea, "{}", text);
}

void ForkServing::on(const moment::Ended&) {
  refill_->disarm();
  server_.reset();
  request_.reset();
}

}  // namespace elastrun::agent
