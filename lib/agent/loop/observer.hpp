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
  virtual void phase(Phase /*phase*/, TimePoint /*now*/) {}
  /// A person who waits would like to know: who is missing, how long the last call lasts.
  virtual void progress(const std::string& /*text*/) {}
  virtual void round_ready(const rendezvous::Round& /*round*/, Duration /*waited*/) {}
  virtual void started(const rendezvous::Round& /*round*/,
                       const std::vector<workers::Worker>& /*group*/, Duration /*took*/) {}
  /// The first rank of the job has connected to the workers' store, if that is here; or all have.
  virtual void joined(bool /*all*/) {}
  /// Workers of this node failed; others may still fail while they are stopped.
  virtual void failed(const workers::Judgement& /*judgement*/) {}
  /// The group is stopped for this cause and will be started again.
  virtual void restarting(const rendezvous::Restart& /*order*/) {}
  /// The same of the nodes of another role alone; those here go on.
  virtual void role_restarting(const rendezvous::Restart& /*order*/) {}
  /// The group is gone.
  virtual void stopped(const std::vector<workers::Worker>& /*group*/, Duration /*took*/) {}
  virtual void timer_expired(const ExpiredTimer& /*timer*/) {}
  /// The process that had it was sent the signal that it asked for.
  virtual void timer_killed(const ExpiredTimer& /*timer*/) {}
  /// No worker of the job makes progress.
  virtual void hang(const JobHang& /*hang*/) {}
  /// What a worker says of its training: StepDone, CheckpointDone, PhaseEntered or GoodputEntries;
  /// MetricSample, but no SamplesTold; and Returned.
  virtual void worker_said(const workers::Worker& /*worker*/, const workers::Message& /*said*/) {}
  /// By what workers of this node are held: stopped, or in a debugger. All of them, by rank.
  virtual void held(const std::map<int, std::string>& /*ranks*/) {}
  virtual void ended(const JobResult& /*result*/, const std::vector<workers::Worker>* /*group*/) {}
};

/// Tells several observers, in order.
class Observers final : public Observer {
 public:
  void add(Observer* observer) { all_.push_back(observer); }
  void phase(Phase phase, TimePoint now) override { each(&Observer::phase, phase, now); }
  void progress(const std::string& text) override { each(&Observer::progress, text); }
  void round_ready(const rendezvous::Round& round, Duration waited) override {
    each(&Observer::round_ready, round, waited);
  }
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override {
    each(&Observer::started, round, group, took);
  }
  void joined(bool all) override { each(&Observer::joined, all); }
  void failed(const workers::Judgement& who) override { each(&Observer::failed, who); }
  void restarting(const rendezvous::Restart& order) override { each(&Observer::restarting, order); }
  void role_restarting(const rendezvous::Restart& order) override {
    each(&Observer::role_restarting, order);
  }
  void stopped(const std::vector<workers::Worker>& group, Duration took) override {
    each(&Observer::stopped, group, took);
  }
  void timer_expired(const ExpiredTimer& timer) override { each(&Observer::timer_expired, timer); }
  void timer_killed(const ExpiredTimer& timer) override { each(&Observer::timer_killed, timer); }
  void hang(const JobHang& hang) override { each(&Observer::hang, hang); }
  void worker_said(const workers::Worker& worker, const workers::Message& message) override {
    each(&Observer::worker_said, worker, message);
  }
  void held(const std::map<int, std::string>& ranks) override { each(&Observer::held, ranks); }
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override {
    each(&Observer::ended, result, last_group);
  }

 private:
  void each(auto moment, const auto&... facts) {
    for (auto* one : all_) (one->*moment)(facts...);
  }

  std::vector<Observer*> all_;
};

}  // namespace elastrun::agent
