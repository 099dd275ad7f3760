// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/clock.hpp"
#include "core/json.hpp"
#include "spec/job_spec.hpp"
#include "workers/message.hpp"

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Current job status as JSON: what observers hear, kept as long as it holds. Bounded, whatever
/// happens to the job.
class JobView final : public Observer {
 public:
  struct Sources {
    /// The workers of the group, or null.
    std::function<const std::vector<workers::Worker>*()> workers;
    /// Whether the workers' store is on this node.
    std::function<bool()> serves_store;
    /// Something has changed; may be empty.
    std::function<void()> changed;
    /// Where the time of the job goes, or null; may be empty.
    std::function<json::value()> goodput = {};
    /// The file with the result after the job, if it stays; may be empty.
    std::function<std::string()> report = {};
  };
  /// Borrows spec and clock.
  JobView(const spec::JobSpec& spec, Clock& clock, Sources sources);

  /// elastrun-protocol(7) tells what is in it.
  json::object status() const;
  std::string phase_name() const;
  bool is_over() const { return phase_ == Phase::Ended; }
  /// Its workers run, at this moment.
  bool is_ready() const { return phase_ == Phase::Running; }

  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::PhaseChanged& seen);
  void on(const moment::Progress& seen);
  void on(const moment::RoundReady& seen);
  void on(const moment::Started& seen);
  void on(const moment::Failed& seen);
  void on(const moment::Restarting& seen);
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }
  void on(const moment::WorkerSaid& seen);
  void on(const HeldSeen& seen);
  void on(const moment::Ended& seen);

 private:
  struct Steps {
    std::int64_t last = 0;
    TimePoint at{};
    std::int64_t base = 0;  // from which the rate is counted
    TimePoint base_at{};
    double rate = 0;  // per second
  };
  struct PastRestart {
    WallTime at;
    std::int64_t round = 0;
    rendezvous::Cause cause;
    bool spent = false;
    std::string role{};  // that alone restarted; empty: all
  };
  struct Metric {
    double value = 0;
    int rank = 0;         // the lowest one that tells it
    bool counts = false;  // a total of all ranks, over restarts
  };
  static constexpr std::size_t kKeptRestarts = 100;
  static constexpr std::size_t kKeptMetrics = 16;

  void step(int rank, std::int64_t number);
  void metric(int rank, const workers::MetricSample& sample);
  json::object job_json() const;
  json::value round_json() const;
  json::array workers_json() const;
  json::object worker_json(const workers::Worker& worker) const;
  json::object restarts_json() const;
  json::array metrics_json() const;
  void tell() const {
    if (sources_.changed) sources_.changed();
  }

  const spec::JobSpec& spec_;
  Clock& clock_;
  const Sources sources_;
  int restarts_left_;
  const TimePoint begun_;
  const WallTime begun_wall_;
  Phase phase_ = Phase::Joining;
  TimePoint phase_since_;
  std::string progress_, failure_;
  std::optional<rendezvous::Round> round_;
  Duration waited_{}, starting_{};
  std::map<int, Steps> steps_;                                     // by rank, of this round
  std::map<int, std::string> held_;                                // by rank, what holds it
  std::map<std::pair<std::string, std::string>, Metric> metrics_;  // by group and name
  std::deque<PastRestart> restarts_;
  std::int64_t restart_count_ = 0;
  int spent_ = 0;
  std::optional<int> failed_rank_;  // that failed last, and first of those that did
  std::optional<bool> succeeded_;   // once the job has ended
  json::array last_workers_;        // from then on; the group has gone
};

}  // namespace elastrun::agent
