// SPDX-License-Identifier: Apache-2.0

#include "launcher/run_signals.hpp"

#include "core/log.hpp"
#include "core/signal_names.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <set>
#include <sys/inotify.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kPreemptArea = "preempt";
// Of the file, and of the end of its folder.
constexpr std::uint32_t kEvents =
    IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr Duration kAgain = std::chrono::seconds(1);

std::string watched_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
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

constexpr const char* kArea = "signals";

}  // namespace

Duration preemption_margin(std::optional<Duration> save, Duration most) {
  const Duration wanted =
      save ? std::max<Duration>(2 * *save, PreemptionSources::kLeast) : PreemptionSources::kUnknown;
  return std::min(wanted, most);
}

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

RunSignals::RunSignals(RunContext& run, Agent& agent, RunTelemetry& telemetry, RunFiles& files,
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

void RunSignals::end_with(const std::vector<int>& descriptors) {
  for (const int fd : descriptors) {
    callers_.push_back(std::make_unique<process::DeathWatch>(run_.loop, fd, [this] {
      // Several of them end with the same process.
      if (std::exchange(callers_gone_, true)) return;
      log::warning(kArea, "the process that started this job has gone: the job ends");
      heard({.number = SIGTERM}, process::Demand::Stop);
    }));
  }
}

void RunSignals::listen() {
  for (const auto& warning : handled_.warnings) log::warning(kArea, "{}", warning);
  // Before we listen: the guardian stops itself at a terminal's signal that it has not been asked
  // for.
  run_.guardian.relay(handled_.numbers);
  source_ = std::make_unique<process::SignalSource>(
      run_.loop, handled_.numbers, [this](const process::SignalEvent& event) {
        log::info(kArea, "{}", process::describe(event));
        heard(event, escalation_.heard(event, run_.clock.now()));
      });
}

/// Not within another program, whose signals they are.
void RunSignals::listen_to_passing() {
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

void RunSignals::watch_around() {
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

void RunSignals::heard(const process::SignalEvent& event, process::Demand demand) {
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
    log::warning(kArea, "The job is ending already; press Ctrl+C again to kill it now");
  }
}

void RunSignals::heard_passing(const process::SignalEvent& event) {
  log::info(kArea, "{}", process::describe(event));
  if (!alarms_.contains(event.number)) return;
  passing_.heard(event, run_.clock.now());
  await(event.number);
}

void RunSignals::await(int signal) {
  const auto due = passing_.due(signal);
  if (due) alarms_.at(signal)->arm(*due, [this, signal] { decide(signal); });
}

void RunSignals::decide(int signal) {
  const bool is_for_workers = passing_.is_for_workers(signal, run_.clock.now());
  await(signal);
  if (is_for_workers) return pass_on(signal);
  log::info(kArea, "{} was sent to every process: the workers have theirs", signal_name(signal));
}

void RunSignals::pass_on(int signal) const {
  const auto* group = agent_.workers();
  if (group == nullptr || agent_.phase() != Phase::Running) {
    return log::warning(kArea, "{}: no workers run, so none got it", signal_name(signal));
  }
  std::vector<pid_t> pids;
  for (const auto& worker : *group) pids.push_back(worker.pid);
  const auto found = workers::receivers(run_.processes, pids, signal);
  // By their pids and start times, as the table has them: a trainer may have ended since it was
  // read.
  process::signal_each(found, signal);
  if (!found.empty()) return;
  log::warning(kArea, "{}: no worker handles it, so none got it", signal_name(signal));
}

void RunSignals::ignore_rest() {
  source_->ignore_rest();
  if (passing_source_) passing_source_->ignore_rest();
}

}  // namespace elastrun::agent
