// SPDX-License-Identifier: Apache-2.0

#include "launcher/job_run.hpp"

#include "agent/files/run_files.hpp"
#include "agent/loop/agent.hpp"
#include "core/clock.hpp"
#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "export/json_lines.hpp"
#include "files/blocking_calls.hpp"
#include "logs/layout.hpp"
#include "logs/stream_factory.hpp"
#include "process/signals.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "telemetry/events.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::agent {

namespace {

bool writes_files(const spec::StdMap& streams) {
  const auto some = [](const auto& one) { return one.second != spec::StdMap::kNone; };
  // A map by local rank leaves those that it does not name at none, as torch's to_map() does.
  return streams.by_local_rank.empty() ? streams.everyone != spec::StdMap::kNone
                                       : std::ranges::any_of(streams.by_local_rank, some);
}

/// Marks all that this agent starts: ELASTRUN_AGENT_ID.
std::string mark_of_this_agent() {
  return fmt::format("{}_{}", host_name(), ::getpid());
}

/// TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; zero when unset, not above 0 or no number.
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

/// What this node tells the others of itself.
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
  Agent::Settings settings{.self = self};
  // About what torchrun's next look at its workers would still have seen; more than a second is too
  // long for a person to wait, however seldom they want torchrun to look.
  settings.settle =
      std::min<Duration>(from_seconds(spec.monitor_interval / 2), std::chrono::seconds(1));
  settings.job_signals = process::parse_signals(spec.signals_to_handle).numbers;
  settings.stuck_after = stuck_limit();
  settings.limits.with_pauses = !alone;
  return settings;
}

/// Whether people see a line that tells how the job stands.
bool shows_status(const spec::JobSpec& spec) {
  if (spec.status == spec::Switch::Auto) return logs::is_interactive(STDERR_FILENO);
  return spec.status == spec::Switch::On;
}

/// Whether output of workers goes to files.
bool keeps_output(const spec::JobSpec& spec) {
  return writes_files(spec.redirects) || writes_files(spec.tee);
}

/// Whether all output of workers is to pass through the agent: the page shows it, and the watch for
/// hangs takes it for progress.
bool needs_all_output(const spec::JobSpec& spec) {
  // The page shows it, and to the watch for hangs it is a sign of life.
  return spec.http || spec.hang_limit;
}

using files::Lane;

/// Called by the thread for folders, which may come back from its file system when the job has
/// gone.
auto last_is_to_go(guardian::Directories all) {
  return [all, last = std::string()](const std::string& path) mutable {
    if (!last.empty()) all.forget(last);  // the name was taken: not ours to remove
    all.remember(last = path);
  };
}

pid_t pid_of(const workers::Worker* worker) {
  return worker != nullptr ? worker->pid : 0;
}

Result<logs::Layout> plan_layout(const spec::JobSpec& spec) {
  const auto expected =
      keeps_output(spec) ? logs::Layout::Expected::Logs : logs::Layout::Expected::ErrorFiles;
  const auto plan = [dir = spec.log_dir, name = spec.directory_name(), expected] {
    return logs::Layout::plan(dir, name, expected);
  };
  const bool temporary = spec.log_dir.empty() || spec.log_dir == "/dev/null";
  const auto what = temporary ? "the temporary directory" : "--log-dir " + spec.log_dir;
  const bool may_wait = !temporary || names_temporary_place();
  return may_wait ? within_limit(what, plan) : plan();
}

/// What an earlier start has left in --restart-memory; null: nothing.
Result<std::shared_ptr<const rendezvous::RestartMemory>> read_restart_memory(
    const spec::JobSpec& spec, WallTime now) {
  if (spec.restart_memory.empty()) return nullptr;
  return within_limit("--restart-memory " + spec.restart_memory, [path = spec.restart_memory, now] {
    return RestartMemoryFile::read(path, now);
  });
}

/// "Too many open files" is of use only together with the limit.
Error with_limit(Error error, int workers) {
  rlimit limit{};
  if (!error.text.contains(std::strerror(EMFILE))) return error;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return error;
  error.text += fmt::format(
      "; {} workers need more descriptors than the limit of {} allows: raise it (ulimit -n)",
      workers, limit.rlim_cur);
  return error;
}

template <class Type, class... All>
concept OneOf = (std::same_as<Type, All> || ...);

template <class... Consumers>
struct Overloads : Consumers... {
  using Consumers::operator()...;
};

}  // namespace

Started<std::unique_ptr<JobRun>> JobRun::make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                              OwnRendezvous own) {
  auto layout = plan_layout(spec);
  if (!layout) return std::unexpected(layout.error());
  std::unique_ptr<JobRun> run(new JobRun(spec, guardian, std::move(*layout)));
  if (const auto met = run->meet(std::move(own)); !met) return std::unexpected(met.error());
  // In the order of their needs: a part holds those before it, and reaches later ones by a call.
  auto& session = *run->place_.session;
  run->saving_.emplace(*run, session, run->pages_);
  run->hang_.emplace(*run, session, run->channel_);
  auto telemetry = RunTelemetry::make(
      {*run, run->started_, run->containment_, run->streams_, run->channel_, run->pages_,
       *run->place_.store, event_facts(spec, session), !run->hang_->timers().pipe_path().empty()});
  if (!telemetry) return std::unexpected(telemetry.error());
  run->telemetry_ = std::move(*telemetry);
  if (const auto opened = run->open_web(); !opened) return std::unexpected(opened.error());
  run->files_.emplace(*run, run->layout_, run->channel_, run->files_are_near(), keeps_output(spec));
  run->make_agent();
  if (const auto opened = run->open_records(); !opened) return std::unexpected(opened.error());
  run->status_.log().launching();
  return run;
}

RunGround::RunGround(guardian::Agent& guardian)
    : clock_(make_system_clock(loop_.get_executor())),
      lanes_(loop_.get_executor()),
      console_(loop_.get_executor()),
      launcher_(loop_, *clock_),
      containment_(loop_, launcher_, &guardian) {}

JobRun::JobRun(const spec::JobSpec& its_spec, guardian::Agent& its_guardian, logs::Layout layout)
    : RunGround(its_guardian),
      RunContext({loop_, *clock_, its_spec, its_guardian, launcher_, containment_, console_, lanes_,
                  workers::own_environment()}),
      started_(clock.now()),
      layout_(std::move(layout)),
      status_(*this, shows_status(spec), layout_, channel_, mark_of_this_agent(),
              keeps_output(spec)),
      streams_(loop.get_executor(), clock, console_, lanes[Lane::Logs],
               status_.line().is_enabled()),
      channel_(loop, guardian, [this](auto from, auto message) { heard(from, std::move(message)); },
               {[this](pid_t process) { return pid_of(worker_of(process)); },
                [this](const auto& directory) { return pid_of(agent_->worker_in(directory)); },
                [this](pid_t worker) { refused(worker); }}),
      pages_(spec),
      binding_(spec),
      memory_(*this) {
  // Before the other parts are made: what they log then is to keep its place among other lines.
  console_.take_log_lines();
  console_.draw_status_while(
      [pid = guardian.guardian_pid()] { return logs::is_in_foreground(STDERR_FILENO, pid); });
  if (!keeps_output(spec)) layout_.announce_temporary_root(last_is_to_go(guardian.directories()));
}

Status JobRun::meet(OwnRendezvous own) {
  self_ = own_node(spec);
  auto memory = read_restart_memory(spec, clock.wall());
  if (!memory) return std::unexpected(memory.error());
  self_.memory = std::move(*memory);
  auto place = set_up_rendezvous(*this, self_, std::move(own));
  if (!place) return std::unexpected(place.error());
  place_ = std::move(*place);
  place_.store->on_join([this](bool all) { observers_.heard(moment::Joined{all}); });
  return {};
}

Status JobRun::open_web() {
  if (needs_all_output(spec)) streams_.keep_stdout();
  auto web = WebServices::start(*this, *telemetry_, hang_->timers(), *place_.store);
  if (!web) return std::unexpected(web.error());
  web_ = std::move(*web);
  return {};
}

void JobRun::make_agent() {
  if (spec.restart_policy_auto) check_.emplace(*this, *place_.store);
  observers_.add(&*saving_);
  observers_.add(&memory_);
  observers_.add(&status_.log());
  for (auto* one : telemetry_->observers()) observers_.add(one);
  for (auto* one : status_.observers()) observers_.add(one);
  observers_.add(&binding_);
  observers_.add(&*hang_);
  if (web_) observers_.add(web_.get());
  forks_ = ForkServing::make(*this, launcher_, containment_);
  if (forks_) observers_.add(forks_.get());
  agent_.emplace(*this, *place_.session, *place_.store, observers_, *saving_,
                 agent_settings(spec, self_, place_.alone));
}

/// Only where it will be found: a temporary directory that will be removed costs time for nothing.
Status JobRun::open_records() {
  if (!keeps_records()) return {};
  // On a copy: a call that was given up goes on to use it.
  const auto make = [layout = layout_]() mutable -> Result<logs::Layout> {
    if (auto made = layout.make_run(); !made) return std::unexpected(made.error());
    return layout;
  };
  auto made = within_limit("the directory of this run", make);
  if (!made) return std::unexpected(made.error());
  layout_ = std::move(*made);
  layout_.say_remark();
  telemetry_->write_journal(std::make_shared<exporter::JsonLines>(
      clock, lanes[Lane::Logs], layout_.journal(), &lanes[Lane::Syncs]));
  agent_log_.emplace(lanes[Lane::Logs], layout_.agent_log());
  return {};
}

bool JobRun::keeps_records() const {
  return !layout_.is_null() && (!layout_.is_temporary() || keeps_output(spec));
}

/// A few small files of a job that keeps nothing, or its channel alone, on this machine; others may
/// be on a file system that does not answer.
bool JobRun::files_are_near() const {
  return !keeps_records() && layout_.is_local();
}

void JobRun::pushed(rendezvous::Push push) {
  // First of all the caller's master: what is logged of a round is what its workers get.
  if (auto* ready = std::get_if<rendezvous::RoundReady>(&push))
    meet_at(place_.master, ready->round);
  if (!hang_->took(push)) files_->pass(std::move(push));
}

Result<std::vector<workers::WorkerPlan>> JobRun::plan(const rendezvous::Round& round) {
  // Before the workers: what the kernel killed earlier is not theirs.
  oom_kills_.begin();
  containment_.begin_attempt();
  auto plans = make_plans(round);
  if (plans && forks_) forks_->plan(*plans);
  return plans;
}

Result<std::vector<workers::WorkerPlan>> JobRun::make_plans(const rendezvous::Round& round) {
  const auto place = placement_of(spec, round, place_.store->serves_workers());
  // Where a file system may be slow they are made already: the round is held back for them.
  const auto folders = files_->take(round);
  if (!folders) return std::unexpected(folders.error());
  streams_.begin_attempt(
      {folders->attempt, place.local_world_size, spec.stdout_filters, spec.stderr_filters});
  // After the folders, in one of which its socket may lie.
  const std::string channel = files_->channel_path();
  std::vector<workers::WorkerPlan> plans;
  plans.reserve(static_cast<std::size_t>(place.local_world_size));
  for (int local_rank = 0; local_rank < place.local_world_size; ++local_rank) {
    const auto& directory = folders->ranks[static_cast<std::size_t>(local_rank)];
    auto plan = make_one(place, local_rank, directory, channel);
    if (!plan) return std::unexpected(with_limit(plan.error(), place.local_world_size));
    plans.push_back(std::move(*plan));
  }
  return plans;
}

Result<workers::WorkerPlan> JobRun::make_one(const workers::Placement& place, int local_rank,
                                             const std::string& directory,
                                             const std::string& channel) {
  workers::WorkerPlan plan;
  plan.rank = place.rank_of(local_rank);
  plan.local_rank = local_rank;
  plan.error_file = logs::error_file(directory);
  auto variables = workers::worker_environment(
      environment, {spec, place, local_rank, mark_of_this_agent(), hang_->timers().pipe_path(),
                    plan.error_file, directory, channel, pages_.make(local_rank)});
  if (!variables) return std::unexpected(variables.error());
  plan.request.environment = std::move(*variables);
  plan.request.argv = workers::worker_command(spec, local_rank);
  plan.request.open_files = descriptors_.given();
  plan.request.cgroup_fd = containment_.cgroup_fd();
  auto cpus = binding_.cpus(local_rank);
  if (!cpus) return std::unexpected(cpus.error());
  plan.request.cpus = std::move(*cpus);
  const auto settings = stream_settings(place, local_rank, directory);
  constexpr unsigned kErr = spec::StdMap::kErr;
  plan.stderr_shown =
      settings.shown && ((settings.tee & kErr) != 0 || (settings.redirect & kErr) == 0);
  auto streams = streams_.make(settings);
  if (!streams) return std::unexpected(streams.error());
  plan.streams = std::move(*streams);
  return plan;
}

logs::StreamSettings JobRun::stream_settings(const workers::Placement& place, int local_rank,
                                             const std::string& directory) const {
  logs::StreamSettings settings;
  settings.directory = directory;
  settings.redirect = spec.redirects.of(local_rank);
  settings.tee = spec.tee.of(local_rank);
  const auto& filter = spec.local_ranks_filter;
  settings.shown = filter.empty() || std::ranges::find(filter, local_rank) != filter.end();
  settings.prefix =
      logs::line_prefix(spec.prefix_template, place.role, place.rank_of(local_rank), local_rank);
  return settings;
}

void JobRun::heard(workers::Channel::Sender from, workers::Message message) {
  const auto* worker = agent_->worker_of(from.worker != 0 ? from.worker : from.process);
  if (worker != nullptr) return heard(from.process, *worker, std::move(message));
  if (std::holds_alternative<workers::StacksAsked>(message)) return hang_->asked();
  if (const auto* ask = std::get_if<workers::PreemptAsked>(&message)) {
    return agent_->preempt("elastrunctl preempt", ask->deadline);
  }
  // An orphan of a worker that has ended: if it has returned, it waits for no other.
  channel_.release(from.process);
}

void JobRun::heard(pid_t sender, const workers::Worker& worker, workers::Message message) {
  using namespace workers;
  const auto tell_observers = [&] { observers_.heard(moment::WorkerSaid{worker, message}); };
  std::visit(
      Overloads{
          // WorkerRecords, an observer, has samples as well as the live page, which charts them.
          [&](const OneOf<StepDone, CheckpointDone, MetricSample, PhaseEntered,
                          GoodputEntries> auto&) { tell_observers(); },
          [&](const Returned&) { tell_observers(), agent_->returned(worker.pid); },
          [&](const OneOf<WorkerEvent, SamplesTold> auto&) {
            hang_->wrote();
            telemetry_->worker_records().heard(worker, std::move(message));
          },
          [&](const TimerSet& timer) {
            hang_->wrote();
            hang_->timers().heard(sender, timer);
          },
          [&](const StacksOffered& offer) { hang_->offered(sender, worker, offer); },
          // Not from workers, who could have their neighbours asked again and again; the channel
          // keeps the last two for itself.
          [](const OneOf<StacksAsked, PreemptAsked, SentFrom, NotTold> auto&) {}},
      message);
}

TimePoint JobRun::activity() const {
  return std::max(
      {streams_.last_read(), place_.store->last_change(), hang_->timers().last_request()});
}

/// Empty where no file stays.
std::string JobRun::lasting_report() const {
  if (!spec.report_file.empty()) return spec.report_file;
  const bool stays = !layout_.is_temporary() || keeps_output(spec);
  return stays && !layout_.run_directory().empty() ? layout_.report() : std::string();
}

void JobRun::explain(workers::Failure& failure) {
  hang_->timers().explain(failure);
  failure.page = pages_.read(failure.local_rank);
  // Killed by us: its SIGKILL says nothing about memory.
  if (!failure.expired_timer.empty()) return;
  const auto said = failure.exception ? failure.exception->text() : std::string();
  failure.out_of_memory = oom_kills_.diagnostics(failure.status, failure.pid, said);
}

JobResult JobRun::run() {
  signals_.emplace(*this, *agent_, *telemetry_, *files_, streams_, status_.line());
  signals_->end_with(ends_with_);
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  sources_.emplace(*this, end != nullptr ? end : "");
  containment_.on_child_end([this] {
    agent_->child_ended();
    hang_->child_signalled();
  });
  // Before the first worker: what an earlier run has left may hold the devices it wants.
  RunRegistration::end_dead_runs();
  telemetry_->begin();
  std::optional<JobResult> result;
  agent_->run([this, &result](JobResult ended) {
    result = std::move(ended);
    // Not when it runs dry: alarms and sockets of parts that end below would keep it going.
    loop.stop();
  });
  loop.run();
  sources_.reset();
  // The account first: its last records are among those that are flushed below.
  telemetry_->sum_up(*result);
  hang_->end(*result, lanes[Lane::Folders]);
  // On this machine's own disk a removal takes less than a thread for it.
  channel_.end(files_are_near() ? nullptr : &lanes[Lane::Folders]);
  status_.line().hide();
  // Bounded: a sink that does not answer must not hold the verdict back.
  pipeline().flush(clock.now() + std::chrono::seconds(1));
  end_all(*result);
  // After the processes: one that lives would write into what is removed here.
  result->run_dir = files_->settle(result->succeeded());
  status_.end();
  store_needed_until_ = result->store_needed_until;
  return std::move(*result);
}

void JobRun::finish() {
  end_metrics();
  files_->finish(*place_.store, store_needed_until_ - clock.now());
}

/// What could not be killed has been named; neither this process nor the guardian waits again.
void JobRun::end_all(const JobResult& result) {
  const bool given_up = containment_.left_alive() || !result.abandoned.empty();
  const auto ended = containment_.end_attempt(given_up ? process::kLastLook : process::kKillBound);
  if (given_up || !ended.alive.empty()) guardian.give_up();
}

}  // namespace elastrun::agent
