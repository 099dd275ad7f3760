// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "core/awake_clock.hpp"
#include "hangs/hang_rule.hpp"
#include "rendezvous/membership/round.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/registry.hpp"
#include "workers/message.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace elastrun::agent {

/// Tells the rendezvous how the workers of this node get on, and does what --on-hang says when it
/// answers that the job hangs. Without --hang-timeout it wakes up once the pace of the steps is
/// known, and only tells.
class HangWatch final : public Observer {
 public:
  static constexpr std::size_t kMostKept = 100;
  HangWatch(RunContext& run, rendezvous::Session& session);

  /// What a process of a worker said over its channel. All is progress of a kind.
  void heard(int rank, const workers::Message& message);
  /// The same for what says no more than that the worker lives.
  void wrote();
  /// Looks at the workers, not only when it is time to: tells if they have gone on.
  void look_now() {
    if (looks_) look();
  }
  /// Of this agent, which may have been a worker that was stopped or goes on.
  void child_signalled();
  /// The job hangs. Nothing if this node knows better by now.
  void hangs(const rendezvous::StacksReport& report);
  /// The last kMostKept so far.
  const std::vector<JobHang>& all() const { return hangs_; }

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::PhaseChanged& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::WorkerSaid& seen) { heard(seen.worker.rank, seen.said); }

 private:
  void look();
  void look_again();
  void heard_goodput(int rank, const workers::GoodputEntries& said);
  void begin_looking();
  void say_overdue(TimePoint now);
  std::string overdue_text() const;
  void tell();
  void note_progress();
  void moved();
  bool goes_on(bool speaks) const;
  void note_held();
  void set_held(std::map<int, std::string> held);
  void note_ended();
  rendezvous::Cause cause_of(const JobHang& hang) const;

  bool has_ended(pid_t worker) const;

  RunContext& run_;
  rendezvous::Session& session_;
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

/// What --hang-timeout says.
hangs::HangTimeout hang_timeout_of(const spec::JobSpec& spec);

}  // namespace elastrun::agent
