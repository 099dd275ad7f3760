// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/hung_stacks.hpp"
#include "agent/loop/job_result.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/awake_clock.hpp"
#include "telemetry/registry.hpp"
#include "timer/watchdog.hpp"
#include "workers/message.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::agent {

/// The expiration timers of the workers of this node: hears their requests while a group runs, and
/// when a timer expires tells of it, takes the stack of the process, and then sends it the signal
/// that it asked for. What follows is that of any failure of a worker; the agent goes on.
class ExpirationTimers final : public Observer, private timer::Watchdog::Owner {
 public:
  static constexpr std::size_t kMostKept = 100;
  ExpirationTimers(RunContext& run, const StackOffers& offers);

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

  /// What is known of a worker that such a signal has ended.
  void explain(workers::Failure& failure) const;
  /// The timers that have expired so far, by attempt, the last kMostKept of them: those without a
  /// signal may do so as long as the job runs.
  const std::vector<ExpiredTimer>& expired() const { return expired_; }

  /// How long a worker has lived on after an expired timer that should have ended it, or a timer
  /// has been expired unnoticed: the longest of all. Nothing: all is well.
  std::optional<Duration> overdue() const;
  /// When a worker last set or released a timer by torch's FIFO; min(): not yet.
  TimePoint last_request() const { return last_request_; }

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady&) { ++group_; }

 private:
  void heard_line(std::string_view line);
  bool is_ours(pid_t process) const override { return run_.worker_of(process) != nullptr; }
  void read_waiting() override;
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
