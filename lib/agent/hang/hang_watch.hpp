// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/system_clock.hpp"
#include "files/blocking_calls.hpp"
#include "hangs/hang_rule.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "system/process_stacks.hpp"
#include "telemetry/registry.hpp"
#include "timer/watchdog.hpp"
#include "workers/message.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::agent {

/// Which processes of a group have offered their Python stacks, and how to ask for them.
class StackOffers {
 public:
  explicit StackOffers(std::size_t most = 4096) : most_(most) {}
  void heard(pid_t sender, const workers::StacksOffered& offer) {
    const auto process = process::read_process(sender);
    if (!process) return;
    // A script may fork without end: only processes that live keep their places.
    if (offers_.size() >= most_ && !offers_.contains(sender)) forget_ended();
    if (offers_.size() >= most_ && !offers_.contains(sender)) return;
    // With the start time: by then the number may be another process's.
    offers_.insert_or_assign(sender, Offer{offer, process->start_time});
  }
  /// None if it has not offered any, or is another process of the same number.
  std::optional<system::StackOffer> of(pid_t pid) const {
    const auto found = offers_.find(pid);
    if (found == offers_.end()) return std::nullopt;
    const auto process = process::read_process(pid);
    // A number that was given away since: that process has no handler, and the signal would end it.
    if (!process || process->start_time != found->second.start_time) return std::nullopt;
    return found->second.how;
  }
  /// All that have, the lowest pid first; they may have ended.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> pids;
    for (const auto& [pid, offer] : offers_) pids.push_back(pid);
    return pids;
  }
  /// Another group begins.
  void forget() { offers_.clear(), refused_ = 0; }

 private:
  struct Offer {
    system::StackOffer how;
    std::uint64_t start_time;  // of the process that made it: a pid may be given away
  };
  // A long round has many short-lived processes. Not at each offer that finds no room: that would
  // be a look at all of them each time.
  void forget_ended() {
    if (refused_++ % most_ != 0) return;
    std::erase_if(offers_, [this](const auto& one) { return !of(one.first); });
  }

  const std::size_t most_;
  std::size_t refused_ = 0;  // since those that have ended were looked for
  std::map<pid_t, Offer> offers_;
};

/// Takes the stacks of processes that hang, before they are ended: those of Python where the
/// process has offered them, else by py-spy(1) if that is installed, and what the kernel tells of
/// every thread. What does not answer in time is left out; the loop waits for nothing.
class HungStacks {
 public:
  using Stacks = std::map<pid_t, std::vector<std::string>>;  // lines, by pid
  using Then = std::function<void(Stacks)>;

  /// Of all processes together.
  static constexpr Duration kLimit = std::chrono::seconds(4);

  /// Borrows both.
  HungStacks(RunContext& run, const StackOffers& offers)
      : run_(run), offers_(offers), calls_(run.loop.get_executor()) {}
  ~HungStacks();
  HungStacks(const HungStacks&) = delete;
  HungStacks& operator=(const HungStacks&) = delete;

  /// `then` runs once on the loop, within kLimit, never inside this call.
  void take(const std::vector<pid_t>& hung, Then then);

 private:
  struct Job;
  void find_spy(const std::shared_ptr<Job>& job, std::vector<pid_t> pids);
  void spy(const std::shared_ptr<Job>& job, const std::string& path, pid_t pid);
  void done(const std::weak_ptr<Job>& job);
  void finish(const std::weak_ptr<Job>& job);

  RunContext& run_;
  const StackOffers& offers_;
  files::BlockingCalls calls_;
  std::list<std::shared_ptr<Job>> jobs_;
  Lifetime lifetime_;
};

/// What --hang-timeout says.
inline hangs::HangTimeout hang_timeout_of(const spec::JobSpec& spec) {
  using Kind = hangs::HangTimeout::Kind;
  if (spec.hang_auto) return {Kind::Auto, {}};
  return spec.hang_limit ? hangs::HangTimeout{Kind::Fixed, *spec.hang_limit} : hangs::HangTimeout();
}

/// Tells the rendezvous how the workers of this node get on, and does what --on-hang says when it
/// answers that the job hangs. Without --hang-timeout it wakes up once the pace of the steps is
/// known, and only tells. Takes the stacks of this node's workers when the rendezvous wants them,
/// and brings those of the whole job to processes of elastrunctl(1) on this machine.
class HangWatch final : public Observes<HangWatch> {
 public:
  static constexpr std::size_t kMostKept = 100;
  /// Borrows all.
  HangWatch(RunContext& run, rendezvous::Session& session, StackOffers& offers)
      : run_(run),
        session_(session),
        offers_(offers),
        hung_stacks_(run, offers),
        calls_(run.loop.get_executor()),
        dumps_limit_(run.clock.make_alarm()),
        awake_(run.clock),
        rule_(hang_timeout_of(run.spec)) {}

  /// Takes what the rendezvous says of stacks, and says whether it did.
  bool took(const rendezvous::Push& push);
  /// A process that belongs to no worker wants to know where the workers of the job stand.
  void asked();

  /// What a process of a worker said over its channel. All is progress of a kind.
  void heard(int rank, const workers::Message& message);
  /// The same for what says no more than that the worker lives.
  void wrote() {
    if (!rule_.is_running()) return;
    rule_.wrote(awake_.now());
    if (!told_ || told_->kind != hangs::NodeProgress::Kind::Stands) return;  // the next look tells
    note_progress();
  }
  /// Looks at the workers, not only when it is time to: tells if they have gone on.
  void look_now() {
    if (looks_) look();
  }
  /// Of this agent, which may have been a worker that was stopped or goes on.
  void child_signalled() {
    // SIGCHLD comes at each end of a child, too, of which a job may have thousands: the cheap
    // question first.
    if (!runs_ || (held_.empty() && !process::any_stopped_child())) return;
    if (looks_) return look();
    note_held();
    rule_.looked(!held_.empty(), awake_.now());
    tell();
  }
  /// The job hangs. Nothing if this node knows better by now.
  void hangs(const rendezvous::StacksReport& report);
  /// The last kMostKept so far.
  const std::vector<JobHang>& all() const { return hangs_; }

  using Observes::heard;
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady& seen) {
    round_ = seen.round;
    ++groups_;
    offers_.forget();  // pids of the last group may be given away by now
  }
  void on(const moment::Started& seen) {
    began_ = run_.clock.wall() - seen.took;
    pids_.clear();
    for (const auto& worker : seen.group) pids_[worker.rank] = worker.pid;
  }
  void on(const moment::Stopped&) { pids_.clear(); }
  void on(const moment::WorkerSaid& seen) { heard(seen.worker.rank, seen.said); }

 private:
  struct Subject {
    int rank = 0;
    pid_t worker = 0, process = 0;  // the process of that worker that knows most
  };
  struct Taking {
    std::int64_t id = 0;
    std::vector<Subject> subjects;
    std::optional<HungStacks::Stacks> stacks{};
    std::optional<std::vector<std::string>> dumps{};
    bool is_told = false;
  };
  std::vector<Subject> subjects() const;
  void take(const rendezvous::TakeStacks& order);
  void report(Taking& taking);
  void look();
  void look_again() {
    if (!alarm_) alarm_ = awake_.make_alarm();
    alarm_->arm(rule_.next_look(awake_.now()), [this] { look(); });
  }
  void heard_goodput(int rank, const workers::GoodputEntries& said);
  void begin_looking() {
    looks_ = true;
    tell();
    look_again();
  }
  void say_overdue(TimePoint now);
  std::string overdue_text() const;
  void tell();
  void note_progress();
  void moved();
  // Stacks take their time, in which a long step may have ended. Without steps a node that moves
  // tells nothing of a hang of those that count them; but it does not act on it, either.
  bool goes_on(bool speaks) const {
    using Kind = hangs::NodeProgress::Kind;
    if (!told_ || told_->kind == Kind::Stands) return false;
    return told_->kind == Kind::Excused || told_->by_steps || speaks;
  }
  void note_held();
  void set_held(std::map<int, std::string> held) {
    if (held == held_) return;
    held_ = std::move(held);
    run_.post(HeldSeen{held_});
  }
  void note_ended() {
    for (const auto& [rank, pid] : pids_) {
      if (has_ended(pid)) rule_.ended(rank, awake_.now());
    }
  }
  rendezvous::Cause cause_of(const JobHang& hang) const;

  bool has_ended(pid_t worker) const {
    const auto* one = run_.worker_of(worker);
    return one == nullptr || one->exit.has_value();
  }

  RunContext& run_;
  rendezvous::Session& session_;
  StackOffers& offers_;
  HungStacks hung_stacks_;
  files::BlockingCalls calls_;
  const std::unique_ptr<Alarm> dumps_limit_;
  WallTime began_;                     // the group
  std::optional<TimePoint> asked_at_;  // and not answered yet
  AwakeClock awake_;
  hangs::HangRule rule_;
  std::unique_ptr<Alarm> alarm_;
  std::optional<rendezvous::Round> round_;
  int groups_ = 0;
  std::map<int, pid_t> pids_;  // by rank
  TimePoint activity_ = TimePoint::min();
  TimePoint looked_;  // by awake_
  std::optional<hangs::NodeProgress> told_;
  std::vector<hangs::Excuses::Excuse> overdue_;  // as far as that was said
  std::map<int, std::string> held_, told_held_;  // ranks that are stopped or traced, and by what
  bool runs_ = false;                            // the group
  bool looks_ = false;                           // now and then
  bool hanging_ = false;                         // and that was said
  std::vector<JobHang> hangs_;
  const telemetry::Counter count_{{.name = "elastrun.hang.count",
                                   .unit = "{hang}",
                                   .help = "Hangs of the job.",
                                   .scope = std::string(kAgentScope)}};
};

/// The expiration timers of the workers of this node: hears their requests while a group runs, and
/// when a timer expires tells of it, takes the stack of the process, and then sends it the signal
/// that it asked for. What follows is that of any failure of a worker; the agent goes on.
class ExpirationTimers final : public Observes<ExpirationTimers>, private timer::Watchdog::Owner {
 public:
  static constexpr std::size_t kMostKept = 100;
  ExpirationTimers(RunContext& run, const StackOffers& offers)
      : run_(run),
        offers_(offers),
        awake_(run.clock),
        watchdog_(run.loop, awake_, *this),
        hung_stacks_(run, offers) {}

  /// Opens the FIFO for torch's clients if TORCHELASTIC_ENABLE_FILE_TIMER is 1 in the environment,
  /// at TORCHELASTIC_TIMER_FILE or in a new folder, which the guardian removes if this agent is
  /// killed. Without one, only a warning.
  void open_pipe();
  /// Removes it, by a thread: the guardian removes the folder if its file system does not answer.
  void close_pipe(files::BlockingCalls& files);
  /// For the workers' TORCHELASTIC_TIMER_FILE; empty: no FIFO.
  std::string pipe_path() const { return pipe_ ? pipe_->path() : std::string(); }

  /// What a process of a worker said over its channel.
  void heard(pid_t sender, const workers::TimerSet& timer);

  /// Adds what is known of a worker that a timer's signal has ended: the last timer counts.
  void explain(workers::Failure& failure) const {
    for (const auto& timer : expired_) {
      if (timer.worker_pid != failure.pid || !timer.reaped) continue;
      // The worker has ended otherwise than by this signal: the timer does not explain its end.
      if (timer.pid == failure.pid && !failure.status.by_signal(timer.signal)) continue;
      failure.expired_timer = timer.sentence();
      failure.stack = timer.stack;
    }
  }
  /// The timers that have expired so far, by attempt, the last kMostKept of them: those without a
  /// signal may do so as long as the job runs.
  const std::vector<ExpiredTimer>& expired() const { return expired_; }

  /// How long a worker has lived on after an expired timer that should have ended it, or a timer
  /// has been expired unnoticed: the longest of all. Nothing: all is well.
  std::optional<Duration> overdue() const {
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
  /// When a worker last set or released a timer by torch's FIFO; min(): not yet.
  TimePoint last_request() const { return last_request_; }

  using Observes::heard;
  // While a group is being stopped its workers save what they have; they are told how long that may
  // take by other means.
  void on(const moment::PhaseChanged& seen) {
    active_ = seen.phase == Phase::Starting || seen.phase == Phase::Running ||
              seen.phase == Phase::Settling;
    if (!active_) watchdog_.clear();
  }
  void on(const moment::RoundReady&) { ++group_; }

 private:
  void heard_line(std::string_view line);
  bool is_ours(pid_t process) const override { return run_.worker_of(process) != nullptr; }
  void read_waiting() override {
    run_.catch_up();
    if (pipe_) pipe_->catch_up();
  }
  void expired(std::vector<timer::ExpiredWorker> workers) override;
  ExpiredTimer tell(const timer::ExpiredWorker& expired, const timer::Expired& one);
  void stacks_taken(std::vector<ExpiredTimer> timers, const HungStacks::Stacks& stacks, int group);
  void reap(ExpiredTimer& timer);
  bool may_complain() { return complaints_++ < kMostComplaints; }

  static constexpr int kMostComplaints = 5;  // about requests, in the life of an agent

  RunContext& run_;
  const StackOffers& offers_;
  // While this process stands still it hears of no release, and workers may stand still, too.
  AwakeClock awake_;
  timer::Watchdog watchdog_;
  HungStacks hung_stacks_;
  std::unique_ptr<timer::RequestPipe> pipe_;
  bool active_ = false;  // a group runs
  int group_ = 0;        // how many have begun
  int complaints_ = 0;
  TimePoint last_request_ = TimePoint::min();
  std::vector<ExpiredTimer> expired_;
  // Without the scope of the timer as a label: a worker may make up as many as it likes.
  const telemetry::Counter count_{{.name = "elastrun.timer.expired",
                                   .unit = "{timer}",
                                   .help = "Expired timers of workers.",
                                   .scope = std::string(kAgentScope)}};
  const telemetry::Histogram overrun_{{.name = "elastrun.timer.overrun",
                                       .unit = "s",
                                       .help = "From the expiry of a timer until it was seen.",
                                       .scope = std::string(kAgentScope)}};
};

}  // namespace elastrun::agent
