// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_run.hpp"

#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/temporary_places.hpp"
#include "core/text.hpp"
#include "export/json_lines.hpp"
#include "files/bounded_call.hpp"
#include "launcher/run_settings.hpp"
#include "logs/foreground.hpp"
#include "workers/apart.hpp"
#include "workers/command.hpp"

#include <algorithm>
#include <csignal>
#include <functional>
#include <unistd.h>

namespace elastrun::agent {
namespace {

/// For a call that may wait for a file system, before the loop: there SIGTERM ends the agent.
auto within_limit(const std::string& what, auto work) -> decltype(work()) {
  auto done = files::result_within(what, LogFolders::kTimeLimit, std::move(work));
  return done ? std::move(*done) : std::unexpected(done.error());
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

}  // namespace

JobRun::JobRun(const spec::JobSpec& spec, guardian::Agent& guardian, logs::Layout layout)
    : spec_(spec),
      guardian_(guardian),
      clock_(make_system_clock(loop_.get_executor())),
      started_(clock_->now()),
      files_(loop_.get_executor()),
      reports_(loop_.get_executor()),
      errors_(loop_.get_executor()),
      diagnostics_(loop_.get_executor()),
      console_(loop_.get_executor()),
      layout_(std::move(layout)),
      status_line_(*clock_, console_, shows_status(spec)),
      streams_(loop_.get_executor(), *clock_, console_, files_, status_line_.is_enabled()),
      launcher_(process::make_posix_launcher(loop_, *clock_)),
      containment_(loop_, *launcher_, &guardian),
      pipeline_(*clock_),
      channel_(loop_, guardian, std::bind_front(&JobRun::heard, this),
               {[this](pid_t process) { return pid_of(agent_->worker_of(process)); },
                [this](const auto& directory) { return pid_of(agent_->worker_in(directory)); }}),
      job_records_(pipeline_, spec),
      goodput_(*clock_, started_, spec),
      status_(status_line_, spec),
      log_(spec),
      binding_(spec),
      registration_(loop_.get_executor(), *clock_, guardian, spec, registration_facts()),
      hang_response_(hang_parts()),
      folders_({folder_calls_, *clock_, layout_, spec.nproc_per_node, files_are_near(),
                [this](auto place) { channel_.open(std::move(place)); }}),
      gate_(std::bind_front(&LogFolders::prepare, &folders_)),
      last_writes_(loop_, *clock_, console_,
                   {&files_, &syncs_, &reports_, &errors_, &folder_calls_}, spec.shutdown_timeout),
      last_visitors_(loop_, *clock_) {
  console_.take_log_lines();
  console_.draw_status_while(
      [pid = guardian.guardian_pid()] { return logs::is_in_foreground(STDERR_FILENO, pid); });
  if (!keeps_output(spec_)) layout_.announce_temporary_root(last_is_to_go(guardian.directories()));
}

Started<std::unique_ptr<JobRun>> JobRun::make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                              OwnRendezvous own) {
  const auto expected =
      keeps_output(spec) ? logs::Layout::Expected::Logs : logs::Layout::Expected::ErrorFiles;
  const auto plan = [dir = spec.log_dir, run_id = spec.run_id, expected] {
    return logs::Layout::plan(dir, run_id, expected);
  };
  const bool temporary = spec.log_dir.empty() || spec.log_dir == "/dev/null";
  const auto what = temporary ? "the temporary directory" : "--log-dir " + spec.log_dir;
  const bool may_wait = !temporary || names_temporary_place();
  auto layout = may_wait ? within_limit(what, plan) : plan();
  if (!layout) return std::unexpected(layout.error());
  std::unique_ptr<JobRun> parts(new JobRun(spec, guardian, std::move(*layout)));
  if (const auto done = parts->connect(std::move(own)); !done) return std::unexpected(done.error());
  return parts;
}

Started<void> JobRun::connect(OwnRendezvous own) {
  const auto handler = telemetry::events::find_handler(
      spec_.event_log_handler,
      [this](std::string_view line) { console_.write(logs::Console::Stream::Err, line); });
  if (!handler) return std::unexpected(handler.error());
  if (spec_.event_log_handler != "null") telemetry::events::attach(pipeline_, *handler);

  self_ = own_node(spec_);
  auto place =
      set_up_rendezvous(loop_, *clock_, spec_, self_, std::move(own), guardian_.guardian_pid());
  if (!place) return std::unexpected(place.error());
  session_ = std::move(place->session);
  session_->on_clock(std::bind_front(&JobRecords::clock, &job_records_));
  store_ = std::move(place->store);
  alone_ = place->alone;
  records_ = std::make_unique<ElasticRecords>(pipeline_, event_facts(spec_, *session_), spec_);
  const auto group = [this] { return agent_ ? agent_->group() : nullptr; };
  auto metrics = RunMetrics::make(spec_, {loop_, *clock_, pipeline_, console_, containment_,
                                          streams_, channel_, worker_records_, *store_, group});
  if (!metrics) return std::unexpected(metrics.error());
  metrics_ = std::move(*metrics);
  goodput_.watch({loop_, pipeline_, containment_, metrics_ ? &metrics_->host() : nullptr});
  open_timers();
  if (const auto opened = open_web(); !opened) return std::unexpected(opened.error());
  add_observers();
  store_->on_join(std::bind_front(&Observers::joined, &observers_));
  plans_ = std::make_unique<WorkerPlans>(spec_, plan_parts());
  agent_ = std::make_unique<Agent>(agent_parts(), agent_settings(spec_, self_, alone_));
  if (const auto opened = open_records(); !opened) return std::unexpected(opened.error());
  log_.launching();
  return {};
}

void JobRun::add_observers() {
  for (Observer* one : std::initializer_list<Observer*>{
           &log_, &goodput_.observer(), &status_, records_.get(), &job_records_, &worker_records_,
           &binding_, &registration_, timers_.get(), &hang_response_}) {
    observers_.add(one);
  }
  if (metrics_) observers_.add(&metrics_->observer());
  if (web_) observers_.add(&web_->view());
}

Status JobRun::open_web() {
  if (needs_all_output(spec_)) streams_.keep_stdout();
  auto web = WebServices::start({
      .loop = loop_,
      .clock = *clock_,
      .spec = spec_,
      .group = [this] { return agent_ ? agent_->group() : nullptr; },
      .serves_store = [this] { return store_->serves_workers(); },
      .goodput = [this] { return goodput_.status(); },
      .overdue_timer = [this] { return timers_->overdue(); },
      .metrics = metrics_.get(),
      .say = [this](auto line) { console_.write(logs::Console::Stream::Err, line); },
  });
  if (!web) return std::unexpected(web.error());
  web_ = std::move(*web);
  return {};
}

RunRegistration::Facts JobRun::registration_facts() const {
  return {mark_of_this_agent(), keeps_output(spec_) && !layout_.is_null(),
          [this] { return layout_.run_directory(); }, [this] { return channel_.path(); }};
}

HangResponse::Parts JobRun::hang_parts() {
  return {
      .loop = loop_,
      .clock = *clock_,
      .launcher = *launcher_,
      .spec = spec_,
      .observers = observers_,
      .worker_of = [this](pid_t pid) { return agent_->worker_of(pid); },
      .report = [this](rendezvous::Report one) { session_->report(std::move(one)); },
      .answer = [this](const std::string& text) { channel_.answer(text); },
      .activity =
          [this] {
            const auto timers = timers_ ? timers_->last_request() : TimePoint::min();
            return std::max({streams_.last_read(), store_->last_change(), timers});
          },
      .environment = workers::own_environment,
  };
}

void JobRun::open_timers() {
  timers_ = std::make_unique<ExpirationTimers>(ExpirationTimers::Parts{
      .loop = loop_,
      .clock = *clock_,
      .launcher = *launcher_,
      .observers = observers_,
      .offers = hang_response_.offers(),
      .worker_of = [this](pid_t pid) { return agent_->worker_of(pid); },
      .catch_up = [this] { channel_.catch_up(); },
      .run_id = spec_.run_id,
      .environment = workers::own_environment(),
  });
  timers_->open_pipe();
  const auto folder = timers_->own_folder();
  if (!folder.empty()) guardian_.remember_directory(folder);
}

void JobRun::end_timers(JobResult& result) {
  result.expired_timers = timers_->expired();
  result.hangs = hang_response_.hangs();
  // The guardian removes the folder if its file system does not answer in time.
  timers_->close_pipe(folder_calls_, [this, folder = timers_->own_folder()] {
    if (!folder.empty()) guardian_.forget(folder);
  });
}

/// Only where somebody will find it: a temporary directory that will be removed costs time for
/// nothing.
Status JobRun::open_records() {
  if (!keeps_records()) return {};
  const auto make = [layout = layout_]() mutable -> Result<logs::Layout> {
    if (auto made = layout.make_run(); !made) return std::unexpected(made.error());
    return layout;
  };
  auto made = within_limit("the directory of this run", make);
  if (!made) return std::unexpected(made.error());
  layout_ = std::move(*made);
  layout_.say_remark();
  const auto journal = std::make_shared<exporter::JsonLines>(*clock_, files_, layout_.journal(),
                                                             spec_.journal_size, &syncs_);
  pipeline_.route({}, journal);
  if (metrics_) metrics_->watch_journal(journal);
  agent_log_.emplace(files_, layout_.agent_log());
  return {};
}

WorkerPlans::Parts JobRun::plan_parts() {
  return {
      .folders = [this](const rendezvous::Round& round) { return folders_.take(round); },
      .streams = streams_,
      .environment = workers::own_environment(),
      .facts = {spec_, mark_of_this_agent(), timers_->pipe_path()},
      .use_agent_store = [this] { return store_->serves_workers(); },
      .channel = [this] { return channel_path(); },
      .page = [this](int local_rank) { return pages_.make(local_rank); },
      .cpus = [this](int local_rank) { return binding_.cpus(local_rank); },
      .open_files = descriptors_.given(),
      .cgroup_fd = [this] { return containment_.cgroup_fd(); },
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

Agent::Parts JobRun::agent_parts() {
  return {
      .loop = loop_,
      .clock = *clock_,
      .launcher = *launcher_,
      .session = *session_,
      .store = *store_,
      .observer = observers_,
      .plan =
          [this](const rendezvous::Round& round) {
            oom_kills_.begin();
            containment_.begin_attempt();
            return plans_->make(round);
          },
      .sweep = [this](Duration limit) { return sweep(limit); },
      .leftovers = [this] { return containment_.leftovers(); },
      .signal_each = process::signal_each,
      .release = [this] { channel_.release(); },
      .catch_up = [this] { channel_.catch_up(); },
      .explain =
          [this](workers::Failure& failure) {
            timers_->explain(failure);
            pages_.explain(failure);
            const auto said = failure.exception ? failure.exception->text() : std::string();
            if (!failure.expired_timer.empty()) return;
            failure.out_of_memory = oom_kills_.diagnostics(failure.status, failure.pid, said);
          },
      .before = [this](auto push) { return hang_response_.before(gate_.before(std::move(push))); },
      .apart =
          [this](const auto& workers) {
            const auto waits = [](const auto& one) { return process::waits_for_child(one); };
            return workers::set_apart(containment_.processes(), workers, waits);
          },
      .processes = [this] { return containment_.processes(); },
      .wrapper_of = [](const auto& one) { return process::wrapper_of(one); },
      .read_error_files = workers::reader_by(diagnostics_),
  };
}

void JobRun::watch() {
  const auto list = process::parse_signals(spec_.signals_to_handle);
  for (const auto& warning : list.warnings) log::warning("signals", "{}", warning);
  guardian_.relay(list.numbers);
  signals_ = std::make_unique<process::SignalSource>(
      loop_, list.numbers, [this](const process::SignalEvent& event) { signalled(event); });
  if (guardian_.guardian_pid() != 0) {  // else within another program, whose signals they are
    forwarder_ =
        std::make_unique<SignalForwarder>(loop_, *clock_, guardian_, spec_.forward_signals,
                                          list.numbers, std::bind_front(&JobRun::forward, this));
  }
  containment_.on_child_end([this] {
    agent_->child_ended();
    hang_response_.child_signalled();
  });
  using Stream = logs::Console::Stream;
  if (console_.is_terminal(Stream::Out) || console_.is_terminal(Stream::Err)) {
    const auto resized = [this](const auto&) {
      streams_.terminal_resized(), status_line_.redraw();
    };
    resizes_ = std::make_unique<process::SignalSource>(loop_, std::vector<int>{SIGWINCH}, resized);
  }
  guardian_watch_ = std::make_unique<process::DeathWatch>(loop_, guardian_.guardian_fd(),
                                                          [this] { agent_->guardian_gone(); });
}

void JobRun::signalled(const process::SignalEvent& event) {
  using process::Demand;
  log::info("signals", "{}", process::describe(event));
  const auto demand = insistence_.heard(event, clock_->now());
  if (metrics_ && metrics_->ending()) return metrics_->hurry(), last_writes_.shorten();
  if (last_writes_.waiting()) {
    if (demand == Demand::Stop) last_writes_.shorten();
    if (demand == Demand::KillNow) last_writes_.give_up_now();
  } else if (last_visitors_.waiting()) {
    if (demand != Demand::Nothing) last_visitors_.hear_signal(demand == Demand::KillNow);
  } else if (demand != Demand::Nothing) {
    agent_->signal(event.number, demand == Demand::KillNow);
  } else if (event.route == process::Route::Kernel && event.number == SIGINT) {
    log::warning("signals", "The job is ending already; press Ctrl+C again to kill it now");
  }
}

void JobRun::forward(int signal) {
  if (agent_->group() == nullptr || agent_->phase() != Phase::Running) return;
  std::vector<pid_t> pids;
  for (const auto& worker : agent_->group()->workers()) pids.push_back(worker.pid);
  const auto found = workers::receivers(containment_.processes(), pids, signal);
  process::signal_each(found, signal);
  if (!found.empty()) return;
  log::warning("signals", "{}: no worker handles it, so none got it", process::signal_name(signal));
}

void JobRun::ignore_signals() {
  if (signals_) signals_->ignore_rest();
  if (forwarder_) forwarder_->ignore_rest();
}

JobResult JobRun::run() {
  watch();
  RunRegistration::end_dead_runs();
  job_records_.begin(clock_->now() - started_);
  std::optional<JobResult> result;
  agent_->run([this, &result](JobResult ended) {
    result = std::move(ended);
    loop_.stop();
  });
  loop_.run();
  goodput_.tell(*result);
  job_records_.summary(result->goodput);
  end_timers(*result);
  channel_.end(files_are_near() ? nullptr : &folder_calls_);
  status_line_.hide();
  pipeline_.flush(clock_->now() + std::chrono::seconds(1));
  end_all(*result);
  result->run_dir = settle(result->succeeded());
  registration_.end();
  store_needed_until_ = result->store_needed_until;
  return std::move(*result);
}

void JobRun::finish() {
  end_metrics();
  last_writes_.give_up_on({&folder_calls_});  // nothing is lost there
  if (folders_.is_unanswered()) last_writes_.lose({&files_, &syncs_});
  last_writes_.wait(true);
  last_visitors_.wait(*store_, store_needed_until_ - clock_->now());
  last_writes_.wait(true);
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

void JobRun::heard(workers::Channel::Sender from, workers::Message message) {
  const pid_t sender = from.process;
  const auto* worker = agent_->worker_of(from.worker != 0 ? from.worker : sender);
  // An orphan of a worker that has ended: if it has returned, it waits for nobody.
  if (hang_response_.heard(sender, worker, message)) return;
  if (worker == nullptr) return channel_.release(sender);
  if (std::holds_alternative<workers::Returned>(message)) return agent_->returned(worker->pid);
  if (timers_->heard(sender, message)) return;
  const auto step = workers::step_of(message);
  if (step && web_) web_->view().step(worker->rank, *step);
  if (step && worker->rank == 0) status_.step(*step);
  goodput_.heard(*worker, message);
  worker_records_.heard(*worker, std::move(message));
}

/// Removes what is only temporary, or leaves that to the guardian, if no descriptor is free for it
/// or its file system does not answer; but not output that -r or -t asked for, nor what explains a
/// failure. The directory if it stays. A failure waits for no log here: people are told of it
/// first.
std::string JobRun::settle(bool succeeded) {
  const auto& root = layout_.temporary_root();
  const bool keeps = keeps_output(spec_);
  auto fate = logs::Fate::Kept;  // and named in the report
  if (!root.empty() && !(keeps && !succeeded)) {
    fate = folders_.settle(last_writes_, keeps, keeps || !succeeded);
  }
  if (fate != logs::Fate::Stays) guardian_.forget(root);
  return fate == logs::Fate::Kept ? layout_.run_directory() : std::string();
}

}  // namespace elastrun::agent
