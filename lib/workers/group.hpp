// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/system_clock.hpp"
#include "files/blocking_calls.hpp"
#include "process/launcher.hpp"
#include "process/process_table.hpp"
#include "process/signals.hpp"
#include "workers/diagnostics.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::workers {

/// Who is asked to end, and when. A trainer comes first and alone: what it has forked, such as the
/// workers of a DataLoader, dies of a signal for which the trainer wants to save a checkpoint, and
/// the trainer fails of that before it comes to save. What it has forked is asked when it has
/// ended, or when the time is nearly over.
/// A trainer is what a worker runs unless that is a wrapper; below a shell or timeout(1), the first
/// other process on each way down. Shells are asked together with it, so that they do not go
/// on with their scripts; timeout(1) is not, because it would tell its whole group.
///
/// It is shown what lives, asks `processes` what a process waits for, and names each process once.
class Summons {
 public:
  /// `workers`: their pids, which are their groups' numbers. `job`: what lives as the stop begins.
  /// What is begun later, at `now` as a start time, gets no signal but SIGKILL: the upload of a
  /// checkpoint that was saved because of the stop.
  Summons(const process::JobProcesses& processes, std::vector<pid_t> workers,
          const process::ProcessTable& job, std::uint64_t now);

  /// Of the workers' groups those whose turn it is. To be asked again when something has ended.
  process::ProcessTable next(const process::ProcessTable& job);
  /// The same below processes that have left the groups, `roots`, in place of them.
  process::ProcessTable below(const process::ProcessTable& roots, const process::ProcessTable& job);
  /// Below those of the workers' groups that were asked and go on to wait for a child, which they
  /// may have told or not, that child, if it wants to hear the signal (JobProcesses::leaves_to).
  process::ProcessTable waited_for(const process::ProcessTable& job);
  /// All of the workers' groups that have not been asked yet.
  process::ProcessTable rest(const process::ProcessTable& job);
  /// A worker has ended by a signal: it has begun nothing because of the stop, so all that it left
  /// was there before, even if it is too young to be known.
  void died_by_signal(pid_t worker) { mute_.insert(worker); }
  /// Some trainer is below a wrapper, so that its end is not that of a worker.
  bool any_wrapped() const { return any_wrapped_; }

 private:
  using Key = std::pair<pid_t, std::uint64_t>;  // pid and start time

  static Key key_of(const process::ProcessEntry& one) { return {one.pid, one.start_time}; }
  bool leads(pid_t pid) const;
  template <class Due>
  process::ProcessTable take(const process::ProcessTable& among, Due due);
  process::ProcessTable take_first(const process::ProcessTable& among,
                                   const process::ProcessTable& job,
                                   const std::vector<pid_t>& roots);

  const process::JobProcesses& processes_;
  const std::vector<pid_t> workers_;
  const std::uint64_t began_;
  std::set<Key> known_, told_;
  std::set<pid_t> trainers_;  // workers that are trainers themselves
  std::set<pid_t> mute_;      // workers that died by a signal
  bool any_wrapped_ = false;
};

/// Finds, among the processes `job`, the workers with the pids `workers` included, the uppermost of
/// those that stay in the session of a worker but have left its process group, if a process of the
/// group does nothing but wait for them, or the group is empty. A signal for the group does not
/// reach them: below a script that catches SIGTERM, `timeout 1h python train.py` is such a one.
///
/// Spared are sessions of their own, and what the group may still use: a service of a trainer that
/// saves its checkpoint, which waits for a disk and not for a child. `processes` tells the two
/// apart.
process::ProcessTable set_apart(const process::ProcessTable& job, const std::vector<pid_t>& workers,
                                const process::JobProcesses& processes);

/// SIGUSR1 and SIGUSR2, where they do not end the job: by them batch systems announce its end, and
/// people ask trainers for a checkpoint. Tells what was sent to the launcher alone, and is to be
/// passed on to the workers, from what was sent to every process of the job, whose workers have
/// theirs: the second arrives at guardian and agent, the first at one of them. Pure.
class PassingSignals {
 public:
  /// How long the other one's may take. Once passed on, it may come ten seconds late.
  static constexpr Duration kWait = std::chrono::seconds(1);
  static constexpr std::size_t kMostOrders = 64;  // of ten seconds

  void heard(const process::SignalEvent& event, TimePoint now);
  /// When to ask for the next order of this signal; none: there is none to decide.
  std::optional<TimePoint> due(int number) const;
  /// Decides what is due: whether the workers are to get it.
  bool is_for_workers(int number, TimePoint now);

 private:
  /// Who signals every process of a job is one process; what comes from two is two orders.
  struct Order {
    int number;
    pid_t sender;
    TimePoint since;
    bool by_agent, by_guardian;
    bool waits = true;
  };
  std::deque<Order> orders_;  // the oldest first
};

/// Those of a job that a passed signal is for: the trainers, as Summons finds them, and shells, as
/// far as they survive it.
process::ProcessTable receivers(const process::JobProcesses& processes,
                                const std::vector<pid_t>& workers, int signal);

/// What workers have left in their error files, as it was read last. Files may be on a file system
/// that does not answer: they are read elsewhere, and waited for during `kTimeLimit` at most. What
/// comes later is known to later questions. One reading at a time; those who come meanwhile share
/// the next one.
class ErrorFileReader {
 public:
  using Found = std::vector<std::optional<ErrorFile>>;  // one for each path
  /// Calls `then` on the loop, later, when it has read them all; maybe never.
  using Read = std::function<void(std::vector<std::string> paths, std::function<void(Found)> then)>;
  /// Much more than a healthy network file system takes for some dozen small files, and what a
  /// frozen one may add to the time until a group is stopped.
  static constexpr Duration kTimeLimit = std::chrono::seconds(1);

  /// Without `read`, files are read inside look_at().
  ErrorFileReader(Clock& clock, Read read);
  ErrorFileReader(const ErrorFileReader&) = delete;
  ErrorFileReader& operator=(const ErrorFileReader&) = delete;

  /// Runs `then` once, inside or later, when these files have been looked at again or are waited
  /// for no longer. While an earlier reading is overdue `then` runs at once.
  void look_at(std::vector<std::string> paths, std::function<void()> then);
  /// Nothing if there was no such file, or it was not read.
  std::optional<ErrorFile> of(const std::string& path) const;

 private:
  void ask();
  void found(const std::vector<std::string>& paths, Found files);
  void give_up();

  Clock& clock_;
  Read read_;
  std::map<std::string, ErrorFile> files_;
  std::unique_ptr<Alarm> alarm_;
  std::vector<std::string> paths_;                 // of the last question
  std::vector<std::function<void()>> now_, next_;  // who wait for this reading, and for the next
  bool asking_ = false, overdue_ = false;
  Lifetime lifetime_;  // answers look whether we exist
};

/// Reads them on the thread of `calls`, which outlives it.
ErrorFileReader::Read reader_by(files::BlockingCalls& calls);

/// All workers of this node in one round: started together, watched, and stopped together with
/// whatever they left behind in their process groups. Used once, for one attempt.
///
/// Facts come to its owner: `WorkerFailed` (what it wrote on
/// stderr is read by then), `AllSucceeded`, and `Gone` once after stop() or finish(): then nothing
/// of the group runs any more and all pipes are drained. Destroying it kills what is left.
class Group {
 public:
  enum class Event { WorkerFailed, AllSucceeded, AllEnded, Gone };
  struct Limits {
    Duration last_grace = std::chrono::milliseconds(500);  // of what a success left for too long
    Duration kill_bound = process::kKillBound;       // from the first SIGKILL on, for all together
    Duration drain_bound = std::chrono::seconds(5);  // for a console that takes nothing
    /// What passes while this machine stands still is part of all this, and of the grace: others
    /// count on the end of it and begin without us.
    bool with_pauses = false;
  };
  /// Hears of the group: the agent, or a test.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Called on the loop, never inside a call.
    virtual void group_event(Event event) = 0;
    /// All have ended, or their scripts have returned (--run-path): those who wait for that may go.
    virtual void all_returned() = 0;
  };

  /// Borrows all. `read`: as ErrorFileReader's.
  Group(boost::asio::io_context& loop, Clock& clock, process::Launcher& launcher,
        process::JobProcesses& processes, Owner& owner, Limits limits,
        ErrorFileReader::Read read = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Starts all, in order. When one cannot be started, those before it are killed again, nothing is
  /// left and no event comes.
  Status start(std::vector<WorkerPlan> plans);
  /// Asks every trainer with `signal` (Summons), and a moment later what is apart from its group by
  /// SIGTERM; what a trainer has forked, when that has ended or the grace nearly, and sooner if it
  /// waits for a process that would hear the signal, as a wrapper does; but not what was
  /// born since: a worker saves by it. SIGINT and SIGQUIT go to whole groups, as a terminal sends
  /// them. What is left after `grace` is killed; until then the children of workers that have
  /// obeyed go on as well. Called again, the earlier of both ends of grace counts, but no process
  /// is asked again: a second signal might end what the first has begun. Only after one that
  /// announces the end (process::only_announces_end) they are.
  void stop(int signal, Duration grace);
  /// After all have ended by themselves: what they left behind may go on for so long, then it is
  /// asked by SIGTERM, and killed.
  void finish(Duration time_limit);
  /// A child of this process has ended: nothing may be left to wait for.
  void look_again();
  /// The script of the worker with this pid has returned.
  void returned(pid_t pid);
  void kill();  // SIGKILL at once

  const std::vector<Worker>& workers() const { return workers_; }
  bool any_running() const;
  bool all_succeeded() const;
  /// Each worker that failed so far, with the diagnostics that it left.
  std::vector<Failure> failures() const;
  /// Each worker that runs, as if it had ended now with an exit code: those that are about to end
  /// have left diagnostics already.
  std::vector<Failure> as_if_ended_now() const;

 private:
  enum class Stage { Running, Asking, Killing, Waiting, Sweeping, Draining, Reading, Gone };
  /// What workers that have ended left behind: a trainer below a shell script that obeyed SIGTERM
  /// before it, an upload that a successful worker has begun.
  struct Left {
    bool groups_alive = false;        // something in a process group of a worker
    process::ProcessTable in_groups;  // that, as far as it could be read
    process::ProcessTable escaped;    // in other groups or sessions
    process::ProcessTable all() const;
  };

  void started(WorkerPlan& plan, std::unique_ptr<process::Child> child);
  void ended(std::size_t index, const process::Exit& exit);
  void failed();
  void emit(Event event);
  void ask_all(int signal);
  bool ask_trainers(int signal);
  void ask_next();
  void ask_waited_for();
  void ask_rest();
  void ask_apart();
  void signal_apart(const process::ProcessTable& roots);
  void set_deadline(TimePoint until, Duration grace);
  void arm_grace();
  void advance();
  void release_returned();
  void begin_killing();
  void wait_for_leftovers(TimePoint until);
  void look_at_leftovers();
  void judge_leftovers(const Left& left);
  void kill_leftovers(const Left& left);
  process::ProcessTable newly_orphaned(const Left& left);
  Left left() const;
  std::vector<pid_t> pids() const;
  bool groups_alive() const;
  bool any_awaited() const;
  void sweep();
  void arm(Duration bound);
  void deadline_passed();
  void abandon_rest();
  void drain(Worker& worker);
  void drain_all();
  void end_if_drained();
  void emit_with_diagnostics(Event event);

  boost::asio::io_context& loop_;
  Clock& real_clock_;
  process::Launcher& launcher_;
  process::JobProcesses& processes_;
  Owner& owner_;
  const Limits limits_;
  AwakeClock awake_;
  Clock& clock_;  // of all waits
  std::vector<Worker> workers_;
  ErrorFileReader error_files_;
  Stage stage_ = Stage::Running;
  std::unique_ptr<Alarm> alarm_;
  TimePoint deadline_{};  // of the grace and what is left after it, then of the kill
  TimePoint ask_apart_at_ = TimePoint::max(), ask_waited_for_at_ = TimePoint::max(),
            ask_rest_at_ = TimePoint::max();
  std::optional<TimePoint> given_up_at_;      // after the first SIGKILL
  std::optional<Summons> summons_;            // in a stop that asks trainers first
  int asked_with_ = 0;                        // the signal
  TimePoint stopped_at_{};                    // the first order to stop or to kill
  std::uint64_t asked_at_ = process::kNever;  // as start_time of a process
  // Once all workers have ended: what was born since was begun because of the stop, such as the
  // upload of a checkpoint, has the whole time, and gets no signal but SIGKILL.
  std::uint64_t spared_since_ = process::kNever;
  std::set<std::pair<pid_t, std::uint64_t>> told_;  // pid and start time, outside the groups
  TimePoint name_at_{};                             // max(): people were told for what we wait
  Duration pause_{};
  int swept_ = 0;  // processes that had left the groups
  bool asked_ = false, killed_ = false;
  Lifetime lifetime_;  // posted calls look whether we exist
};

}  // namespace elastrun::workers
