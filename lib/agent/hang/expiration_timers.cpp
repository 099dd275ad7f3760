// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/expiration_timers.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/blocking_calls.hpp"
#include "process/exit_status.hpp"
#include "process/process_table.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kTimerArea = "timer";
constexpr std::string_view kSwitch = "TORCHELASTIC_ENABLE_FILE_TIMER";
constexpr std::string_view kFile = "TORCHELASTIC_TIMER_FILE";
// Before the loop runs: the start of a job does not wait longer for the file system of a FIFO.
constexpr Duration kTimeLimit = std::chrono::seconds(10);
constexpr double kLongest = 10 * 365.0 * 86400;  // years; a deadline must fit into nanoseconds
constexpr double kLate = 0.25;                   // seconds until a request is heard
constexpr std::size_t kTimerLines = 60;          // of one stack; the report has all

/// As torch's client writes a request.
std::string torch_text(const ExpiredTimer& timer) {
  json::object text;
  text["version"] = 1;
  text["pid"] = timer.pid;
  text["scope_id"] = timer.scope;
  text["expiration_time"] = to_seconds(timer.expiry);
  text["signal"] = timer.signal;
  return python_json(text);
}

void log_stack(const ExpiredTimer& timer) {
  std::string text;
  const auto count = std::min(timer.stack.size(), kTimerLines);
  for (std::size_t i = 0; i < count; ++i) text += "\n  " + timer.stack[i];
  if (count < timer.stack.size()) {
    text += fmt::format("\n  and {} more lines", timer.stack.size() - count);
  }
  log::warning(kTimerArea, "Stack of rank {} (pid {}):{}", timer.rank, timer.pid,
               text.empty() ? " it could not be taken" : text);
}

/// It may be on a file system that does not answer.
Result<std::unique_ptr<timer::RequestPlace>> make_place(const std::string& path) {
  const auto what = "the FIFO for timers " + (path.empty() ? "in a temporary directory" : path);
  return files::result_within(what, kTimeLimit, [path] { return timer::RequestPlace::make(path); });
}

}  // namespace

ExpirationTimers::ExpirationTimers(RunContext& run, const StackOffers& offers)
    : run_(run),
      offers_(offers),
      awake_(run.clock),
      watchdog_(run.loop, awake_, *this),
      hung_stacks_(run, offers) {}

void ExpirationTimers::read_waiting() {
  run_.catch_up();
  if (pipe_) pipe_->catch_up();
}

void ExpirationTimers::open_pipe() {
  // The messages are torch's, which people and tools look for.
  if (workers::find_variable(run_.environment, kSwitch) != "1") {
    log::info(kTimerArea, "Environment variable '{}' not found. Do not start FileTimerServer.",
              kSwitch);
    return;
  }
  const std::string given(workers::find_variable(run_.environment, kFile).value_or(""));
  auto place = make_place(given);
  if (!place) {
    log::warning(kTimerArea, "Workers have no expiration timers: {}", place.error().text);
    return;
  }
  pipe_ = std::make_unique<timer::RequestPipe>(run_.loop, std::move(*place),
                                               [this](std::string_view line) { heard_line(line); });
  if (const auto& own = pipe_->own_folder(); !own.empty()) run_.guardian.remember_directory(own);
  log::info(kTimerArea, "FileTimerServer started, with PATH {}", pipe_->path());
}

void ExpirationTimers::close_pipe(files::BlockingCalls& files) {
  if (!pipe_) return;
  const auto place = pipe_->take_place();
  // Now; only the removal may wait for a file system.
  pipe_.reset();
  const auto what = place->path;
  const auto folder = place->own_folder;
  files.make(
      what, [removal = place->take_removal()] { return removal(), true; },
      [&guardian = run_.guardian, folder](bool) {
        if (!folder.empty()) guardian.forget(folder);
      });
}

void ExpirationTimers::heard_line(std::string_view line) {
  if (!active_) return;  // of a worker that is ending, or has ended
  const auto request = timer::parse_torch_request(line, awake_.now(), run_.clock.wall());
  if (!request) {
    if (may_complain()) log::warning(kTimerArea, "Ignored: {}", printable(request.error().text));
  } else if (watchdog_.request(*request)) {
    last_request_ = run_.clock.now();
  } else if (may_complain()) {
    log::warning(kTimerArea,
                 "Ignored: a timer '{}' of process {}, which is not one of the workers of this "
                 "node, or has too many timers",
                 printable(request->scope), request->worker);
  }
}

/// The worker's monotonic clock is ours. What we are late to hear counts from now: its release may
/// be late, too.
void ExpirationTimers::heard(pid_t sender, const workers::TimerSet& timer) {
  if (!active_) return;
  timer::Request request{sender, timer.scope, {}, timer.signal, timer.id, {}};
  if (timer.deadline) {
    const double now = to_seconds(run_.clock.now().time_since_epoch());
    const double after = std::clamp(timer.after, 0.0, kLongest);
    // What waited so long for this agent gets its whole time from now on.
    const bool late = now + after - *timer.deadline > kLate;
    const double left = late ? after : std::clamp(*timer.deadline - now, 0.0, kLongest);
    request.expiry = awake_.now() + from_seconds(left);
    request.armed = *request.expiry - from_seconds(after);
  }
  if (!watchdog_.request(request) && may_complain()) {
    log::warning(kTimerArea, "Ignored: a timer '{}' of process {}, which has too many timers",
                 printable(timer.scope), sender);
  }
}

/// While a group is being stopped its workers save what they have; they are told how long that may
/// take by other means.
void ExpirationTimers::on(const moment::PhaseChanged& seen) {
  active_ = seen.phase == Phase::Starting || seen.phase == Phase::Running ||
            seen.phase == Phase::Settling;
  if (!active_) watchdog_.clear();
}

/// Tells of one timer, for all to hear.
ExpiredTimer ExpirationTimers::tell(const timer::ExpiredWorker& expired,
                                    const timer::Expired& one) {
  ExpiredTimer timer;
  timer.attempt = group_ - 1;
  timer.pid = static_cast<pid_t>(expired.worker);
  timer.scope = printable(one.scope);
  timer.after = std::chrono::round<std::chrono::milliseconds>(one.after());
  timer.expiry = run_.clock.wall() + (one.expiry - awake_.now());
  timer.signal = std::max(one.signal, 0);
  if (const auto* worker = run_.worker_of(timer.pid)) {
    timer.rank = worker->rank;
    timer.local_rank = worker->local_rank;
    timer.worker_pid = worker->pid;
  }
  count_.add();
  overrun_.add(to_seconds(awake_.now() - one.expiry));
  run_.post(TimerExpired{std::make_shared<ExpiredTimer>(timer)});
  return timer;
}

void ExpirationTimers::expired(std::vector<timer::ExpiredWorker> workers) {
  std::vector<ExpiredTimer> reasons;
  std::vector<pid_t> hung;
  timer::ExpiredTexts texts;
  for (const auto& worker : workers) {
    for (const auto& one : worker.timers) {
      auto timer = tell(worker, one);
      texts[worker.worker].push_back(torch_text(timer));
      const bool is_reason = &one == &worker.reason();
      if (is_reason) reasons.push_back(std::move(timer));
      if (is_reason && one.signal > 0) break;  // the others change nothing any more
    }
    const auto& reason = reasons.back();
    const auto then =
        reason.signal > 0 ? "then " + process::signal_name(reason.signal) : "no signal: it goes on";
    log::warning(kTimerArea, "Rank {} (pid {}): {}; taking its stack, {}", reason.rank, reason.pid,
                 reason.sentence(), then);
    hung.push_back(reason.pid);
  }
  timer::log_debug_info_for_expired_timers(run_.spec.run_id, texts);
  // First the stack, then the signal: of a process that has ended nothing can be told any more.
  hung_stacks_.take(hung, [this, reasons = std::move(reasons),
                           group = group_](const HungStacks::Stacks& stacks) mutable {
    stacks_taken(std::move(reasons), stacks, group);
  });
}

void ExpirationTimers::stacks_taken(std::vector<ExpiredTimer> timers,
                                    const HungStacks::Stacks& stacks, int group) {
  for (auto& timer : timers) {
    if (const auto found = stacks.find(timer.pid); found != stacks.end()) {
      timer.stack = found->second;
    }
    log_stack(timer);
    // A group that is being stopped meanwhile has its own grace.
    if (timer.signal > 0 && active_ && group == group_) reap(timer);
    // The oldest goes: the report is about the end, and a timer that only tells may expire for
    // days.
    if (expired_.size() == kMostKept) expired_.erase(expired_.begin());
    expired_.push_back(std::move(timer));
  }
}

void ExpirationTimers::reap(ExpiredTimer& timer) {
  if (!watchdog_.runs(timer.pid)) return;  // it has ended by itself
  timer.reaped = true;
  const auto sent = watchdog_.reap(timer.pid, timer.signal);
  if (!sent) {
    log::error(kTimerArea, "{} of rank {} (pid {}); trying again until it has ended",
               sent.error().text, timer.rank, timer.pid);
  }
  run_.post(TimerKilled{std::make_shared<ExpiredTimer>(timer)});
}

std::optional<Duration> ExpirationTimers::overdue() const {
  std::optional<Duration> longest;
  const auto take = [&](Duration late) {
    if (late > Duration::zero() && (!longest || late > *longest)) longest = late;
  };
  if (const auto next = watchdog_.deadlines().next()) take(awake_.now() - *next);
  for (const auto& timer : expired_) {
    const bool awaited = active_ && timer.reaped && timer.attempt == group_ - 1;
    if (awaited && watchdog_.runs(timer.pid)) take(run_.clock.wall() - timer.expiry);
  }
  return longest;
}

/// By the last one: it is that of the last group.
void ExpirationTimers::explain(workers::Failure& failure) const {
  for (const auto& timer : expired_) {
    if (timer.worker_pid != failure.pid || !timer.reaped) continue;
    // The worker has ended otherwise than by this signal: the timer does not explain its end.
    if (timer.pid == failure.pid && !failure.status.by_signal(timer.signal)) continue;
    failure.expired_timer = timer.sentence();
    failure.stack = timer.stack;
  }
}

}  // namespace elastrun::agent
