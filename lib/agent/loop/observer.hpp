// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "agent/loop/node_policy.hpp"
#include "workers/group.hpp"
#include "workers/message.hpp"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace elastrun::agent {

/// Of everything that the agent tells of itself: events, spans and instruments.
inline constexpr std::string_view kAgentScope = "elastrun.agent";

/// The moments of an agent's run that are no facts of its policy. They borrow what they tell of.
namespace moment {

struct PhaseChanged {
  Phase phase;
  TimePoint now;
};
/// A person who waits would like to know: who is missing, how long the last call lasts.
struct Progress {
  const std::string& text;
};
struct RoundReady {
  const rendezvous::Round& round;
  Duration waited;
};
struct Started {
  const rendezvous::Round& round;
  const std::vector<workers::Worker>& group;
  Duration took;
};
/// The first rank of the job has connected to the workers' store, if that is here; or all have.
struct Joined {
  bool all;
};
/// Workers of this node failed; others may still fail while they are stopped.
struct Failed {
  const workers::Judgement& judgement;
};
/// The group is stopped for this cause and will be started again.
struct Restarting {
  const rendezvous::Restart& order;
};
/// The nodes of another role restart alone; those here go on.
struct RoleRestarting {
  const rendezvous::Restart& order;
};
/// The group is gone.
struct Stopped {
  const std::vector<workers::Worker>& group;
  Duration took;
};
/// A worker told of its training: StepDone, CheckpointDone, PhaseEntered, GoodputEntries or
/// MetricSample, but no SamplesTold; or that its script has Returned.
struct WorkerSaid {
  const workers::Worker& worker;
  const workers::Message& said;
};
struct Ended {
  const JobResult& result;
  const std::vector<workers::Worker>* group;  // null: none is left
};

}  // namespace moment

using Moment = std::variant<moment::PhaseChanged, moment::Progress, moment::RoundReady,
                            moment::Started, moment::Joined, moment::Failed, moment::Restarting,
                            moment::RoleRestarting, moment::Stopped, TimerExpired, TimerKilled,
                            HangSeen, moment::WorkerSaid, HeldSeen, moment::Ended>;

/// Hears what an agent does, as it does it: telemetry, ledger, status line. One way: an observer
/// can change nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void heard(const Moment& moment) = 0;
};

/// An observer with an overload of `on` for each moment of interest to it.
template <class Self>
class Observes : public Observer {
 public:
  void heard(const Moment& moment) override {
    const auto tell = [this](const auto& one) {
      if constexpr (requires(Self & self) { self.on(one); }) static_cast<Self*>(this)->on(one);
    };
    std::visit(tell, moment);
  }
};

/// Tells several observers, in order.
class Observers final : public Observer {
 public:
  /// Null: none is added.
  void add(Observer* observer) {
    if (observer != nullptr) all_.push_back(observer);
  }
  void heard(const Moment& moment) override {
    for (auto* one : all_) one->heard(moment);
  }

 private:
  std::vector<Observer*> all_;
};

}  // namespace elastrun::agent
