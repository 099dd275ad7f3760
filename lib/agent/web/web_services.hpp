// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/hang_watch.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "agent/telemetry/run_telemetry.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "workers/message.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Current job status as JSON: what observers hear, kept as long as it holds. Bounded, whatever
/// happens to the job.
class JobView final : public Observes<JobView> {
 public:
  /// Borrows both.
  JobView(RunContext& run, const RoundStore& store)
      : run_(run),
        store_(store),
        restarts_left_(run.spec.max_restarts),
        begun_(run.clock.now()),
        begun_wall_(run.clock.wall()),
        phase_since_(begun_) {}

  /// elastrun-protocol(7) tells what is in it. `goodput`: where the time of the job goes, or null.
  json::object status(json::value goodput) const;
  std::string phase_name() const { return std::string(goodput::phase_name(phase_)); }
  bool is_over() const { return phase_ == Phase::Ended; }
  /// Its workers run, at this moment.
  bool is_ready() const { return phase_ == Phase::Running; }

  void on(const moment::PhaseChanged& seen) {
    phase_ = seen.phase;
    phase_since_ = seen.now;
    if (seen.phase == Phase::Running) progress_.clear();
  }
  void on(const moment::Progress& seen) { progress_ = seen.text; }
  void on(const moment::RoundReady& seen) {
    round_ = seen.round;
    waited_ = seen.waited;
    // A rank may be another process on another machine now, of whose pace nothing is known.
    steps_.clear();
    // Counters go on: a total must not fall because workers were restarted.
    std::erase_if(metrics_, [](const auto& one) { return !one.second.counts; });
    progress_.clear();
  }
  void on(const moment::Started& seen) { starting_ = seen.took; }
  void on(const moment::Failed& seen) {
    const auto& first = seen.judgement.first();
    failure_ = printable(fmt::format("rank {} {}", first.rank, workers::what_happened(first)));
    failed_rank_ = first.rank;
  }
  void on(const moment::Restarting& seen) {
    ++restart_count_;
    if (seen.order.attempt_spent) ++spent_;
    restarts_left_ = seen.order.restarts_left;
    restarts_.push_back({run_.clock.wall(), round_ ? round_->number : 0, seen.order.cause,
                         seen.order.attempt_spent, seen.order.role});
    if (restarts_.size() > kKeptRestarts) restarts_.pop_front();
  }
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }
  void on(const moment::WorkerSaid& seen) {
    if (const auto number = workers::step_of(seen.said)) step(seen.worker.rank, *number);
    const auto* sample = std::get_if<workers::MetricSample>(&seen.said);
    if (sample != nullptr) metric(seen.worker.rank, *sample);
  }
  void on(const HeldSeen& seen) { held_ = seen.ranks; }
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
  json::object job_json() const {
    return {{"run_id", run_.spec.run_id},
            {"name", run_.spec.name},
            {"script", run_.spec.script},
            {"role", run_.spec.role},
            {"min_nodes", run_.spec.min_nodes},
            {"max_nodes", run_.spec.max_nodes},
            {"nproc_per_node", run_.spec.nproc_per_node},
            {"max_restarts", run_.spec.max_restarts}};
  }
  json::value round_json() const {
    if (!round_) return nullptr;
    return {{"number", round_->number},
            {"attempt", round_->attempt},
            {"nodes", round_->group_world_size()},
            {"group_rank", round_->group_rank},
            {"world_size", round_->world_size},
            {"waited_s", to_seconds(waited_)},
            {"starting_s", to_seconds(starting_)}};
  }
  json::array workers_json() const {
    const auto* group = run_.workers();
    if (group == nullptr) return last_workers_;
    json::array all;
    for (const auto& worker : *group) all.push_back(worker_json(worker));
    return all;
  }
  json::object worker_json(const workers::Worker& worker) const;
  json::object restarts_json() const;
  json::array metrics_json() const;
  RunContext& run_;
  const RoundStore& store_;
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

/// A page that costs the loop time: requests soon after another get the same one, so that
/// rendering takes at most a tenth of the loop's time, however many ask. Pure.
class RenderedPage {
 public:
  static constexpr Duration kOldest = std::chrono::seconds(5);  // less than scrapers' intervals

  bool is_fresh(TimePoint now) const { return now < fresh_until_; }
  const std::string& text() const { return text_; }
  void put(std::string text, TimePoint begun, TimePoint done) {
    text_ = std::move(text);
    fresh_until_ = done + std::min(9 * (done - begun), kOldest);
  }

 private:
  std::string text_;
  TimePoint fresh_until_ = TimePoint::min();
};

/// The values of the page's charts since the job began, so that a page shows them whenever it is
/// opened. A point for each stretch of time; at kPoints every second one goes, and stretches become
/// twice as long: a job of weeks takes no more memory than one of minutes. Pure.
class JobHistory {
 public:
  using Values = std::vector<std::pair<std::string, double>>;
  static constexpr std::size_t kPoints = 240;
  static constexpr std::size_t kSeries = 32;  // names; the values of others are left out
  static constexpr Duration kFirstStretch = std::chrono::seconds(2);

  Duration stretch() const { return stretch_; }
  /// Left out while the stretch of the last point lasts.
  void add(TimePoint now, WallTime at, const Values& values);
  /// {"at": [seconds since the epoch, ...], "series": {NAME: [value or null, ...], ...}}
  json::object text() const;

 private:
  struct Point {
    TimePoint time;
    WallTime at;
    std::vector<double> values;  // by index in names_, shorter where names came later; NaN: none
  };
  std::size_t index_of(const std::string& name) {
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    // The names are the workers', and a script may invent one at each step.
    if (names_.size() == kSeries) return kSeries;
    names_.push_back(name);
    return names_.size() - 1;
  }

  Duration stretch_ = kFirstStretch;
  std::vector<std::string> names_;
  std::deque<Point> points_;
};

/// What tells whether an agent lives, at one moment.
struct Vitals {
  Duration since_beat{};              // of the loop
  std::optional<Duration> overdue{};  // how long a timer of a worker has been over without effect
  std::string phase;
};

/// Past this the answer is that the agent hangs: torch's limit for its health check.
constexpr Duration kHealthLimit = std::chrono::seconds(60);

/// An empty list: it is well; else sentences. Pure. A job that fails, restarts, or ends does not
/// make its agent ill, which knows what it does: a supervisor that ended it then would do harm.
std::vector<std::string> ailments(const Vitals& vitals);
/// For people and programs: "status" is "ok" or "failing", "why" what ails it.
json::object health_json(const Vitals& vitals);

/// The heartbeat of a loop, which goes on as long as the loop turns. Not by an AwakeClock, which
/// leaves out just what is looked for here; CLOCK_MONOTONIC does not count a suspended machine.
class LoopBeat {
 public:
  explicit LoopBeat(Clock& clock) : clock_(clock), alarm_(clock.make_alarm()) { beat(); }
  Duration since() const { return clock_.now() - last_; }

 private:
  // A small part of kHealthLimit, so that a single late beat does not make a node unhealthy.
  static constexpr Duration kBeat = std::chrono::seconds(5);
  // An alarm of the loop itself: one that hangs cannot say that it does, but misses its beat.
  void beat() {
    last_ = clock_.now();
    alarm_->arm(last_ + kBeat, [this] { beat(); });
  }
  Clock& clock_;
  TimePoint last_;
  std::unique_ptr<Alarm> alarm_;
};

/// lib/agent/web/page.html: one file with style and script, which asks for nothing else.
std::string_view page_html();

/// What an agent serves over HTTP, with all it takes. With --http: `/` a page that shows the job
/// and changes by itself, `/status` the same as JSON, `/events` what the page listens to,
/// `/metrics` for Prometheus, `/healthz`, `/readyz`. Read-only. Without a client only the points of
/// the history are collected. And with TORCHELASTIC_HEALTH_CHECK_PORT a server of which each path
/// answers as `/healthz` does, on all addresses, since a supervisor asks from outside; it lives as
/// long as the agent, torch's own only while workers run.
///
/// Listens from now on, if anything is asked for; else null. Fails with Io where --http cannot, and
/// says whose the port is; a health check that cannot is only warned of. Borrows all.
Result<std::unique_ptr<Observer>> start_web_services(RunContext& run, RunTelemetry& telemetry,
                                                     ExpirationTimers& timers,
                                                     const RoundStore& store);

}  // namespace elastrun::agent
