// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "goodput/account/job_account.hpp"
#include "goodput/ledger/ledger.hpp"
#include "hangs/stacks.hpp"
#include "process/launcher.hpp"
#include "rendezvous/membership/round.hpp"
#include "workers/diagnostics.hpp"

#include <algorithm>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Why a job could not begin. The exit code follows from `reason`: torchrun
/// ends with 1 whatever cannot be started, but what only turns out to be wrong with the value of an
/// option that it lacks may be told from that.
struct StartFailure {
  enum class Reason { Conditions, WrongOption };

  StartFailure(Error why, Reason what = Reason::Conditions) : error(std::move(why)), reason(what) {}
  bool operator==(const StartFailure&) const = default;

  Error error;
  Reason reason;
};

template <class T>
using Started = std::expected<T, StartFailure>;

/// How the job ended, as this agent sees it.
struct Ending {
  enum class Kind {
    Succeeded,
    WorkersFailed,   // workers of this node failed, and no restart was left
    JobFailed,       // somewhere else: a worker, a node, the rendezvous; see cause
    NotNeeded,       // a spare node, let go
    Signalled,       // we were told to end
    NoStart,         // the workers could not be started
    RendezvousLost,  // the coordinator is gone for good
    Stuck,           // a worker in uninterruptible sleep
    Preempted,       // asked to save and end; see why
    GuardianLost,    // the process that the user started was killed
  } kind = Kind::Succeeded;
  std::string why{};  // one sentence, if there is more to say than the kind
  rendezvous::Cause cause{};
  int signal = 0;
  bool requeue = false;  // the scheduler should start the job again

  bool is_everybodys_success() const { return kind == Kind::Succeeded && why.empty(); }
};

/// The one to blame for the end of a job. Text, report and exit code read this and nothing else, so
/// that they cannot name different ones.
struct Culprit {
  rendezvous::Cause cause;  // also when not a worker's fault: a lost node, a timeout
  /// The job named it, alike on every node. Else this node did, by what it knows at the end.
  bool agreed = false;
  /// It is the first of this node's judgement, so that its process and its output are known.
  bool ours = false;
  bool is_worker() const { return cause.kind == rendezvous::Cause::Kind::WorkerFailed; }
};

/// What the other nodes are told about a failure on node `node`, an id.
rendezvous::Cause cause_of(const workers::Failure& failure, const std::string& node);

/// Chosen once, at the end. None after a success, a signal, or where the cause is unknown: workers
/// that were stopped do not count. `judgement`: of this node's failures in the last round; `round`:
/// the last one. Pure.
std::optional<Culprit> choose_culprit(const Ending& ending,
                                      const std::optional<workers::Judgement>& judgement,
                                      const std::optional<rendezvous::Round>& round);

/// One start of the group and how it ended.
struct Attempt {
  std::int64_t round = 0;
  int number = 0;  // restarts spent before it
  WallTime started;
  Duration waited{};    // for its round, before that
  Duration ran{};       // until a worker failed, all had ended, or they were told to stop
  Duration stopping{};  // from then until nothing of the group was left
  std::optional<rendezvous::Cause> cause;  // why another followed; none: see the ending
  Duration delay{};                        // that the restart policy put before it
  std::vector<int> deaf;  // ranks that did not end in the time they had for it, and were killed
};

/// A restart of another role alone, which this node went on through.
struct RoleRestart {
  std::string role;
  WallTime at;
  rendezvous::Cause cause;
};

/// A timer of a worker that expired.
struct ExpiredTimer {
  int attempt = 0;  // index of the row in `attempts`
  int rank = -1, local_rank = -1;
  pid_t worker_pid = 0, pid = 0;  // the process that had it may be below the worker
  std::string scope;
  Duration after{};  // as it was asked for
  WallTime expiry;
  int signal = 0;                  // 0: it was not to be ended
  bool reaped = false;             // the signal was sent
  std::vector<std::string> stack;  // lines, taken before that
  /// "expired timer 'train.py#57' after 2.0 s"
  std::string sentence() const {
    const auto named = "timer '" + scope + "'";
    if (after <= Duration::zero()) return named + " had expired when it came";
    return "expired " + named + " after " + format_duration(after);
  }
};

/// A time in which no worker of the job made progress.
struct JobHang {
  int attempt = 0;  // index of the row in `attempts`
  WallTime at;      // when it was seen
  Duration standing{};
  hangs::JobStacks stacks;
  bool before_first_step = false;  // of which the limit takes account
};

/// What came of a preemption on this node.
struct PreemptionAccount {
  std::string why;
  WallTime asked, saved;  // saved: only if checkpoint is set, or is_saved
  bool is_saved = false;
  std::int64_t step = -1;        // the last that a worker here has done; -1: none told
  std::int64_t checkpoint = -1;  // that was saved then; -1: not told
  std::int64_t holds = -1;       // the last complete checkpoint, whenever it was saved
  std::string failure{};         // "rank 0 failed to save: it ended with exit code 1"
  std::optional<std::int64_t> lost() const {
    if (step < 0 || holds < 0) return std::nullopt;
    return std::max<std::int64_t>(step - holds, 0);
  }
};

/// PreemptionAccount::failure of workers that were still at it when their time was over.
constexpr std::string_view kUnfinishedSave = "the save was not finished in time";

/// How one worker of the last group ended.
struct WorkerEnd {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  std::optional<process::Exit> exit;  // none: not even SIGKILL could end it
  bool stopped_by_us = false;
};

/// What main turns into a report and an exit code.
struct JobResult {
  Ending ending;
  std::optional<workers::Judgement> judgement;  // failures of this node in the last round
  std::optional<rendezvous::Round> round;       // the last one; none: no round was ever complete
  std::optional<Culprit> culprit;               // what choose_culprit says of these three
  std::vector<Attempt> attempts;
  std::vector<WorkerEnd> workers;  // of the last group, by local rank; empty: none was started
  std::vector<pid_t> abandoned;    // workers that not even SIGKILL could end
  std::vector<ExpiredTimer> expired_timers;  // of all attempts, in order
  std::vector<JobHang> hangs;                // likewise
  goodput::Ledger::Summary goodput;
  std::vector<goodput::RestartPath> restart_paths;  // where the time of each restart went
  std::vector<goodput::WorkersStart> starts;        // what came of each start of the workers
  std::optional<PreemptionAccount> preemption;
  /// The ledger of the restart policy; null with torchrun's.
  std::shared_ptr<const rendezvous::RestartMemory> memory;
  int restarts = 0;       // spent by the whole job
  int restarts_left = 0;  // of --max-restarts, as the last decision has it
  static constexpr std::size_t kMostRoleRestarts = 64;
  std::vector<RoleRestart> role_restarts;  // the last ones
  void note_role_restart(RoleRestart one) {
    if (role_restarts.size() == kMostRoleRestarts) role_restarts.erase(role_restarts.begin());
    role_restarts.push_back(std::move(one));
  }
  int local_world_size = 0;
  WallTime started, finished;
  /// When the workers of other nodes have ended at the latest, which this node may serve.
  TimePoint store_needed_until{};
  std::string run_dir;  // log folder of this run; empty if none was made or it was removed
  bool succeeded() const {
    return ending.kind == Ending::Kind::Succeeded || ending.kind == Ending::Kind::NotNeeded;
  }
};

}  // namespace elastrun::agent
