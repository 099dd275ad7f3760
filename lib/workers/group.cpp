// SPDX-License-Identifier: Apache-2.0

#include "workers/group.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"
#include "workers/diagnostics.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <fmt/format.h>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace elastrun::workers {
namespace {

// As long as a guardian's word may be late for process::SignalEscalation.
constexpr auto kEcho = std::chrono::seconds(10);

}  // namespace

void PassingSignals::heard(const process::SignalEvent& event, TimePoint now) {
  std::erase_if(orders_, [now](const Order& one) { return now - one.since >= kEcho; });
  const bool by_agent = event.route == process::Route::Process;
  const auto order = std::ranges::find_if(orders_, [&](const Order& one) {
    const bool known = by_agent ? one.by_agent : one.by_guardian;
    return one.number == event.number && one.sender == event.sender_pid && (one.waits || !known);
  });
  if (order != orders_.end()) {
    (by_agent ? order->by_agent : order->by_guardian) = true;
    return;
  }
  // A process may send as many signals as it likes, and each would be kept for ten seconds.
  if (orders_.size() >= kMostOrders) orders_.pop_front();
  orders_.push_back({event.number, event.sender_pid, now, by_agent, !by_agent});
}

std::optional<TimePoint> PassingSignals::due(int number) const {
  const auto order = std::ranges::find_if(
      orders_, [number](const Order& one) { return one.number == number && one.waits; });
  if (order == orders_.end()) return std::nullopt;
  return order->since + kWait;
}

bool PassingSignals::is_for_workers(int number, TimePoint now) {
  bool is_for_them = false;
  for (auto& one : orders_) {
    if (one.number != number || !one.waits || now < one.since + kWait) continue;
    one.waits = false;
    // Where both have it every process was signalled, and the workers have theirs.
    is_for_them = is_for_them || !(one.by_agent && one.by_guardian);
  }
  return is_for_them;
}

process::ProcessTable receivers(const process::JobProcesses& processes,
                                const std::vector<pid_t>& workers, int signal) {
  const auto job = processes.processes();
  auto found = Summons(processes, workers, job, process::kNever).next(job);
  std::erase_if(
      found, [signal](const auto& one) { return !process::read_status(one.pid).survives(signal); });
  return found;
}

using process::ProcessEntry;
using process::ProcessTable;
using process::Wrapper;

namespace {

/// A table by pid.
struct Family {
  explicit Family(const ProcessTable& job) {
    for (const auto& one : job) by_pid.emplace(one.pid, &one);
  }
  const ProcessEntry* find(pid_t pid) const {
    const auto at = by_pid.find(pid);
    return at == by_pid.end() ? nullptr : at->second;
  }
  bool has_child(const ProcessEntry& parent) const {
    return std::ranges::any_of(by_pid, [&](const auto& one) {
      return one.second->parent == parent.pid && one.second->group == parent.group;
    });
  }
  std::unordered_map<pid_t, const ProcessEntry*> by_pid;
};

bool has(const std::vector<pid_t>& pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

}  // namespace

Summons::Summons(const process::JobProcesses& processes, std::vector<pid_t> workers,
                 const ProcessTable& job, std::uint64_t now)
    : processes_(processes), workers_(std::move(workers)), began_(now) {
  for (const auto& one : job) {
    known_.insert(key_of(one));
    if (leads(one.pid) && processes_.wrapper_of(one) == Wrapper::None) trainers_.insert(one.pid);
    any_wrapped_ = any_wrapped_ || (leads(one.pid) && !trainers_.contains(one.pid));
  }
}

bool Summons::leads(pid_t pid) const {
  return has(workers_, pid);
}

/// Those among which it is due, each once.
template <class Due>
ProcessTable Summons::take(const ProcessTable& among, Due due) {
  ProcessTable found;
  std::ranges::copy_if(among, std::back_inserter(found), [&](const ProcessEntry& one) {
    const bool cannot_have_begun = mute_.contains(one.group) && trainers_.contains(one.group);
    const bool begun_since =
        !known_.contains(key_of(one)) && one.start_time >= began_ && !cannot_have_begun;
    return !begun_since && !told_.contains(key_of(one)) && due(one);
  });
  for (const auto& one : found) told_.insert(key_of(one));
  return found;
}

/// Takes each of which every process above it, as far as those of its group go, is a wrapper, up to
/// one of `roots`, or to a worker if there are none. An orphan counts as a child of its worker. A
/// table is not a snapshot: the way up may even be a circle, by pids that were used again. Not
/// timeout(1), as long as there is one below it to be asked in its place.
ProcessTable Summons::take_first(const ProcessTable& among, const ProcessTable& job,
                                 const std::vector<pid_t>& roots) {
  const Family family(job);
  const auto reached = [&](const ProcessEntry& one) {
    const ProcessEntry* at = &one;
    for (std::size_t steps = 0; steps <= job.size(); ++steps) {
      if (roots.empty() ? leads(at->pid) : has(roots, at->pid)) return true;
      const auto* above = family.find(at->parent);
      if (above == nullptr || above->group != one.group) {
        if (!roots.empty()) return false;
        above = family.find(one.group);
        if (above == nullptr) return true;
      }
      if (processes_.wrapper_of(*above) == Wrapper::None) return false;
      at = above;
    }
    return false;
  };
  return take(among, [&](const ProcessEntry& one) {
    return reached(one) && (processes_.wrapper_of(one) != Wrapper::Relay || !family.has_child(one));
  });
}

ProcessTable Summons::next(const ProcessTable& job) {
  ProcessTable of_workers;
  std::ranges::copy_if(job, std::back_inserter(of_workers),
                       [this](const ProcessEntry& one) { return leads(one.group); });
  return take_first(of_workers, job, {});
}

ProcessTable Summons::below(const ProcessTable& roots, const ProcessTable& job) {
  std::vector<pid_t> pids;
  for (const auto& one : roots) pids.push_back(one.pid);
  return roots.empty() ? ProcessTable() : take_first(job, job, pids);
}

ProcessTable Summons::waited_for(const ProcessTable& job) {
  const Family family(job);
  return take(job, [&](const ProcessEntry& one) {
    const auto* above = family.find(one.parent);
    // A child of one that was asked, in its group: say an upload that the trainer has begun and
    // waits for.
    return above != nullptr && above->group == one.group && leads(one.group) &&
           told_.contains(key_of(*above)) && processes_.leaves_to(*above, one);
  });
}

ProcessTable Summons::rest(const ProcessTable& job) {
  return take(job, [this](const ProcessEntry& one) { return leads(one.group); });
}

ProcessTable set_apart(const ProcessTable& job, const std::vector<pid_t>& workers,
                       const process::JobProcesses& processes) {
  const Family family(job);
  std::set<pid_t> manned;  // groups of workers with a living process
  for (const auto& one : job) {
    if (one.group == one.session) manned.insert(one.group);
  }
  ProcessTable found;
  for (const auto& one : job) {
    // A worker leads its session and its group: both have its pid.
    if (one.group == one.session || !has(workers, one.session)) continue;
    const auto* parent = family.find(one.parent);
    const bool orphan = parent == nullptr || parent->session != one.session;
    const bool is_apart = orphan ? !manned.contains(one.session)
                                 : parent->group == one.session && processes.waits(*parent);
    if (is_apart) found.push_back(one);
  }
  return found;
}

namespace {

constexpr Duration kFirstPause = std::chrono::microseconds(500);
// Deaths of orphans are told to us at once; only what has a parent outside of the job is not.
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
// What ends within this time needs no word.
constexpr Duration kUnnamed = std::chrono::milliseconds(500);
// How long one look may hold the loop, for which other nodes may be waiting.
constexpr Duration kLongestLook = std::chrono::milliseconds(20);
// A worker that has not ended so long after its signal saves something, or waits for its children.
constexpr Duration kMoment = std::chrono::milliseconds(250);
// What is left of the grace when all are asked: enough for those that need no disk. Those for whom
// others wait are asked in the middle of it: a trainer may wait for the upload of what it has
// saved.
constexpr Duration kLastCall = std::chrono::seconds(5);
constexpr std::string_view kArea = "workers";

constexpr std::size_t kLastLines = 40;  // a Python traceback of some depth, and what led to it
constexpr std::size_t kSearched =
    1000;  // all that is kept: some tracebacks are deep, some messages long
constexpr std::string_view kTraceback = "Traceback (most recent call last):";

bool stops(int signal) {
  return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

/// What a terminal sends to its whole foreground group.
bool is_of_terminals(int signal) {
  return signal == SIGINT || signal == SIGQUIT || stops(signal);
}

/// What is known of a worker that ended so, with what it left in its error file, if anything.
Failure failure_of(const Worker& worker, const process::Exit& exit, std::optional<ErrorFile> left) {
  Failure failure;
  static_cast<process::Exit&>(failure) = exit;
  failure.rank = worker.rank;
  failure.local_rank = worker.local_rank;
  failure.pid = worker.pid;
  failure.stopped_by_us = worker.stopped_by_us;
  failure.stopped_at = worker.stopped_at;
  failure.stderr_shown = worker.stderr_shown;
  failure.error_file_path = worker.error_file;
  // Empty it says only that a running worker is about to fail: once that has ended, that it could
  // not write, because /dev/shm or a disk is full.
  if (left && !(worker.exit && left->raw.empty())) failure.error_file = std::move(left);
  if (worker.streams) {
    failure.last_lines = worker.streams->last_lines(kSearched);
    failure.lines_are_mixed = worker.streams->mixes_streams();
    failure.lines_are_all =
        worker.streams->knows_all_lines() && failure.last_lines.size() < kSearched;
    failure.traceback_at = worker.streams->seen_at(kTraceback);
    failure.wrote_at = worker.streams->seen_at("");
    failure.stdout_path = worker.streams->stdout_path();
    failure.stderr_path = worker.streams->stderr_path();
  }
  failure.exception = exception_of(failure);
  auto& lines = failure.last_lines;
  if (lines.size() > kLastLines) {
    lines.erase(lines.begin(), lines.end() - kLastLines);
    failure.lines_are_all = false;
  }
  return failure;
}

/// A signal for each of their groups, and SIGCONT, without which one that was stopped would notice
/// no other than SIGKILL. A worker that runs as another user is named at once, and is out of reach
/// then: what is to come cannot end it either.
void send_signal(std::vector<Worker>& workers, int signal) {
  for (auto& worker : workers) {
    const bool reached = worker.child->signal_group(signal);
    // To one that was stopped by SIGSTOP or Ctrl+Z. A stop signal itself would be taken back by
    // this before it is delivered: signal(7).
    if (!stops(signal) && signal != SIGKILL) worker.child->signal_group(SIGCONT);
    if (reached || worker.exit || std::exchange(worker.out_of_reach, true)) continue;
    worker.abandoned = true;
    log::error(
        kArea,
        "Process {} runs as {}: elastrun may not signal it, does not wait for it, and leaves "
        "it behind if it does not end by itself",
        worker.pid, process::owner_of(worker.pid));
  }
}

ErrorFileReader::Found read_error_files(const std::vector<std::string>& paths) {
  ErrorFileReader::Found files;
  for (const auto& path : paths) files.push_back(read_error_file(path));
  return files;
}

}  // namespace

process::ProcessTable Group::Left::all() const {
  auto all = in_groups;
  all.insert(all.end(), escaped.begin(), escaped.end());
  return all;
}

ErrorFileReader::ErrorFileReader(Clock& clock, Read read)
    : clock_(clock), read_(std::move(read)), alarm_(clock.make_alarm()) {
  if (!read_) read_ = [](const auto& paths, const auto& then) { then(read_error_files(paths)); };
}

void ErrorFileReader::look_at(std::vector<std::string> paths, std::function<void()> then) {
  // A file system that did not answer once is not waited for at the next failure; its late answer
  // ends that.
  if (paths.empty() || overdue_) return then();
  // One question at a time, and one more for all that come meanwhile: each list names all workers
  // that have not succeeded, so the last one serves all.
  paths_ = std::move(paths);
  next_.push_back(std::move(then));
  if (!asking_) ask();
}

void ErrorFileReader::ask() {
  now_ = std::exchange(next_, {});
  asking_ = true;
  alarm_->arm(clock_.now() + kTimeLimit, [this] { give_up(); });
  read_(paths_, [this, alive = lifetime_.token(), paths = paths_](Found files) {
    if (alive) found(paths, std::move(files));
  });
}

void ErrorFileReader::found(const std::vector<std::string>& paths, Found files) {
  for (std::size_t i = 0; i < paths.size() && i < files.size(); ++i) {
    if (files[i]) files_[paths[i]] = std::move(*files[i]);
  }
  alarm_->disarm();
  asking_ = overdue_ = false;
  // Before anything is called: what hears the answer may ask again.
  const auto done = std::exchange(now_, {});
  if (!next_.empty()) ask();
  for (const auto& one : done) one();
}

void ErrorFileReader::give_up() {
  overdue_ = true;
  log::warning(kArea,
               "{} and what other workers may have left cannot be read within {}: their file "
               "system does not answer, and the job goes on without",
               paths_.front(), format_duration(kTimeLimit));
  auto all = std::exchange(now_, {});
  std::ranges::move(std::exchange(next_, {}), std::back_inserter(all));
  for (const auto& one : all) one();
}

std::optional<ErrorFile> ErrorFileReader::of(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? std::nullopt : std::optional(found->second);
}

ErrorFileReader::Read reader_by(files::BlockingCalls& calls) {
  return [&calls](std::vector<std::string> paths, auto then) {
    const auto read = [paths = std::move(paths)] { return read_error_files(paths); };
    calls.make("the error files of the workers", read, std::move(then));
  };
}

Group::Group(boost::asio::io_context& loop, Clock& clock, process::Launcher& launcher,
             process::JobProcesses& processes, Owner& owner, Limits limits,
             ErrorFileReader::Read read)
    : loop_(loop),
      real_clock_(clock),
      launcher_(launcher),
      processes_(processes),
      owner_(owner),
      limits_(limits),
      awake_(clock),
      // With other nodes a pause of this machine counts: the coordinator begins the next round when
      // the grace is over by its clock, and two groups must not be at work at once.
      clock_(limits_.with_pauses ? clock : awake_),
      error_files_(clock_, std::move(read)),
      alarm_(clock_.make_alarm()) {}

/// All get the signal before the first of them is waited for.
Group::~Group() {
  for (const auto& worker : workers_) worker.child->signal_group(SIGKILL);
}

Status Group::start(std::vector<WorkerPlan> plans) {
  // Callbacks hold indexes and the children refer to none of these, but references must not move.
  workers_.reserve(plans.size());
  for (std::size_t index = 0; index < plans.size(); ++index) {
    auto& plan = plans[index];
    if (plan.streams) {
      plan.request.stdout_fd = plan.streams->stdout_fd();
      plan.request.stderr_fd = plan.streams->stderr_fd();
    }
    auto child = launcher_.start(plan.request,
                                 [this, index](const process::Exit& exit) { ended(index, exit); });
    if (!child) {
      for (const auto& worker : workers_) worker.child->signal_group(SIGKILL);
      workers_.clear();  // reaps them
      return std::unexpected(child.error());
    }
    started(plan, std::move(*child));
  }
  return {};
}

void Group::started(WorkerPlan& plan, std::unique_ptr<process::Child> child) {
  Worker worker;
  static_cast<WorkerPlan&>(worker) = std::move(plan);
  worker.request = {};
  worker.pid = child->pid();
  worker.child = std::move(child);
  if (worker.streams) {
    worker.output = Worker::Output::Flowing;
    worker.streams->started();
  }
  workers_.push_back(std::move(worker));
}

void Group::ended(std::size_t index, const process::Exit& exit) {
  auto& worker = workers_[index];
  worker.exit = exit;
  worker.abandoned = false;
  // What ends after the order to stop is not blamed, whatever its status says.
  worker.stopped_by_us = stage_ != Stage::Running;
  worker.stopped_at = stopped_at_;
  if (stage_ == Stage::Running) {
    if (worker.failed()) failed();
    if (all_succeeded()) emit(Event::AllSucceeded);
    if (!any_running() && !all_succeeded()) emit_with_diagnostics(Event::AllEnded);
  }
  if (summons_ && exit.status.how == process::ExitStatus::How::Signaled) {
    summons_->died_by_signal(worker.pid);
  }
  // What ended may leave a trainer below it that has not been asked yet.
  if (stage_ == Stage::Asking && any_awaited() && worker.child->group_alive()) ask_next();
  release_returned();
  advance();
}

/// What it wrote last tells why, and others may have written before that why they fail: read it
/// before anybody is told. Its children may write on, until the group is gone: a trainer below a
/// script that has failed saves its checkpoint.
void Group::failed() {
  for (auto& one : workers_) {
    if (one.streams && one.output == Worker::Output::Flowing) one.streams->catch_up();
  }
  emit_with_diagnostics(Event::WorkerFailed);
}

void Group::returned(pid_t pid) {
  for (auto& worker : workers_) worker.returned = worker.returned || worker.pid == pid;
  release_returned();
}

void Group::release_returned() {
  const bool all =
      std::ranges::all_of(workers_, [](const Worker& w) { return w.returned || w.exit; });
  if (all) owner_.all_returned();
}

void Group::emit(Event event) {
  const auto alive = lifetime_.token();
  // Posted: the agent may destroy this group when it hears of it, and a child's call may be under
  // way.
  boost::asio::post(loop_, [this, alive, event] {
    if (alive) owner_.group_event(event);
  });
}

void Group::stop(int signal, Duration grace) {
  const auto until = clock_.now() + grace;
  if (stage_ == Stage::Running) stopped_at_ = real_clock_.now();
  if (stage_ == Stage::Running || stage_ == Stage::Asking) {
    const bool sooner = stage_ == Stage::Running || until < deadline_;
    if (stage_ == Stage::Running) {
      // Later, since workers that end at once should not cost a look at the process table.
      ask_apart_at_ = clock_.now() + std::min(kMoment, grace / 4);
    }
    stage_ = Stage::Asking;
    if (sooner) set_deadline(until, grace);
    ask_all(signal);
    arm_grace();
    advance();
  } else if (stage_ == Stage::Waiting && !killed_) {
    const auto before = deadline_;
    set_deadline(until, grace);
    ask_all(signal);
    deadline_ = std::min(before, until);
    pause_ = kFirstPause;
    spared_since_ = asked_at_;
    look_at_leftovers();
  }
}

void Group::finish(Duration time_limit) {
  if (stage_ == Stage::Running) wait_for_leftovers(clock_.now() + time_limit);
}

void Group::kill() {
  if (stage_ >= Stage::Draining) return;  // no worker is left
  if (stage_ == Stage::Running) stopped_at_ = real_clock_.now();
  stage_ = Stage::Killing;
  asked_ = killed_ = true;
  begin_killing();
  send_signal(workers_, SIGKILL);
  // With the groups, and not when they have ended: what has left them may start further processes.
  swept_ += processes_.sweep(Duration::zero()).killed;
  deadline_ = *given_up_at_;
  alarm_->arm(deadline_, [this] { deadline_passed(); });
  advance();
}

void Group::begin_killing() {
  if (!given_up_at_) given_up_at_ = clock_.now() + limits_.kill_bound;
}

void Group::ask_all(int signal) {
  const bool again =
      process::only_announces_end(asked_with_) && !process::only_announces_end(signal);
  // Once: a second signal might end what the first has begun, a trainer that saves.
  if (std::exchange(asked_, true) && !again) return;
  asked_with_ = signal;
  if (!again) asked_at_ = process::start_time_now();
  const auto left = std::ranges::count_if(workers_, [](const auto& one) { return !one.exit; });
  if (left > 0) {
    log::warning("api", "Sending {} process{} closing signal {}", left, left == 1 ? "" : "es",
                 process::signal_name(signal));
  }
  if (!ask_trainers(signal)) send_signal(workers_, signal);
}

/// A worker that is not in the table has just ended, or /proc is not ours: its whole group then.
bool Group::ask_trainers(int signal) {
  if (is_of_terminals(signal)) return false;
  const auto job = processes_.processes();
  summons_.emplace(processes_, pids(), job, asked_at_);
  ask_waited_for_at_ = clock_.now() + (deadline_ - clock_.now()) / 2;
  processes_.signal_each(summons_->next(job), signal);
  for (const auto& worker : workers_) {
    const bool seen =
        std::ranges::any_of(job, [&](const auto& one) { return one.pid == worker.pid; });
    if (!worker.exit && !seen) worker.child->signal_group(signal);
  }
  send_signal(workers_, SIGCONT);  // names those that are out of reach, too
  return true;
}

void Group::ask_next() {
  if (summons_) processes_.signal_each(summons_->next(processes_.processes()), asked_with_);
}

/// Some tell the signal to the one below themselves, which then has had time to save.
void Group::ask_waited_for() {
  ask_waited_for_at_ = TimePoint::max();
  const auto found = summons_->waited_for(processes_.processes());
  if (found.empty()) return;
  log::warning(kArea, "Sending {} to processes that others wait for: {}",
               process::signal_name(asked_with_), names_of(found));
  processes_.signal_each(found, asked_with_);
}

void Group::ask_rest() {
  ask_rest_at_ = TimePoint::max();
  if (summons_) processes_.signal_each(summons_->rest(processes_.processes()), asked_with_);
}

void Group::set_deadline(TimePoint until, Duration grace) {
  deadline_ = until;
  // Forks of a trainer hear of it only now: data loaders that die at once take its next batch
  // along, before it has looked at its own flag.
  ask_rest_at_ = until - std::min(kLastCall, grace / 4);
}

void Group::arm_grace() {
  const auto at = std::min({deadline_, ask_apart_at_, ask_waited_for_at_, ask_rest_at_});
  alarm_->arm(at, [this] { deadline_passed(); });
}

/// What is not in a group has had no signal. judge_leftovers() asks it when all workers have ended;
/// but below a script that catches SIGTERM to wait for its trainer, that is never so.
void Group::ask_apart() {
  ask_apart_at_ = TimePoint::max();
  auto apart = set_apart(processes_.processes(), pids(), processes_);
  std::erase_if(apart, [this](const auto& one) { return one.start_time >= asked_at_; });
  if (apart.empty()) return;
  for (const auto& one : apart) told_.emplace(one.pid, one.start_time);
  log::warning(kArea, "Sending SIGTERM to processes in other process groups: {}", names_of(apart));
  signal_apart(apart);
}

/// Below timeout(1) the trainer, as in a group.
void Group::signal_apart(const process::ProcessTable& roots) {
  processes_.signal_each(summons_ ? summons_->below(roots, processes_.processes()) : roots,
                         SIGTERM);
}

void Group::arm(Duration bound) {
  deadline_ = clock_.now() + bound;
  alarm_->arm(deadline_, [this] { deadline_passed(); });
}

void Group::deadline_passed() {
  switch (stage_) {
    case Stage::Asking:
      if (const auto now = clock_.now(); now < deadline_) {
        if (now >= ask_apart_at_) ask_apart();
        if (now >= ask_waited_for_at_) ask_waited_for();
        if (now >= ask_rest_at_) ask_rest();
        return arm_grace();
      }
      for (const auto& worker : workers_) {
        if (worker.exit || worker.out_of_reach) continue;
        log::warning("api", "Unable to shutdown process {} in time, forcefully exiting via SIGKILL",
                     worker.pid);
      }
      return kill();
    case Stage::Killing:
      return abandon_rest();
    case Stage::Draining:
      log::warning(kArea, "Output of the workers was not taken within {}: the rest is dropped",
                   format_duration(limits_.drain_bound));
      for (auto& worker : workers_) worker.output = Worker::Output::Drained;
      return end_if_drained();
    default:
      return;
  }
}

void Group::abandon_rest() {
  for (auto& worker : workers_) {
    if (worker.exit || std::exchange(worker.abandoned, true)) continue;
    log::error("api",
               "Process {} did not exit after SIGKILL within {} and is left behind. It is in the "
               "kernel, waiting for a disk, a network file system or a driver",
               worker.pid, format_duration(limits_.kill_bound));
  }
  sweep();
}

void Group::advance() {
  const bool stopping = stage_ == Stage::Asking || stage_ == Stage::Killing;
  if (stopping && !any_awaited()) wait_for_leftovers(deadline_);
}

void Group::wait_for_leftovers(TimePoint until) {
  stage_ = Stage::Waiting;
  alarm_->disarm();
  deadline_ = until;
  spared_since_ = asked_at_;
  name_at_ = clock_.now() + kUnnamed;
  pause_ = kFirstPause;
  look_at_leftovers();
}

void Group::look_again() {
  // The end of a trainer below a shell is heard by SIGCHLD alone; what it forked is next.
  if (stage_ == Stage::Asking && summons_ && summons_->any_wrapped()) ask_next();
  if (stage_ == Stage::Waiting) look_at_leftovers();
}

void Group::look_at_leftovers() {
  const auto now = clock_.now();
  const auto left = this->left();
  // A process below sudo(8) takes no signal of ours (EPERM, kill(2)): to wait for it through the
  // grace and the bound of SIGKILL would change nothing.
  if (asked_ && process::KillResult{.alive = left.all()}.out_of_reach()) return sweep();
  if (summons_ && !killed_) {
    const bool late = now >= ask_rest_at_;
    const auto due = late ? summons_->rest(left.in_groups) : summons_->next(left.in_groups);
    processes_.signal_each(due, asked_with_);
  }
  if (!killed_) return judge_leftovers(left);
  if (!left.groups_alive || now >= *given_up_at_) return sweep();
  alarm_->arm(std::min(now + kLongestLook, *given_up_at_), [this] { look_at_leftovers(); });
}

/// What is left may go on until the deadline, is asked to end then, unless it was before, named to
/// people, and killed.
void Group::judge_leftovers(const Left& left) {
  const auto now = clock_.now();
  if (!left.groups_alive && left.escaped.empty()) return sweep();
  const bool over = now >= deadline_;
  if (over && asked_) return kill_leftovers(left);
  if (over) {
    log::warning(kArea,
                 "Ending what the workers have left, after the time of --shutdown-timeout: {}",
                 names_of(left.all()));
    asked_ = true;
    asked_at_ = process::start_time_now();
    send_signal(workers_, SIGTERM);
    deadline_ = now + limits_.last_grace;
    pause_ = kFirstPause;
  }
  // What has left the groups has had no signal yet. It gets one when no process of the groups is
  // there to use it any more: a logging service of the trainer must not end before the trainer.
  if (asked_ && (over || !left.groups_alive)) {
    if (const auto orphans = newly_orphaned(left); !orphans.empty()) signal_apart(orphans);
  }
  if (now >= name_at_) {
    name_at_ = TimePoint::max();
    log::warning(kArea, "The workers have ended; waiting up to {} for what they have left: {}",
                 format_duration(deadline_ - now), names_of(left.all()));
  }
  alarm_->arm(std::min({now + pause_, deadline_, name_at_}), [this] { look_at_leftovers(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

/// Those whose parents are not left: timeout(1) passes the signal on to the trainer below it, which
/// needs no second one.
process::ProcessTable Group::newly_orphaned(const Left& left) {
  std::set<pid_t> parents;
  for (const auto& one : left.all()) parents.insert(one.pid);
  process::ProcessTable found;
  for (const auto& one : left.escaped) {
    if (parents.contains(one.parent) || one.start_time >= spared_since_) continue;
    if (told_.emplace(one.pid, one.start_time).second) found.push_back(one);
  }
  return found;
}

void Group::kill_leftovers(const Left& left) {
  log::warning(kArea, "Killing what the workers have left: {}", names_of(left.all()));
  killed_ = true;
  begin_killing();
  send_signal(workers_, SIGKILL);
  look_at_leftovers();
}

Group::Left Group::left() const {
  Left left;
  left.groups_alive = groups_alive();
  for (auto& one : processes_.leftovers()) {
    const bool in_group =
        std::ranges::any_of(workers_, [&](const Worker& w) { return w.pid == one.group; });
    (in_group ? left.in_groups : left.escaped).push_back(std::move(one));
  }
  return left;
}

/// Ends what left the groups. The loop is held for a moment only: there may be other nodes to talk
/// to, while something does not end.
void Group::sweep() {
  stage_ = Stage::Sweeping;
  begin_killing();
  const auto ended = processes_.sweep(kLongestLook);
  swept_ += ended.killed - static_cast<int>(ended.alive.size());
  const auto now = clock_.now();
  const bool hopeless = ended.out_of_reach();
  if (!ended.alive.empty() && !hopeless && now < *given_up_at_) {
    alarm_->arm(now + kLongestLook, [this] { sweep(); });
    return;
  }
  if (swept_ > 0) log::info(kArea, "Ended {} processes that had left the workers' groups", swept_);
  if (hopeless) {
    log::error(kArea,
               "These processes of the job run as other users, elastrun may not end them: {}",
               ended.survivors());
  } else if (!ended.alive.empty()) {
    log::error(kArea, "Cannot end these processes of the job, not even by SIGKILL within {}: {}",
               format_duration(limits_.kill_bound), ended.survivors());
  }
  drain_all();
}

std::vector<pid_t> Group::pids() const {
  std::vector<pid_t> all;
  for (const auto& worker : workers_) all.push_back(worker.pid);
  return all;
}

bool Group::groups_alive() const {
  return std::ranges::any_of(
      workers_, [](const Worker& w) { return !w.out_of_reach && w.child->group_alive(); });
}

bool Group::any_awaited() const {
  return std::ranges::any_of(workers_, [](const Worker& w) { return !w.exit && !w.out_of_reach; });
}

void Group::drain(Worker& worker) {
  if (worker.output != Worker::Output::Flowing) return;
  // Before the call below, so that this overwrites no answer that comes within it.
  worker.output = Worker::Output::Draining;
  // The remaining holders of the pipe have left the job's groups: do not wait for them.
  worker.streams->drain(true, [this, alive = lifetime_.token(), &worker] {
    if (!alive) return;
    worker.output = Worker::Output::Drained;
    end_if_drained();
  });
}

void Group::drain_all() {
  stage_ = Stage::Draining;
  arm(limits_.drain_bound);
  for (auto& worker : workers_) drain(worker);
  end_if_drained();
}

void Group::end_if_drained() {
  const bool done = std::ranges::all_of(
      workers_, [](const Worker& w) { return w.output == Worker::Output::Drained; });
  if (stage_ != Stage::Draining || !done) return;
  stage_ = Stage::Reading;
  alarm_->disarm();
  emit_with_diagnostics(Event::Gone);
}

/// Once it is known what the workers have left: those that failed, and those that are about to end.
void Group::emit_with_diagnostics(Event event) {
  std::vector<std::string> paths;
  for (const auto& worker : workers_) {
    if (!worker.succeeded() && !worker.error_file.empty()) paths.push_back(worker.error_file);
  }
  error_files_.look_at(std::move(paths), [this, event] {
    if (event == Event::Gone) stage_ = Stage::Gone;
    // An order to stop that came meanwhile ends in Gone, which tells of all.
    if (event == Event::Gone || stage_ == Stage::Running) emit(event);
  });
}

bool Group::any_running() const {
  return std::ranges::any_of(workers_, [](const Worker& w) { return !w.exit; });
}

bool Group::all_succeeded() const {
  return std::ranges::all_of(workers_, [](const Worker& w) { return w.succeeded(); });
}

std::vector<Failure> Group::failures() const {
  std::vector<Failure> found;
  for (const auto& worker : workers_) {
    if (worker.failed())
      found.push_back(failure_of(worker, *worker.exit, error_files_.of(worker.error_file)));
  }
  return found;
}

std::vector<Failure> Group::as_if_ended_now() const {
  const process::Exit now{process::ExitStatus::exited(1), real_clock_.now(), real_clock_.wall()};
  std::vector<Failure> running;
  for (const auto& worker : workers_) {
    if (!worker.exit)
      running.push_back(failure_of(worker, now, error_files_.of(worker.error_file)));
  }
  return running;
}

}  // namespace elastrun::workers
