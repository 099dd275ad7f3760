// SPDX-License-Identifier: Apache-2.0

#include "launcher/job_run.hpp"

#include "agent/files/run_files.hpp"
#include "agent/loop/agent.hpp"
#include "core/clock.hpp"
#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/signal_names.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "export/json_lines.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "logs/layout.hpp"
#include "logs/stream_factory.hpp"
#include "process/affinity.hpp"
#include "process/fork_server.hpp"
#include "process/signals.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "system/devices.hpp"
#include "system/machine.hpp"
#include "telemetry/events.hpp"
#include "workers/environment.hpp"
#include "workers/group.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <concepts>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::agent {
namespace {

constexpr std::string_view kPreemptArea = "preempt";
// Of the file, and of the end of its folder.
constexpr std::uint32_t kEvents =
    IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr Duration kAgain = std::chrono::seconds(1);

std::string watched_folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Whether inotify(7) tells that a file of this name came, or that its folder went. `events`:
/// whole.
bool tell_of_another(std::string_view events, std::string_view name) {
  while (events.size() >= sizeof(inotify_event)) {
    inotify_event event{};
    std::memcpy(&event, events.data(), sizeof event);
    events.remove_prefix(sizeof event);
    const auto its = events.substr(0, event.len);  // padded with zeros
    events.remove_prefix(its.size());
    if ((event.mask & (IN_DELETE_SELF | IN_MOVE_SELF)) != 0) return true;
    const bool came = (event.mask & (IN_CREATE | IN_MOVED_TO)) != 0;
    if (came && its.substr(0, its.find('\0')) == name) return true;
  }
  return false;
}

/// How long before the end that a scheduler has told a job begins to save: at most `most`.
Duration preemption_margin(std::optional<Duration> save, Duration most) {
  const Duration wanted =
      save ? std::max<Duration>(2 * *save, PreemptionSources::kLeast) : PreemptionSources::kUnknown;
  return std::min(wanted, most);
}

process::BindingMode mode_of(spec::NumaBinding numa) {
  switch (numa) {
    case spec::NumaBinding::Socket:
      return process::BindingMode::Socket;
    case spec::NumaBinding::Exclusive:
      return process::BindingMode::Exclusive;
    case spec::NumaBinding::CoreComplex:
      return process::BindingMode::CoreComplex;
    default:
      return process::BindingMode::Node;
  }
}

Result<process::BindingPlan> make_plan(const spec::JobSpec& spec) {
  const auto topology = process::read_topology();
  if (!topology) return std::unexpected(topology.error());
  return process::plan_binding(mode_of(spec.numa), *topology, system::gpu_numa_nodes(::getenv),
                               spec.nproc_per_node);
}

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
constexpr std::string_view kSignalArea = "signals";

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

PreemptionSources::PreemptionSources(RunContext& run, const std::string& end)
    : run_(run),
      file_(run.spec.preempt_file),
      timeout_(run.spec.preempt_timeout.value_or(run.spec.shutdown_timeout)),
      alarm_(run.clock.make_alarm()) {
  if (!run.spec.saves_when_preempted()) return;
  if (!file_.empty()) watch_file();
  if (end.empty()) return;
  const auto seconds = parse_int(end);
  // 2^33 s: nanoseconds of much more do not fit into 64 bits.
  const bool is_time = seconds && *seconds > 0 && *seconds <= 1LL << 33;
  const Duration left =
      is_time ? WallTime(std::chrono::seconds(*seconds)) - run.clock.wall() : Duration::zero();
  // A job that ended at once for this would be requeued, and end at once again.
  if (left <= Duration::zero()) {
    log::warning(kPreemptArea, "SLURM_JOB_END_TIME={}: {}, ignored; {}", printable(end),
                 is_time ? "in the past" : "no time in seconds since the epoch",
                 "scontrol show job has the end of this allocation");
    return;
  }
  end_ = run.clock.now() + left;
  // A save that seemed to take longer must not end each start behind its first checkpoint: a
  // requeue would follow, and the next one.
  most_ = std::clamp<Duration>(left / 2, Duration::zero(),
                               run.spec.preempt_timeout.value_or(PreemptionSources::kMost));
  margin_ = preemption_margin({}, most_);
  arm();
}

// A file on the pod's own file system: others would not tell of changes made elsewhere.
void PreemptionSources::watch_file() {
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  const auto folder = watched_folder(file_);
  if (fd < 0 || ::inotify_add_watch(fd, folder.c_str(), kEvents) < 0) {
    log::warning(kPreemptArea, "--preempt-file {}: cannot watch {} ({}); make that directory first",
                 file_, folder, std::strerror(errno));
    if (fd >= 0) ::close(fd);
    return;
  }
  events_ = std::make_unique<boost::asio::posix::stream_descriptor>(run_.loop, fd);
  again_ = run_.clock.make_alarm();
  // One that a last run has left says nothing of this one.
  if (::access(file_.c_str(), F_OK) == 0) {
    is_old_ = ::unlink(file_.c_str()) != 0;
    if (is_old_) {
      log::warning(kPreemptArea,
                   "--preempt-file {} is there and cannot be removed ({}): it asks for "
                   "nothing until it goes and comes again",
                   file_, std::strerror(errno));
    } else {
      log::info(kPreemptArea, "Removed {}, which was there before the job", file_);
    }
  }
  await_event();
}

void PreemptionSources::await_event() {
  events_->async_read_some(boost::asio::buffer(buffer_),
                           [this, alive = lifetime_.token()](const auto& error, std::size_t size) {
                             if (!alive || error) return;
                             const auto name = std::string_view(file_).substr(file_.rfind('/') + 1);
                             // By the events: it may have gone and come before we look.
                             if (tell_of_another({buffer_.data(), size}, name)) is_old_ = false;
                             look();
                           });
}

// Of the folder there are other events, and of the file several: it asks once.
void PreemptionSources::look() {
  const auto folder = watched_folder(file_);
  // The same watch, or that of a folder which was made in the place of the last.
  if (::inotify_add_watch(events_->native_handle(), folder.c_str(), kEvents) < 0) {
    if (!std::exchange(is_gone_, true)) {
      log::warning(kPreemptArea, "--preempt-file {}: {} is gone, and is looked for each second",
                   file_, folder);
    }
    return again_->arm(run_.clock.now() + kAgain, [this] { look(); });
  }
  is_gone_ = false;
  const bool there = ::access(file_.c_str(), F_OK) == 0;
  is_old_ = is_old_ && there;
  if (there && !is_old_) return run_.post(PreemptCame{file_ + " is there", timeout_});
  await_event();
}

void PreemptionSources::save_takes(Duration time) {
  margin_ = preemption_margin(time, most_);
  if (end_) arm();
}

void PreemptionSources::arm() {
  alarm_->arm(*end_ - margin_, [this] {
    const Duration left = std::min(margin_, *end_ - run_.clock.now());
    run_.post(PreemptCame{"the end of the Slurm job", left > Duration::zero() ? left : timeout_});
  });
}

Result<std::vector<int>> Binding::cpus(int local_rank) {
  if (spec_.numa == spec::NumaBinding::None) return std::vector<int>{};
  if (!plan_) {
    auto plan = make_plan(spec_);
    if (!plan) return std::unexpected(plan.error().context("cannot bind the workers"));
    if (!plan->note.empty()) log::warning("binding", "{}", plan->note);
    // Kept over all attempts: a worker that is started again stays near its device.
    plan_ = std::move(plan->cpus);
  }
  return (*plan_)[static_cast<std::size_t>(local_rank)];
}

void Binding::on(const moment::Started& seen) {
  if (!plan_) return;
  for (const auto& worker : seen.group) {
    const auto& wanted = (*plan_)[static_cast<std::size_t>(worker.local_rank)];
    if (worker.exit) continue;
    if (const auto bound = process::check_binding(worker.pid, wanted); !bound) {
      log::warning("binding", "{}", bound.error().text);
    } else {
      log::info("binding", "Local rank {} runs on CPUs {}", worker.local_rank,
                process::format_cpus(wanted));
    }
  }
}

/// Serves the starts of workers after the first from a fork server (--start-method forkserver and
/// auto, --warm-spares). The server is started when the first workers have been, has its children
/// forked when a restart is ordered, or ahead, and ends with the job. A start that it cannot serve
/// is an exec, and the log says why.
///
/// Where the caller has left a copy of itself (JobSpec::fork_socket), that one forks all workers,
/// the first ones, too: what it cannot fork does not start, and another one is never made.
class ForkServing final : public Observes<ForkServing> {
 public:
  /// Null for a job of which no start is served. Borrows all.
  static std::unique_ptr<ForkServing> make(RunContext& run, process::PosixLauncher& launcher,
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

  /// Before a start of the workers: what of it the server may serve.
  void plan(std::vector<workers::WorkerPlan>& plans) {
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

  // After the workers, not to delay them: those that were forked are about to take a first step.
  void on(const moment::Started&) {
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

  // While the workers are stopped and the nodes meet.
  void on(const moment::Restarting&) {
    for (int slot = 0; is_present() && slot < run_.spec.nproc_per_node; ++slot) {
      server_->prepare(slot, false, containment_.next_cgroup_fd());
    }
  }
  void on(const moment::Ended&) {
    refill_->disarm();
    server_.reset();
    request_.reset();
  }

 private:
  ForkServing(RunContext& run, process::PosixLauncher& launcher, process::Containment& containment)
      : run_(run),
        launcher_(launcher),
        containment_(containment),
        serves_first_(is_under_test()),
        refill_(run.clock.make_alarm()) {}
  void attach() {
    launcher_.serve_by([this, alive = lifetime_.token()](const auto& request) {
      return alive ? serve(request) : std::nullopt;
    });
    // The sweep after an attempt kills all other descendants, and would take the server that is to
    // serve the next one.
    containment_.spare([this, alive = lifetime_.token()]() -> std::vector<pid_t> {
      return alive && server_ ? server_->processes() : std::vector<pid_t>();
    });
  }
  void adopt() {
    auto adopted = process::ForkServer::adopt(UniqueFd(run_.spec.fork_socket), kCopyLimit);
    if (adopted) {
      server_ = std::move(*adopted);
    } else {
      said_ = adopted.error().text;  // each start says it
    }
  }
  void begin() {
    // A bound, because a server that dies of its imports would be started again at each restart of
    // the job.
    if (is_present() || begun_ >= kMostServers) return;
    if (server_ && server_->state() == State::Refused) return say_not_served(server_->why());
    ++begun_;
    auto started = process::ForkServer::start(run_.loop, *request_);
    if (!started) return say_not_served(started.error().text);
    server_ = std::move(*started);
  }
  bool is_copy() const { return run_.spec.fork_socket >= 0; }

  std::optional<Result<process::Spawned>> serve(const process::LaunchRequest& request) {
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

  void say_not_served(const std::string& why) {
    // Once for a reason: each worker of each round would say it again.
    if (why == said_) return;
    said_ = why;
    const auto text = fmt::format("Workers are started without the fork server: {}", why);
    run_.spec.start_method == "auto" ? log::info(kForkArea, "{}", text)
                                     : log::warning(kForkArea, "{}", text);
  }
  bool is_present() {
    return server_ && server_->state() != State::Gone && server_->state() != State::Refused;
  }

  RunContext& run_;
  process::PosixLauncher& launcher_;
  process::Containment& containment_;
  const bool serves_first_;  // for tests
  std::unique_ptr<Alarm> refill_;
  std::optional<process::LaunchRequest> request_;  // for the server
  std::unique_ptr<process::ForkServer> server_;
  std::string said_;  // why not, last; of a copy: why there is none
  int begun_ = 0, starts_ = 0;
  Lifetime lifetime_;
};

/// The signals of a run, from its making on: those that end the job are judged and told, those of
/// --forward-signals go on to the workers. What guardian or agent alone hears goes on, what every
/// process of the job got does not. SIGUSR1 and SIGUSR2 end nothing even if they are not to be
/// forwarded, unless they are handled.
class RunSignals {
 public:
  /// Listens from now on. Borrows all.
  RunSignals(RunContext& run, Agent& agent, RunTelemetry& telemetry, RunFiles& files,
             logs::StreamFactory& streams, logs::StatusLine& line)
      : run_(run),
        agent_(agent),
        telemetry_(telemetry),
        files_(files),
        streams_(streams),
        line_(line),
        handled_(process::parse_signals(run.spec.signals_to_handle)) {
    listen();
    if (run.guardian.guardian_pid() != 0) listen_to_passing();
    watch_around();
  }

  /// Ends the run as SIGTERM does when one of these can be read from: the process that started it
  /// has gone.
  void end_with(const std::vector<int>& descriptors) {
    for (const int fd : descriptors) {
      callers_.push_back(std::make_unique<process::DeathWatch>(run_.loop, fd, [this] {
        // Several of them end with the same process.
        if (std::exchange(callers_gone_, true)) return;
        log::warning(kSignalArea, "the process that started this job has gone: the job ends");
        heard({.number = SIGTERM}, process::Demand::Stop);
      }));
    }
  }
  /// What comes from now on changes nothing.
  void ignore_rest() {
    source_->ignore_rest();
    if (passing_source_) passing_source_->ignore_rest();
  }

 private:
  void listen() {
    for (const auto& warning : handled_.warnings) log::warning(kSignalArea, "{}", warning);
    // Before we listen: the guardian stops itself at a terminal's signal that it has not been asked
    // for.
    run_.guardian.relay(handled_.numbers);
    source_ = std::make_unique<process::SignalSource>(
        run_.loop, handled_.numbers, [this](const process::SignalEvent& event) {
          log::info(kSignalArea, "{}", process::describe(event));
          heard(event, escalation_.heard(event, run_.clock.now()));
        });
  }

  void heard(const process::SignalEvent& event, process::Demand demand) {
    using process::Demand;
    // The job is over: a signal can only shorten what is waited for.
    if (telemetry_.ending_metrics()) {
      telemetry_.metrics()->hurry();
      return files_.shorten();
    }
    if (files_.signalled(demand)) return;
    const auto& asks = run_.spec.preempt_signals;
    const auto name = process::signal_name(event.number);
    if (demand == Demand::Stop && std::ranges::find(asks, name) != asks.end()) {
      return agent_.preempt(name, {});
    }
    if (demand != Demand::Nothing) {
      agent_.signal(event.number, demand == Demand::KillNow);
    } else if (event.route == process::Route::Kernel && event.number == SIGINT) {
      log::warning(kSignalArea, "The job is ending already; press Ctrl+C again to kill it now");
    }
  }

  // Not within another program, whose signals they are.
  void listen_to_passing() {
    std::set<int> held{SIGUSR1, SIGUSR2};
    for (const auto& name : run_.spec.forward_signals) {
      const int number = signal_number(name);
      held.insert(number);
      alarms_.emplace(number, run_.clock.make_alarm());
    }
    // These end the job or ask for a save: listen() has them.
    for (const int one : handled_.numbers) held.erase(one);
    std::vector<int> numbers(held.begin(), held.end());
    run_.guardian.tell_apart(numbers);
    // As this one the guardian passes them on.
    if (!numbers.empty()) numbers.push_back(process::passing_signal());
    passing_source_ = std::make_unique<process::SignalSource>(
        run_.loop, numbers, [this](const process::SignalEvent& event) { heard_passing(event); });
  }

  void watch_around() {
    using Stream = logs::Console::Stream;
    if (run_.console.is_terminal(Stream::Out) || run_.console.is_terminal(Stream::Err)) {
      resizes_ = std::make_unique<process::SignalSource>(run_.loop, std::vector<int>{SIGWINCH},
                                                         [this](const auto&) {
                                                           streams_.terminal_resized();
                                                           line_.redraw();
                                                         });
    }
    guardian_watch_ = std::make_unique<process::DeathWatch>(run_.loop, run_.guardian.guardian_fd(),
                                                            [this] { agent_.guardian_gone(); });
  }
  void heard_passing(const process::SignalEvent& event) {
    log::info(kSignalArea, "{}", process::describe(event));
    if (!alarms_.contains(event.number)) return;
    passing_.heard(event, run_.clock.now());
    await(event.number);
  }
  void await(int signal) {
    const auto due = passing_.due(signal);
    if (due) alarms_.at(signal)->arm(*due, [this, signal] { decide(signal); });
  }
  void decide(int signal) {
    const bool is_for_workers = passing_.is_for_workers(signal, run_.clock.now());
    await(signal);
    if (is_for_workers) return pass_on(signal);
    log::info(kSignalArea, "{} was sent to every process: the workers have theirs",
              signal_name(signal));
  }
  void pass_on(int signal) const {
    const auto* group = agent_.workers();
    if (group == nullptr || agent_.phase() != Phase::Running) {
      return log::warning(kSignalArea, "{}: no workers run, so none got it", signal_name(signal));
    }
    std::vector<pid_t> pids;
    for (const auto& worker : *group) pids.push_back(worker.pid);
    const auto found = workers::receivers(run_.processes, pids, signal);
    // By their pids and start times, as the table has them: a trainer may have ended since it was
    // read.
    process::signal_each(found, signal);
    if (!found.empty()) return;
    log::warning(kSignalArea, "{}: no worker handles it, so none got it", signal_name(signal));
  }

  RunContext& run_;
  Agent& agent_;
  RunTelemetry& telemetry_;
  RunFiles& files_;
  logs::StreamFactory& streams_;
  logs::StatusLine& line_;
  const process::SignalList handled_;
  process::SignalEscalation escalation_;
  workers::PassingSignals passing_;
  std::map<int, std::unique_ptr<Alarm>> alarms_;  // of the forwarded ones
  std::unique_ptr<process::SignalSource> source_, passing_source_, resizes_;
  std::unique_ptr<process::DeathWatch> guardian_watch_;
  std::vector<std::unique_ptr<process::DeathWatch>> callers_;
  bool callers_gone_ = false;
};

Started<std::unique_ptr<JobRun>> JobRun::make(const spec::JobSpec& spec, guardian::Agent& guardian,
                                              OwnRendezvous own) {
  auto layout = plan_layout(spec);
  if (!layout) return std::unexpected(layout.error());
  std::unique_ptr<JobRun> run(new JobRun(spec, guardian, std::move(*layout)));
  if (auto done = run->assemble(std::move(own)); !done) return std::unexpected(done.error());
  say_launch(spec);
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
  if (!keeps_output(spec)) layout_.announce_temporary_root(last_is_to_go(guardian));
}

Started<void> JobRun::assemble(OwnRendezvous own) {
  self_ = own_node(spec);
  auto memory = read_restart_memory(spec, clock.wall());
  if (!memory) return std::unexpected(memory.error());
  self_.memory = std::move(*memory);
  auto place = set_up_rendezvous(*this, self_, std::move(own));
  if (!place) return std::unexpected(place.error());
  place_ = std::move(*place);
  place_.store->on_join([this](bool all) { observers_.heard(moment::Joined{all}); });
  auto& session = *place_.session;
  saving_.emplace(*this, session, pages_);
  timers_.emplace(*this, offers_);
  timers_->open_pipe();
  hang_.emplace(*this, session, offers_);
  const auto facts = event_facts(spec, session);
  auto telemetry = RunTelemetry::make(*this, pages_, facts, !timers_->pipe_path().empty());
  if (!telemetry) return std::unexpected(telemetry.error());
  telemetry_ = std::move(*telemetry);
  if (const auto* metrics = telemetry_->metrics()) {
    containment_.spare([metrics, alive = lifetime_.token()] {
      return alive ? metrics->programs() : std::vector<pid_t>();
    });
  }
  if (needs_all_output(spec)) streams_.keep_stdout();
  auto web = start_web_services(*this, *telemetry_, *timers_, *place_.store);
  if (!web) return std::unexpected(web.error());
  web_ = std::move(*web);
  files_.emplace(*this, layout_, channel_, files_are_near(), keeps_output(spec));
  if (spec.restart_policy_auto) check_.emplace(*this, *place_.store);
  forks_ = ForkServing::make(*this, launcher_, containment_);
  std::vector<Observer*> all{&*saving_, &memory_, &status_.log()};
  for (const auto& more : {telemetry_->observers(), status_.observers()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  all.insert(all.end(), {&binding_, &*timers_, &*hang_, web_.get(), forks_.get()});
  for (auto* one : all) observers_.add(one);
  agent_.emplace(*this, session, *place_.store, observers_, *saving_, self_, place_.alone);
  if (const auto opened = open_records(); !opened) return std::unexpected(opened.error());
  return {};
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

Result<std::vector<workers::WorkerPlan>> JobRun::plan(const rendezvous::Round& round) {
  // Before the workers: what the kernel killed earlier is not theirs.
  oom_kills_.begin();
  containment_.begin_attempt();
  const int count = round.self().local_world_size;
  // Where a file system may be slow they are made already: the round is held back for them.
  const auto folders = files_->take(round);
  if (!folders) return std::unexpected(folders.error());
  streams_.begin_attempt({folders->attempt, count, spec.stdout_filters, spec.stderr_filters});
  // After the folders, in one of which its socket may lie.
  const std::string channel = files_->channel_path();
  std::vector<workers::WorkerPlan> plans;
  plans.reserve(static_cast<std::size_t>(count));
  for (int local_rank = 0; local_rank < count; ++local_rank) {
    const auto& directory = folders->ranks[static_cast<std::size_t>(local_rank)];
    auto plan = make_one(round, local_rank, directory, channel);
    if (!plan) return std::unexpected(with_limit(plan.error(), count));
    plans.push_back(std::move(*plan));
  }
  if (forks_) forks_->plan(plans);
  return plans;
}

Result<workers::WorkerPlan> JobRun::make_one(const rendezvous::Round& round, int local_rank,
                                             const std::string& directory,
                                             const std::string& channel) {
  workers::WorkerPlan plan;
  plan.rank = round.rank_base + local_rank;
  plan.local_rank = local_rank;
  plan.error_file = logs::error_file(directory);
  auto variables = workers::worker_environment(
      environment,
      {spec, round, round.self(), round.group_world_size(), meeting_place(spec, round),
       place_.store->serves_workers(), local_rank, mark_of_this_agent(), timers_->pipe_path(),
       plan.error_file, directory, channel, pages_.make(local_rank)});
  if (!variables) return std::unexpected(variables.error());
  plan.request.environment = std::move(*variables);
  plan.request.argv = workers::worker_command(spec, local_rank);
  plan.request.open_files = descriptors_.given();
  plan.request.cgroup_fd = containment_.cgroup_fd();
  auto cpus = binding_.cpus(local_rank);
  if (!cpus) return std::unexpected(cpus.error());
  plan.request.cpus = std::move(*cpus);
  const auto settings = stream_settings(round, local_rank, directory);
  constexpr unsigned kErr = spec::StdMap::kErr;
  plan.stderr_shown =
      settings.shown && ((settings.tee & kErr) != 0 || (settings.redirect & kErr) == 0);
  auto streams = streams_.make(settings);
  if (!streams) return std::unexpected(streams.error());
  plan.streams = std::move(*streams);
  return plan;
}

logs::StreamSettings JobRun::stream_settings(const rendezvous::Round& round, int local_rank,
                                             const std::string& directory) const {
  logs::StreamSettings settings;
  settings.directory = directory;
  settings.redirect = spec.redirects.of(local_rank);
  settings.tee = spec.tee.of(local_rank);
  const auto& filter = spec.local_ranks_filter;
  settings.shown = filter.empty() || std::ranges::find(filter, local_rank) != filter.end();
  settings.prefix = logs::line_prefix(spec.prefix_template, round.self().role,
                                      round.rank_base + local_rank, local_rank);
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
            timers_->heard(sender, timer);
          },
          [&](const StacksOffered& offer) {
            offers_.heard(sender, offer);
            hang_->heard(worker.rank, offer);
          },
          // Not from workers, who could have their neighbours asked again and again; the channel
          // keeps the last two for itself.
          [](const OneOf<StacksAsked, PreemptAsked, SentFrom, NotTold> auto&) {}},
      message);
}

/// Empty where no file stays.
std::string JobRun::lasting_report() const {
  if (!spec.report_file.empty()) return spec.report_file;
  const bool stays = !layout_.is_temporary() || keeps_output(spec);
  return stays && !layout_.run_directory().empty() ? layout_.report() : std::string();
}

JobRun::~JobRun() = default;

void JobRun::ignore_signals() {
  if (signals_) signals_->ignore_rest();
}

JobResult JobRun::run() {
  signals_ =
      std::make_unique<RunSignals>(*this, *agent_, *telemetry_, *files_, streams_, status_.line());
  signals_->end_with(ends_with_);
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  sources_.emplace(*this, end != nullptr ? end : "");
  containment_.on_child_end([this] {
    agent_->child_ended();
    hang_->child_signalled();
  });
  // Before the first worker: what an earlier run has left may hold the devices it wants.
  end_dead_runs();
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
  result->expired_timers = timers_->expired();
  result->hangs = hang_->all();
  timers_->close_pipe(lanes[Lane::Folders]);
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

}  // namespace elastrun::agent
