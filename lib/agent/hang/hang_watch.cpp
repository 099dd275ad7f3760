// SPDX-License-Identifier: Apache-2.0

#include "agent/hang/hang_watch.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/ledger/ledger.hpp"
#include "hangs/stacks.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/world.hpp"
#include "rendezvous/wire/messages.hpp"
#include "system/process_stacks.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <ranges>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
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

using Lines = std::vector<std::string>;

constexpr auto kAnswer = std::chrono::milliseconds(1000);  // of one process, by its faulthandler
constexpr std::size_t kMostLines = 1000;                   // of one process
constexpr std::size_t kMostBytes = 1 << 18;                // of py-spy

void append(Lines& lines, Lines more) {
  for (auto& line : more) {
    if (lines.size() < kMostLines) lines.push_back(std::move(line));
  }
}

Lines lines_of(const UniqueFd& file) {
  std::string text(kMostBytes, '\0');
  const auto got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  Lines lines;
  for (auto& line : split(trim(text), '\n')) {
    if (!line.empty()) lines.push_back(printable(std::move(line)));
  }
  return lines;
}

constexpr std::string_view kHangArea = "hang";
constexpr std::size_t kLoggedLines = 30;  // of one stack; the report has all
constexpr int kNamed = 8;                 // ranks in one message
constexpr Duration kLatestEntry = std::chrono::seconds(1);
// The coordinator reports after kTimeToAnswer at the latest; as much again is for the way.
constexpr Duration kLost = 2 * rendezvous::Standstill::kTimeToAnswer;
constexpr Duration kDumpsLimit = std::chrono::milliseconds(500);

/// What a worker may take its time for, by the entries that begin and end it. Not the wait for
/// data, in which a job hangs often, and not what hooks see before the first step: the preparation
/// ends with it, and the process group is made where ranks wait for one that does not come.
struct Pair {
  goodput::MeasurementKind begin, end;
  std::string_view what;
  bool from_hooks = true;
};
using Entry = goodput::MeasurementKind;
constexpr std::array kPairs{
    Pair{Entry::AcceleratorInitStart, Entry::AcceleratorInitEnd, "starting accelerators", false},
    Pair{Entry::PreparationStart, Entry::PreparationEnd, "preparing the training", false},
    Pair{Entry::CustomStart, Entry::CustomEnd, "in the event"},
    Pair{Entry::SaveStart, Entry::SaveEnd, "saving a checkpoint"},
    Pair{Entry::RestoreStart, Entry::RestoreEnd, "restoring a checkpoint"},
    Pair{Entry::ElasticWaitStart, Entry::ElasticWaitEnd, "waiting for a change of the job"},
    Pair{Entry::ElasticReinitStart, Entry::ElasticReinitEnd, "starting after a change"}};

/// When it was, of an entry that has come now: entries wait a moment for each other, which belongs
/// to a hang that follows. An older time is one that the script has chosen, and tells of now.
TimePoint moment_of(const goodput::MeasurementEntry& entry, TimePoint now, WallTime wall) {
  const TimePoint at = goodput::time_of_entry(entry.time, now, wall);
  return now - at > kLatestEntry ? now : at;
}

/// "rank 3 has been in the phase 'eval' since ..., for 31.0 min"
std::string text_of(const hangs::Excuses::Excuse& excuse, TimePoint now, WallTime wall) {
  const auto took = now - excuse.since;
  return fmt::format("rank {} has been {} since {}, for {}", excuse.rank, printable(excuse.what),
                     format_local_time(wall - took),
                     format_duration(std::chrono::round<std::chrono::milliseconds>(took)));
}

}  // namespace

void ExpirationTimers::open_pipe() {
  // The messages are torch's, which people and tools look for.
  if (find_variable(run_.environment, kSwitch) != "1") {
    log::info(kTimerArea, "Environment variable '{}' not found. Do not start FileTimerServer.",
              kSwitch);
    return;
  }
  const std::string given(find_variable(run_.environment, kFile).value_or(""));
  auto place = make_place(given);
  if (!place) {
    log::warning(kTimerArea, "Workers have no expiration timers: {}", place.error().text);
    return;
  }
  pipe_ = std::make_unique<timer::RequestPipe>(run_.loop, std::move(*place),
                                               [this](std::string_view line) { heard_line(line); });
  if (const auto& own = pipe_->own_folder(); !own.empty()) run_.guardian.remember(own);
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

/// What is known of each process, by source: that of Python first.
struct HungStacks::Job {
  Then then;
  std::map<pid_t, Lines> python, threads;
  int awaited = 0;
  std::unique_ptr<Alarm> alarm;
  std::vector<std::unique_ptr<process::Child>> spies;
};

HungStacks::~HungStacks() = default;

void HungStacks::take(const std::vector<pid_t>& hung, Then then) {
  const auto job = std::make_shared<Job>();
  const std::weak_ptr<Job> weak = job;
  job->then = std::move(then);
  job->alarm = run_.clock.make_alarm();
  // Weak here and in all calls below: an answer after the limit finds nothing, and changes nothing.
  job->alarm->arm(run_.clock.now() + kLimit, [this, weak] { finish(weak); });
  jobs_.push_back(job);
  // Those that have offered their stacks, by pidfd: the number may be given to another process
  // meanwhile, which the signal that asks for a stack would end.
  const auto pidfds = std::make_shared<std::vector<UniqueFd>>();
  std::vector<system::StackSource> askable;
  std::vector<pid_t> silent;
  for (const auto pid : hung) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    // Asked after that: it knows whether the number is still that of the process that offered.
    const auto offer = offers_.of(pid);
    if (!offer) silent.push_back(pid);
    if (offer) askable.push_back({pid, pidfds->emplace_back(std::move(pidfd)).get(), *offer});
  }
  // Two calls, each with its answer: what the kernel does not tell in time costs nothing of the
  // other. Python first: a process that goes on is where it was asked, not where it was later.
  job->awaited += 2;
  calls_.make(
      "the Python stacks of processes",
      [pidfds, askable] {
        return askable.empty() ? std::vector<Lines>() : system::ask_python_stacks(askable, kAnswer);
      },
      [this, weak, askable](std::vector<Lines> stacks) {
        const auto asked = weak.lock();
        for (std::size_t i = 0; asked && i < stacks.size(); ++i) {
          asked->python[askable[i].pid] = std::move(stacks[i]);
        }
        done(weak);
      });
  calls_.make(
      "the threads of a process in /proc",
      [hung] {
        std::map<pid_t, Lines> threads;
        for (const auto pid : hung) threads[pid] = system::thread_lines(system::read_threads(pid));
        return threads;
      },
      [this, weak](std::map<pid_t, Lines> threads) {
        if (const auto asked = weak.lock()) asked->threads = std::move(threads);
        done(weak);
      });
  if (!silent.empty()) find_spy(job, std::move(silent));
}

/// Last, because PATH may name a folder of a file system that does not answer.
void HungStacks::find_spy(const std::shared_ptr<Job>& job, std::vector<pid_t> pids) {
  ++job->awaited;
  calls_.make(
      "the search for py-spy in PATH",
      [environment = run_.environment] { return process::find_program("py-spy", environment, {}); },
      [this, weak = std::weak_ptr(job), pids = std::move(pids)](const Result<std::string>& path) {
        const auto asked = weak.lock();
        for (const auto pid : pids) {
          if (asked && path) spy(asked, *path, pid);
        }
        done(weak);
      });
}

void HungStacks::spy(const std::shared_ptr<Job>& job, const std::string& path, pid_t pid) {
  // Memory instead of a pipe, which is full at 64 KiB and would have to be read meanwhile.
  const auto output = std::make_shared<UniqueFd>(::memfd_create("py-spy", MFD_CLOEXEC));
  const UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  process::LaunchRequest request;
  request.argv = process::shell_exec(
      // Nonblocking: py-spy would stop the process, which may be well and only slow.
      {path, "dump", "--pid", std::to_string(pid), "--full-filenames", "--nonblocking"});
  request.environment = run_.environment;
  request.stdin_fd = request.stderr_fd = nowhere.get();
  request.stdout_fd = output->get();
  if (!*output || !nowhere) return;
  const std::weak_ptr<Job> weak = job;
  auto child = run_.launcher.start(request, [this, weak, pid, output](const process::Exit& exit) {
    const auto asked = weak.lock();
    if (asked && exit.status.success()) asked->python[pid] = lines_of(*output);
    done(weak);
  });
  if (!child) return;
  ++job->awaited;
  job->spies.push_back(std::move(*child));
}

/// Not at once: it may be a child of the job that calls, which the job's end would destroy.
void HungStacks::done(const std::weak_ptr<Job>& job) {
  const auto asked = job.lock();
  if (!asked || --asked->awaited > 0) return;
  boost::asio::post(run_.loop, [this, job, alive = lifetime_.token()] {
    if (alive) finish(job);
  });
}

void HungStacks::finish(const std::weak_ptr<Job>& weak) {
  const auto job = weak.lock();
  // The alarm and the last answer may both come; the first one tells.
  if (!job || std::erase(jobs_, job) == 0) return;
  Stacks stacks;
  for (auto* source : {&job->python, &job->threads}) {
    for (auto& [pid, lines] : *source) append(stacks[pid], std::move(lines));
  }
  job->then(std::move(stacks));
}

void HangWatch::on(const moment::PhaseChanged& seen) {
  runs_ = seen.phase == Phase::Running;
  told_.reset();
  overdue_.clear();
  set_held({});
  told_held_.clear();
  hanging_ = looks_ = false;
  if (!runs_) {
    rule_.end();
    if (alarm_) alarm_->disarm();
    return;
  }
  rule_.begin(awake_.now());
  // What the last group wrote is not progress of this one.
  activity_ = run_.activity();
  looked_ = awake_.now();
  if (rule_.is_asked_for()) begin_looking();
}

void HangWatch::heard(int rank, const workers::Message& message) {
  // Before the group is known to run, because offers come while it starts. Who offers stacks has
  // the library, with which it can report steps.
  if (std::holds_alternative<workers::StacksOffered>(message)) rule_.expect_steps();
  if (!rule_.is_running()) return;
  if (std::holds_alternative<workers::StepDone>(message)) {
    rule_.step(rank, awake_.now());
  } else if (const auto* said = std::get_if<workers::GoodputEntries>(&message)) {
    heard_goodput(rank, *said);
  } else if (std::holds_alternative<workers::CheckpointDone>(message)) {
    rule_.checkpoint(awake_.now());
  } else if (std::holds_alternative<workers::Returned>(message)) {
    rule_.ended(rank, awake_.now());
  } else if (const auto* phase = std::get_if<workers::PhaseEntered>(&message)) {
    rule_.phase(rank, phase->name, phase->at_most, awake_.now());
  } else {
    return wrote();
  }
  note_progress();
}

void HangWatch::heard_goodput(int rank, const workers::GoodputEntries& said) {
  const auto now = awake_.now();
  const auto wall = run_.clock.wall();
  // An end may be among the lost entries, and an excuse without an end would hide a hang.
  if (said.lost > 0) rule_.closed_all(rank, now);
  for (const auto& [entry, name, members] : said.entries) {
    const auto kind = entry.kind;
    const auto at = moment_of(entry, now, wall);
    if (kind == Entry::SliceCounts) continue;  // a thread tells that again and again
    const auto pair = std::ranges::find_if(
        kPairs, [kind](const Pair& one) { return one.begin == kind || one.end == kind; });
    if (kind == Entry::Step || kind == Entry::StepEnd) {
      rule_.seen_step(rank, at);
    } else if (kind == Entry::Save || kind == Entry::Restore || kind == Entry::EmergencyRestore) {
      rule_.checkpoint(at);
    } else if (pair == kPairs.end() || (said.by_hooks && !pair->from_hooks) ||
               goodput::bucket_of_phase(name) == goodput::Bucket::Unexplained) {
      // What hooks cannot explain is told when it is over, with each step.
      rule_.went_on(at);
    } else {
      const auto what =
          name.empty() ? std::string(pair->what) : fmt::format("{} '{}'", pair->what, name);
      kind == pair->begin ? rule_.opened(rank, what, at) : rule_.closed(rank, what, at);
    }
  }
}

/// Not of each step: a job may do thousands a second. Where --hang-timeout is not used, the next
/// look is soon enough for all but the end of a hang: a node that moves hides none of others.
void HangWatch::note_progress() {
  using Kind = hangs::NodeProgress::Kind;
  if (!looks_) {
    if (rule_.is_known()) begin_looking();
    return;
  }
  const auto now = awake_.now();
  if (hanging_ || (told_ && told_->kind == Kind::Stands)) {
    const auto progress = rule_.progress(now);  // not all that workers say is progress
    if (!progress || progress->kind != Kind::Stands) moved();
    return;
  }
  if (!rule_.is_asked_for()) return;
  const hangs::NodeProgress known{rule_.is_excused(now) ? Kind::Excused : Kind::Moves,
                                  rule_.by_steps()};
  if (told_ != known) moved();
}

void HangWatch::moved() {
  tell();
  if (!std::exchange(hanging_, false)) return;
  log::warning(kHangArea, "The workers go on");
}

void HangWatch::look() {
  const auto now = awake_.now();
  note_ended();
  note_held();
  rule_.looked(!held_.empty(), now);
  if (const auto last = run_.activity(); last > activity_) {
    activity_ = last;
    // The time since then counts a pause, the AwakeClock does not; the last look saw nothing of it.
    rule_.wrote(std::max(looked_, now - (run_.clock.now() - activity_)));
  }
  looked_ = now;
  say_overdue(now);
  const auto before = told_;
  tell();
  using Kind = hangs::NodeProgress::Kind;
  if (before != told_ && told_ && told_->kind == Kind::Moves) moved();
  look_again();
}

/// Once of each: from here on it hides no hang.
void HangWatch::say_overdue(TimePoint now) {
  auto over = rule_.overdue(now);
  for (const auto& one : over) {
    if (std::ranges::find(overdue_, one) != overdue_.end()) continue;
    log::warning(kHangArea, "{}: this no longer excuses hangs of the job",
                 text_of(one, now, run_.clock.wall()));
  }
  overdue_ = std::move(over);
}

/// Of this node.
std::string HangWatch::overdue_text() const {
  std::string text;
  for (const auto& one : rule_.overdue(awake_.now()) | std::views::take(kNamed)) {
    text += "; " + text_of(one, awake_.now(), run_.clock.wall());
  }
  return text;
}

void HangWatch::tell() {
  const auto now = awake_.now();
  auto progress = rule_.progress(now);
  if (!progress && told_) progress.emplace();  // what it said before holds no more
  const bool same = progress == told_ && held_ == told_held_;
  if (same || !progress || !round_) return;
  told_ = progress;
  told_held_ = held_;
  session_.report(
      rendezvous::ProgressReport{round_->number, *progress, rule_.standing(now), held_});
}

/// A rank that is stopped excuses the job, so people should know of it at once.
void HangWatch::note_held() {
  std::map<int, std::string> held;
  for (const auto& [rank, pid] : pids_) {
    if (has_ended(pid)) continue;
    if (auto by = process::held_by(pid); !by.empty()) held.emplace(rank, std::move(by));
  }
  if (held == held_) return;
  for (const auto& [rank, by] : held) {
    if (held_.contains(rank)) continue;
    const auto limit = rule_.limit();
    log::warning(kHangArea, "Rank {} (pid {}) is {}{}", rank, pids_.at(rank), by,
                 limit ? fmt::format(": hang detection waits for it for {} at most",
                                     format_duration(hangs::HangRule::kOfStopped * *limit))
                       : "");
  }
  for (const auto& [rank, by] : held_) {
    if (!held.contains(rank)) log::warning(kHangArea, "Rank {} goes on: it is held no more", rank);
  }
  set_held(std::move(held));
}

void HangWatch::hangs(const rendezvous::StacksReport& report) {
  const auto heard = run_.clock.now();
  look_now();
  const bool speaks = round_ && round_->rank_base == report.speaker;
  if (!runs_ || !round_ || goes_on(speaks)) return;
  // Before the report: what the rendezvous makes of it comes after it in the agent's queue.
  JobHang hang{groups_ - 1, run_.clock.wall(), report.standing + (run_.clock.now() - heard),
               report.stacks, rule_.waits_for_first_step()};
  hanging_ = true;
  count_.add();
  run_.post(HangSeen{std::make_shared<JobHang>(hang)});
  log::warning(kHangArea, "No worker of the job has made progress for {}: {}{}",
               format_duration(std::chrono::round<std::chrono::milliseconds>(hang.standing)),
               hangs::hang_text(report.stacks), overdue_text());
  if (round_->group_rank == 0 && rule_.is_asked_for()) {
    const auto hint = hangs::stacks_hint(report.stacks);
    log::warning(kHangArea, "Where they stand:{}{}{}",
                 hangs::stacks_lines(report.stacks, "\n  ", kLoggedLines),
                 hint.empty() ? "" : "\n  ", hint);
  }
  // With --on-hang report a job may hang as often as it likes.
  if (hangs_.size() == kMostKept) hangs_.erase(hangs_.begin());
  hangs_.push_back(std::move(hang));
  // One node says it for all.
  // A learnt limit without --hang-timeout tells and books; it ends nothing that was not asked for.
  const bool acts = rule_.is_asked_for() && run_.spec.on_hang != spec::OnHang::Report;
  if (!acts || !speaks) return;
  session_.report(rendezvous::Failed{round_->number, cause_of(hangs_.back()), true});
}

rendezvous::Cause HangWatch::cause_of(const JobHang& hang) const {
  rendezvous::Cause cause;
  cause.kind = rendezvous::Cause::Kind::WorkerFailed;
  cause.text = hangs::hang_text(hang.stacks) + overdue_text();
  cause.what = spec::CauseClass::Hang;
  cause.wall_seconds = to_seconds(hang.at);
  cause.final = run_.spec.on_hang == spec::OnHang::Fail;
  const auto culprits = hangs::culprits_of(hang.stacks);
  if (culprits.empty()) return cause;
  cause.rank = culprits.front();
  // Not all members are known to all nodes of a large world.
  if (std::ranges::any_of(round_->members, &std::string::empty, &rendezvous::Node::id)) {
    return cause;
  }
  const auto ranks = rendezvous::compute_ranks(round_->members);
  for (std::size_t i = 0; i < ranks.of.size(); ++i) {
    const int local_rank = cause.rank - ranks.of[i].rank_base;
    if (local_rank < 0 || local_rank >= round_->members[i].local_world_size) continue;
    cause.node = round_->members[i].id;
    cause.local_rank = local_rank;
  }
  return cause;
}

bool HangWatch::took(const rendezvous::Push& push) {
  const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
  // What a node last said may be as old as its looks are apart: it looks again before all are held
  // to have hung.
  if (order != nullptr && order->hang) look_now();
  if (order != nullptr) take(*order);
  const auto* report = std::get_if<rendezvous::StacksReport>(&push);
  if (report == nullptr) return order != nullptr;
  // A report comes to all nodes, and clients wait on those that have asked.
  if (std::exchange(asked_at_, std::nullopt)) {
    run_.answer_asker(rendezvous::encode(rendezvous::FromCoordinator(rendezvous::Push(*report))));
  }
  if (report->hang) hangs(*report);
  return true;
}

void HangWatch::asked() {
  const auto now = run_.clock.now();
  // An answer is lost with the connection to the coordinator.
  // One question for all clients; after kLost its answer will not come any more.
  if (asked_at_ && now - *asked_at_ < kLost) return;
  asked_at_ = now;
  session_.report(rendezvous::AskStacks{});
}

/// Of a worker that is a script, or numactl(8), the first of its processes that has something to
/// tell; the data loaders of Python come later.
std::vector<HangWatch::Subject> HangWatch::subjects() const {
  std::vector<Subject> subjects;
  for (const auto& [rank, pid] : pids_) subjects.push_back({rank, pid, pid});
  for (const pid_t process : offers_.processes()) {
    const auto* worker = run_.worker_of(process);
    const auto subject = worker == nullptr
                             ? subjects.end()
                             : std::ranges::find(subjects, worker->pid, &Subject::worker);
    if (subject == subjects.end() || offers_.of(subject->process)) continue;
    // The worker itself may be a wrapper such as a shell.
    if (offers_.of(process)) subject->process = process;
  }
  return subjects;
}

void HangWatch::take(const rendezvous::TakeStacks& order) {
  const auto subjects = this->subjects();
  const auto taking = std::make_shared<Taking>(order.id, subjects);
  if (order.hang) {
    calls_.make(
        "the pipes of the flight recorder",
        [subjects, environment = run_.environment, since = began_] {
          std::vector<system::FlightRecorder> recorders;
          for (const auto& one : subjects) {
            // A worker may have another environment than its agent, by its job file or its script.
            const auto own = system::environment_of(one.process);
            recorders.push_back(
                system::flight_recorder_of(own.empty() ? environment : own, one.rank));
          }
          return system::find_dumps(recorders, since);
        },
        [this, taking](std::vector<std::string> dumps) {
          taking->dumps = std::move(dumps);
          report(*taking);
        });
  } else {
    taking->dumps.emplace();
  }
  std::vector<pid_t> pids;
  for (const auto& subject : subjects) pids.push_back(subject.process);
  hung_stacks_.take(pids, [this, taking](HungStacks::Stacks stacks) {
    taking->stacks = std::move(stacks);
    report(*taking);
    if (taking->dumps) return;
    // A folder that does not answer holds the stacks up no longer than this.
    dumps_limit_->arm(run_.clock.now() + kDumpsLimit, [this, taking] {
      if (!taking->dumps) taking->dumps.emplace();
      report(*taking);
    });
  });
}

/// Once, when all is there.
void HangWatch::report(Taking& taking) {
  // Called by the stacks, the dumps and the limit for these, in any order.
  if (!taking.stacks || !taking.dumps || std::exchange(taking.is_told, true)) return;
  std::vector<hangs::WorkerStack> all;
  for (const auto& subject : taking.subjects) {
    all.push_back({subject.rank, std::move((*taking.stacks)[subject.process])});
  }
  for (auto& part :
       rendezvous::parts_of({taking.id, hangs::group(all), std::move(*taking.dumps), true})) {
    session_.report(std::move(part));
  }
}

}  // namespace elastrun::agent
