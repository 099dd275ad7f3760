// SPDX-License-Identifier: Apache-2.0

#include "launcher/job_run.hpp"

#include "agent/files/log_folders.hpp"
#include "agent/loop/agent.hpp"
#include "core/clock.hpp"
#include "core/host_name.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/temporary_places.hpp"
#include "core/text.hpp"
#include "export/json_lines.hpp"
#include "files/bounded_call.hpp"
#include "logs/foreground.hpp"
#include "logs/layout.hpp"
#include "process/signals.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "telemetry/events.hpp"
#include "workers/apart.hpp"
#include "workers/command.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

telemetry::events::AgentFacts event_facts(const spec::JobSpec& spec,
                                          const rendezvous::Session& session);
/// `alone`: no other node can take part.
Agent::Settings agent_settings(const spec::JobSpec& spec, const rendezvous::Node& self, bool alone);

namespace {

bool writes_files(const spec::StdMap& streams) {
  const auto some = [](const auto& one) { return one.second != spec::StdMap::kNone; };
  // A map by local rank leaves those that it does not name at none, as torch's to_map() does.
  return streams.by_local_rank.empty() ? streams.everyone != spec::StdMap::kNone
                                       : std::ranges::any_of(streams.by_local_rank, some);
}

}  // namespace

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

/// Whether people see a line that tells how the job stands.
bool shows_status(const spec::JobSpec& spec) {
  if (spec.status == spec::Switch::Auto) return logs::is_interactive(STDERR_FILENO);
  return spec.status == spec::Switch::On;
}

/// Whether output of workers goes to files.
bool keeps_output(const spec::JobSpec& spec) {
  return writes_files(spec.redirects) || writes_files(spec.tee);
}

/// The file with the result that is there after the run; empty if none is.
std::string lasting_report(const spec::JobSpec& spec, const logs::Layout& layout) {
  if (!spec.report_file.empty()) return spec.report_file;
  const bool stays = !layout.is_temporary() || keeps_output(spec);
  return stays && !layout.run_directory().empty() ? layout.report() : std::string();
}

/// Whether all output of workers is to pass through the agent: the page shows it, and the watch for
/// hangs takes it for progress.
bool needs_all_output(const spec::JobSpec& spec) {
  // The page shows it, and to the watch for hangs it is a sign of life.
  return spec.http || spec.hang_limit;
}

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

namespace {

using files::Lane;

/// For a call that may wait for a file system, before the loop: there SIGTERM ends the agent.
auto within_limit(const std::string& what, auto work) {
  return files::result_within(what, LogFolders::kTimeLimit, std::move(work));
}

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

}  // namespace

Started<std::unique_ptr<JobRun>> JobRun::make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                              OwnRendezvous own) {
  auto layout = plan_layout(spec);
  if (!layout) return std::unexpected(layout.error());
  std::unique_ptr<JobRun> run(new JobRun(spec, guardian, std::move(*layout)));
  if (const auto met = run->meet(std::move(own)); !met) return std::unexpected(met.error());
  // In the order of their needs: a part holds those before it, and reaches later ones by a call.
  run->hang_ = HangServices::make(run->hang_parts());
  if (auto made = RunTelemetry::make(run->telemetry_parts())) {
    run->telemetry_ = std::move(*made);
    run->telemetry_->worker_records().on_refused(
        [&pages = run->pages_](int rank, std::uint64_t count) { pages.tell_refused(rank, count); });
  } else {
    return std::unexpected(made.error());
  }
  if (const auto opened = run->open_web(); !opened) return std::unexpected(opened.error());
  run->files_ = RunFiles::make(run->file_parts());
  run->make_agent();
  if (const auto opened = run->open_records(); !opened) return std::unexpected(opened.error());
  run->status_.log().launching();
  return run;
}

JobRun::JobRun(const spec::JobSpec& spec, guardian::Agent& guardian, logs::Layout layout)
    : spec_(spec),
      guardian_(guardian),
      clock_(make_system_clock(loop_.get_executor())),
      started_(clock_->now()),
      lanes_(loop_.get_executor()),
      console_(loop_.get_executor()),
      layout_(std::move(layout)),
      status_({.loop = loop_.get_executor(),
               .clock = *clock_,
               .guardian = guardian,
               .spec = spec,
               .console = console_,
               .shows_line = shows_status(spec),
               .facts = {mark_of_this_agent(), keeps_output(spec) && !layout_.is_null(),
                         [this] { return layout_.run_directory(); },
                         [this] { return channel_.path(); }}}),
      streams_(loop_.get_executor(), *clock_, console_, lanes_[Lane::Logs],
               status_.line().is_enabled()),
      launcher_(process::make_posix_launcher(loop_, *clock_)),
      containment_(loop_, *launcher_, &guardian),
      channel_(loop_, guardian,
               [this](auto from, auto message) { messages_->heard(from, std::move(message)); },
               {[this](pid_t process) { return pid_of(worker_of(process)); },
                [this](const auto& directory) { return pid_of(agent_->worker_in(directory)); },
                [this](pid_t worker) { messages_->refused(worker); }}),
      binding_(spec) {
  // Before the other parts are made: what they log then is to keep its place among other lines.
  console_.take_log_lines();
  console_.draw_status_while(
      [pid = guardian.guardian_pid()] { return logs::is_in_foreground(STDERR_FILENO, pid); });
  if (!keeps_output(spec_)) layout_.announce_temporary_root(last_is_to_go(guardian.directories()));
}

Status JobRun::meet(OwnRendezvous own) {
  self_ = own_node(spec_);
  auto memory = read_restart_memory(spec_, clock_->wall());
  if (!memory) return std::unexpected(memory.error());
  self_.memory = std::move(*memory);
  auto place =
      set_up_rendezvous(loop_, *clock_, spec_, self_, std::move(own), guardian_.guardian_pid());
  if (!place) return std::unexpected(place.error());
  place_ = std::move(*place);
  place_.store->on_join([this](bool all) { observers_.heard(moment::Joined{all}); });
  return {};
}

HangServices::Parts JobRun::hang_parts() {
  return {
      .loop = loop_,
      .clock = *clock_,
      .launcher = *launcher_,
      .guardian = guardian_,
      .spec = spec_,
      .post = [this](Fact fact) { agent_->post(std::move(fact)); },
      .worker_of = std::bind_front(&JobRun::worker_of, this),
      .report = std::bind_front(&rendezvous::Session::report, place_.session.get()),
      .answer = std::bind_front(&WorkerChannel::answer, &channel_),
      .catch_up = std::bind_front(&WorkerChannel::catch_up, &channel_),
      .activity = [this] { return std::max(streams_.last_read(), place_.store->last_change()); },
      .environment = workers::own_environment,
  };
}

RunParts JobRun::telemetry_parts() {
  return {.loop = loop_,
          .clock = *clock_,
          .job_start = started_,
          .spec = spec_,
          .console = console_,
          .containment = containment_,
          .streams = streams_,
          .channel = channel_,
          .store = *place_.store,
          .agent = event_facts(spec_, *place_.session),
          .group = std::bind_front(&JobRun::group, this),
          .has_fifo = [this] { return !hang_->timers().pipe_path().empty(); }};
}

Status JobRun::open_web() {
  if (needs_all_output(spec_)) streams_.keep_stdout();
  auto web = WebServices::start({
      .loop = loop_,
      .clock = *clock_,
      .spec = spec_,
      .group = std::bind_front(&JobRun::group, this),
      .serves_store = std::bind_front(&RoundStore::serves_workers, place_.store.get()),
      .goodput = std::bind_front(&RunTelemetry::goodput_status, telemetry_.get()),
      .report = [this] { return lasting_report(spec_, layout_); },
      .overdue_timer = std::bind_front(&ExpirationTimers::overdue, &hang_->timers()),
      .metrics = telemetry_->metrics(),
      .say = [this](auto line) { console_.write(logs::Console::Stream::Err, line); },
  });
  if (!web) return std::unexpected(web.error());
  web_ = std::move(*web);
  return {};
}

RunFiles::Parts JobRun::file_parts() {
  return {.loop = loop_,
          .clock = *clock_,
          .guardian = guardian_,
          .console = console_,
          .lanes = lanes_,
          .layout = layout_,
          .workers = spec_.nproc_per_node,
          .role = spec_.role,
          .near = files_are_near(),
          .keeps_output = keeps_output(spec_),
          .shutdown_timeout = spec_.shutdown_timeout,
          .channel_found = std::bind_front(&WorkerChannel::open, &channel_)};
}

void JobRun::make_agent() {
  restarts_.emplace(
      RestartParts::Parts{loop_, *clock_, spec_, pages_, lanes_[Lane::Logs],
                          std::bind_front(&rendezvous::Session::report, place_.session.get()),
                          std::bind_front(&RoundStore::needs, place_.store.get())});
  for (auto* one : restarts_->observers()) observers_.add(one);
  observers_.add(&status_.log());
  for (auto* one : telemetry_->observers()) observers_.add(one);
  for (auto* one : status_.observers()) observers_.add(one);
  observers_.add(&binding_);
  observers_.add(hang_.get());
  if (web_) observers_.add(&web_->view());
  forks_ = ForkServing::make({loop_, *clock_, spec_, *launcher_, containment_});
  if (forks_) observers_.add(forks_.get());
  plans_ = std::make_unique<WorkerPlans>(spec_, plan_parts());
  agent_ = std::make_unique<Agent>(agent_parts(), agent_settings(spec_, self_, place_.alone));
  messages_.emplace(
      WorkerMessages::Parts{.worker_of = std::bind_front(&JobRun::worker_of, this),
                            .observers = observers_,
                            .records = telemetry_->worker_records(),
                            .timers = hang_->timers(),
                            .hang = *hang_,
                            .returned = std::bind_front(&Agent::returned, agent_.get()),
                            .preempt = std::bind_front(&JobRun::preempt, this),
                            .release = [this](pid_t sender) { channel_.release(sender); }});
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
      *clock_, lanes_[Lane::Logs], layout_.journal(), &lanes_[Lane::Syncs]));
  agent_log_.emplace(lanes_[Lane::Logs], layout_.agent_log());
  return {};
}

WorkerPlans::Parts JobRun::plan_parts() {
  return {
      .folders = std::bind_front(&RunFiles::take, files_.get()),
      .streams = streams_,
      .environment = workers::own_environment(),
      .facts = {spec_, mark_of_this_agent(), hang_->timers().pipe_path()},
      .use_agent_store = std::bind_front(&RoundStore::serves_workers, place_.store.get()),
      .channel = std::bind_front(&JobRun::channel_path, this),
      .page = std::bind_front(&SharedPages::make, &pages_),
      .cpus = std::bind_front(&Binding::cpus, &binding_),
      .open_files = descriptors_.given(),
      .cgroup_fd = std::bind_front(&process::Containment::cgroup_fd, &containment_),
  };
}

bool JobRun::keeps_records() const {
  return !layout_.is_null() && (!layout_.is_temporary() || keeps_output(spec_));
}

/// A few small files of a job that keeps nothing, or its channel alone, on this machine; others may
/// be on a file system that does not answer.
bool JobRun::files_are_near() const {
  return !keeps_records() && layout_.is_local();
}

rendezvous::Session::OnPush JobRun::before(rendezvous::Session::OnPush on_push) {
  // First of all the caller's master: what is logged of a round is what its workers get.
  return meeting_at(place_.master, hang_->before(files_->before(std::move(on_push))));
}

Agent::Parts JobRun::agent_parts() {
  const auto processes = std::bind_front(&process::Containment::processes, &containment_);
  return {
      .loop = loop_,
      .clock = *clock_,
      .launcher = *launcher_,
      .session = *place_.session,
      .store = *place_.store,
      .observer = observers_,
      .plan =
          [this](const rendezvous::Round& round) {
            // Before the workers: what the kernel killed earlier is not theirs.
            oom_kills_.begin();
            containment_.begin_attempt();
            auto plans = plans_->make(round);
            if (plans && forks_) forks_->plan(*plans);
            return plans;
          },
      .sweep = std::bind_front(&JobRun::sweep, this),
      .leftovers = std::bind_front(&process::Containment::leftovers, &containment_),
      .signal_each = process::signal_each,
      .release = [this] { channel_.release(); },
      .catch_up = std::bind_front(&WorkerChannel::catch_up, &channel_),
      .explain = std::bind_front(&JobRun::explain, this),
      .before = std::bind_front(&JobRun::before, this),
      .apart =
          [processes](const auto& workers) {
            const auto waits = [](const auto& one) { return process::waits_for_child(one); };
            return workers::set_apart(processes(), workers, waits);
          },
      .processes = processes,
      .wrapper_of = [](const auto& one) { return process::wrapper_of(one); },
      .leaves_to = [](const auto& parent,
                      const auto& child) { return process::leaves_to(parent, child); },
      .read_error_files = workers::reader_by(lanes_[Lane::Diagnostics]),
      .check = restarts_->check(),
      .written = [processes] { return system::bytes_written(processes()); },
      .saving = &restarts_->saving(),
  };
}

void JobRun::explain(workers::Failure& failure) {
  hang_->timers().explain(failure);
  pages_.explain(failure);
  // Killed by us: its SIGKILL says nothing about memory.
  if (!failure.expired_timer.empty()) return;
  const auto said = failure.exception ? failure.exception->text() : std::string();
  failure.out_of_memory = oom_kills_.diagnostics(failure.status, failure.pid, said);
}

RunSignals::Parts JobRun::signal_parts() {
  return {.loop = loop_,
          .clock = *clock_,
          .guardian = guardian_,
          .spec = spec_,
          .console = console_,
          .containment = containment_,
          .demanded = std::bind_front(&JobRun::signalled, this),
          .running = [this] { return agent_->phase() == Phase::Running ? group() : nullptr; },
          .resized =
              [this] {
                streams_.terminal_resized();
                status_.line().redraw();
              },
          .guardian_gone = std::bind_front(&Agent::guardian_gone, agent_.get())};
}

void JobRun::signalled(const process::SignalEvent& event, process::Demand demand) {
  using process::Demand;
  // The job is over: a signal can only shorten what is waited for.
  if (telemetry_->ending_metrics()) {
    telemetry_->metrics()->hurry();
    return files_->shorten();
  }
  if (files_->signalled(demand)) return;
  const auto& asks = spec_.preempt_signals;
  const auto name = process::signal_name(event.number);
  if (demand == Demand::Stop && std::ranges::find(asks, name) != asks.end()) {
    return preempt(name, {});
  }
  if (demand != Demand::Nothing) {
    agent_->signal(event.number, demand == Demand::KillNow);
  } else if (event.route == process::Route::Kernel && event.number == SIGINT) {
    log::warning("signals", "The job is ending already; press Ctrl+C again to kill it now");
  }
}

void JobRun::preempt(const std::string& why, Duration deadline) {
  const auto own = spec_.preempt_timeout.value_or(spec_.shutdown_timeout);
  agent_->preempt(why, deadline > Duration::zero() ? deadline : own);
}

void JobRun::ignore_signals() {
  if (signals_) signals_->ignore_rest();
}

void JobRun::end_with(const std::vector<int>& descriptors) {
  // Several of them end with the same process.
  const auto gone = [this, told = std::make_shared<bool>(false)] {
    if (std::exchange(*told, true)) return;
    log::warning("signals", "the process that started this job has gone: the job ends");
    signalled({.number = SIGTERM}, process::Demand::Stop);
  };
  for (const int fd : descriptors) {
    callers_.push_back(std::make_unique<process::DeathWatch>(loop_, fd, gone));
  }
}

JobResult JobRun::run() {
  signals_ = RunSignals::start(signal_parts());
  restarts_->begin(std::bind_front(&JobRun::preempt, this));
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
    loop_.stop();
  });
  loop_.run();
  restarts_->end();
  // The account first: its last records are among those that are flushed below.
  telemetry_->sum_up(*result);
  hang_->end(*result, lanes_[Lane::Folders]);
  // On this machine's own disk a removal takes less than a thread for it.
  channel_.end(files_are_near() ? nullptr : &lanes_[Lane::Folders]);
  status_.line().hide();
  // Bounded: a sink that does not answer must not hold the verdict back.
  pipeline().flush(clock_->now() + std::chrono::seconds(1));
  end_all(*result);
  // After the processes: one that lives would write into what is removed here.
  result->run_dir = files_->settle(result->succeeded());
  status_.end();
  store_needed_until_ = result->store_needed_until;
  return std::move(*result);
}

void JobRun::finish() {
  end_metrics();
  files_->finish(*place_.store, store_needed_until_ - clock_->now());
}

process::KillResult JobRun::sweep(Duration limit) {
  auto ended = containment_.sweep(limit);
  survivors_ = !ended.alive.empty();
  return ended;
}

/// What could not be killed has been named; neither this process nor the guardian waits again.
void JobRun::end_all(const JobResult& result) {
  const bool given_up = survivors_ || !result.abandoned.empty();
  const auto ended = containment_.end_attempt(given_up ? process::kLastLook : process::kKillBound);
  if (given_up || !ended.alive.empty()) guardian_.give_up();
}

std::string JobRun::channel_path() {
  if (files_are_near()) channel_.look_in(layout_.run_directory());
  return channel_.path();
}

}  // namespace elastrun::agent
