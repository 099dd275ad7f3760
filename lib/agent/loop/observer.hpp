// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/node_policy.hpp"
#include "workers/group.hpp"
#include "workers/message.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::agent {

/// Of everything that the agent tells of itself: events, spans and instruments.
inline constexpr std::string_view kAgentScope = "elastrun.agent";

/// Hears what an agent does, as it does it: telemetry, ledger, status line. One way: an observer
/// can change nothing. Each call says one fact; what is not of interest is left empty.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void phase(Phase phase, TimePoint now) { (void)phase, (void)now; }
  /// A person who waits would like to know: who is missing, how long the last call lasts.
  virtual void progress(const std::string& text) { (void)text; }
  virtual void round_ready(const rendezvous::Round& round, Duration waited) {
    (void)round, (void)waited;
  }
  virtual void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
                       Duration took) {
    (void)round, (void)group, (void)took;
  }
  /// The first rank of the job has connected to the workers' store, if that is here; or all have.
  virtual void joined(bool all) { (void)all; }
  /// Workers of this node failed; others may still fail while they are stopped.
  virtual void failed(const workers::Judgement& judgement) { (void)judgement; }
  /// The group is stopped for this cause and will be started again.
  virtual void restarting(const rendezvous::Restart& order) { (void)order; }
  /// The same of the nodes of another role alone; those here go on.
  virtual void role_restarting(const rendezvous::Restart& order) { (void)order; }
  /// The group is gone.
  virtual void stopped(const std::vector<workers::Worker>& group, Duration took) {
    (void)group, (void)took;
  }
  virtual void timer_expired(const ExpiredTimer& timer) { (void)timer; }
  /// The process that had it was sent the signal that it asked for.
  virtual void timer_killed(const ExpiredTimer& timer) { (void)timer; }
  /// No worker of the job makes progress.
  virtual void hang(const JobHang& hang) { (void)hang; }
  /// What a worker says of its training: StepDone, CheckpointDone, PhaseEntered or GoodputEntries;
  /// MetricSample, but no SamplesTold; and Returned.
  virtual void worker_said(const workers::Worker& worker, const workers::Message& message) {
    (void)worker, (void)message;
  }
  /// By what workers of this node are held: stopped, or in a debugger. All of them, by rank.
  virtual void held(const std::map<int, std::string>& ranks) { (void)ranks; }
  virtual void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) {
    (void)result, (void)last_group;
  }
};

/// Tells several observers, in order.
class Observers final : public Observer {
 public:
  void add(Observer* observer) { all_.push_back(observer); }
  void phase(Phase phase, TimePoint now) override;
  void progress(const std::string& text) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void joined(bool all) override;
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void role_restarting(const rendezvous::Restart& order) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;
  void timer_expired(const ExpiredTimer& timer) override;
  void timer_killed(const ExpiredTimer& timer) override;
  void hang(const JobHang& hang) override;
  void worker_said(const workers::Worker& worker, const workers::Message& message) override;
  void held(const std::map<int, std::string>& ranks) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

 private:
  std::vector<Observer*> all_;
};

}  // namespace elastrun::agent
