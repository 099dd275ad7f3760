// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/elastic_records.hpp"

#include "agent/verdict/failure_report.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "process/exit_status.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fmt/format.h>
#include <utility>

namespace elastrun::agent {
namespace {
namespace events = telemetry::events;

constexpr std::string_view kSimple = "SimpleElasticAgent";
constexpr std::string_view kLocal = "LocalElasticAgent";
// A --monitor-interval of nearly zero would keep the agent busy with looks.
constexpr Duration kShortestInterval = std::chrono::milliseconds(10);

/// torchelastic's error data of a failed worker, as JSON text.
std::string raw_error(const workers::Failure& failure) {
  if (failure.error_file && failure.error_file->understood) return failure.error_file->raw;
  json::object error;
  // torchelastic's data for a process that left no error file.
  error["message"] = "<NONE>";
  if (!failure.stopped_by_us) {
    error["errorTraits"] = {{"category", "system_terminated_error"}, {"retryability", "False"}};
  }
  return python_json(error);
}

const workers::Failure* failure_of(const JobResult& result, int local_rank) {
  if (!result.judgement) return nullptr;
  const auto& all = result.judgement->failures;
  const auto found = std::ranges::find(all, local_rank, &workers::Failure::local_rank);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

ElasticRecords::ElasticRecords(telemetry::Pipeline& pipeline, events::AgentFacts facts,
                               const spec::JobSpec& job, std::function<bool()> has_fifo)
    : pipeline_(pipeline),
      metrics_(pipeline),
      facts_(std::move(facts)),
      job_(job),
      has_fifo_(std::move(has_fifo)),
      restarts_left_(job.max_restarts),
      start_(pipeline.clock().now()) {}

void ElasticRecords::profile(std::string_view method, Duration took, bool success) {
  // By torchrun's classes: LocalElasticAgent has these three, its base the others.
  const auto owner = method.starts_with("_start_w") || method.starts_with("_stop") ||
                             method.starts_with("_monitor")
                         ? kLocal
                         : kSimple;
  if (!pipeline_.wants(telemetry::metrics::kDefaultGroup)) return;
  metrics_.put_profile(fmt::format("{}.{}", owner, method), success, took);
}

/// What torchrun puts after each look at its workers; ours has taken so long.
void ElasticRecords::pass(std::string_view state, Duration took) {
  if (!pipeline_.wants(telemetry::metrics::kDefaultGroup)) return;
  profile("_monitor_workers", took);
  metrics_.put(fmt::format("workers.{}.remaining_restarts", facts_.role), restarts_left_);
  metrics_.put(fmt::format("workers.{}.{}", facts_.role, state), 1);
}

/// Whether all of them are there, and how long it took to find that out.
std::pair<bool, Duration> ElasticRecords::look_at_workers() const {
  const auto begin = pipeline_.clock().now();
  // One that runs as another user is there as well.
  const bool all = std::ranges::all_of(
      running_, [](pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; });
  return {all, pipeline_.clock().now() - begin};
}

void ElasticRecords::wait_for_look() {
  // Each look wakes the agent, and what torchrun says of it is the same each time: only who wants
  // every sample gets that.
  if (!alarm_ || running_.empty() || !pipeline_.wants_each(telemetry::metrics::kDefaultGroup))
    return;
  const auto interval = std::max<Duration>(from_seconds(job_.monitor_interval), kShortestInterval);
  alarm_->arm(pipeline_.clock().now() + interval, [this] { look(); });
}

void ElasticRecords::look() {
  const auto [all, took] = look_at_workers();
  if (running_.empty() || !all) return;  // how they have ended is told when it is known
  const auto base = fmt::format("{}._monitor_workers", kLocal);
  put_each(base + ".success", std::int64_t{1});
  put_each(base + ".duration.ms", std::int64_t{took / std::chrono::milliseconds(1)});
  put_each(fmt::format("workers.{}.remaining_restarts", facts_.role), std::int64_t{restarts_left_});
  put_each(fmt::format("workers.{}.healthy", facts_.role), std::int64_t{1});
  wait_for_look();
}

void ElasticRecords::put_each(std::string name, telemetry::Value value) {
  telemetry::Record record;
  record.kind = telemetry::Record::Kind::Sample;
  record.stamp = {pipeline_.clock().now(), pipeline_.clock().wall()};
  record.scope = telemetry::metrics::kDefaultGroup;
  record.name = std::move(name);
  record.value = std::move(value);
  record.detail = telemetry::Detail::Each;
  pipeline_.emit(std::move(record));
}

void ElasticRecords::phase(Phase phase, TimePoint now) {
  if (phase == Phase::Joining) joining_since_ = now;
}

void ElasticRecords::round_ready(const rendezvous::Round& round, Duration waited) {
  joining_since_.reset();
  waited_ = waited;
  facts_.agent_restarts = round.attempt;
  restarts_left_ = round.restarts_left;
  events::record(pipeline_, events::agent_event("RENDEZVOUS", facts_, waited));
  // torch's agents exchange what they need for this by the store; here it has come with the round.
  const auto begin = pipeline_.clock().now();
  const auto before = facts_;  // torch tells of this without the rank of the group, too
  facts_.group_rank = round.group_rank;
  facts_.group_world_size = round.group_world_size();
  role_rank_base_ = round.role_rank_base;
  role_world_size_ = round.role_world_size;
  const auto took = pipeline_.clock().now() - begin;
  events::record(pipeline_, events::agent_event("ASSIGN_WORKER_RANKS", before, took));
  profile("_assign_worker_ranks", took);
  profile("_rendezvous", waited);
  // torch's agent starts one for each group, ours serves all of them by one FIFO; readers expect
  // the former.
  if (has_fifo_ && has_fifo_()) watchdog("watchdog started");
}

events::WorkerFacts ElasticRecords::facts_of(const workers::Worker& worker) const {
  events::WorkerFacts facts;
  facts.global_rank = worker.rank;
  facts.local_rank = worker.local_rank;
  facts.role_rank = role_rank_base_ + worker.local_rank;
  facts.role_world_size = role_world_size_;
  facts.pid = worker.pid;
  return facts;
}

void ElasticRecords::started(const rendezvous::Round&, const std::vector<workers::Worker>& group,
                             Duration took) {
  if (pipeline_.wants("torchelastic.worker")) {
    for (const auto& worker : group) {
      events::record(pipeline_, events::worker_event("START", facts_, facts_of(worker)));
    }
  }
  profile("_start_workers", took);
  profile("_initialize_workers", waited_ + took);
  if (restarting_) profile("_restart_workers", pipeline_.clock().now() - restart_began_);
  restarting_ = false;
  running_.clear();
  for (const auto& worker : group) running_.push_back(worker.pid);
  pass("healthy", look_at_workers().second);
  wait_for_look();
}

/// From the end of the first worker that has failed, which torchrun finds at its next look, until
/// that is judged.
void ElasticRecords::failed(const workers::Judgement& judgement) {
  const auto now = pipeline_.clock().now();
  auto first = now;
  for (const auto& failure : judgement.failures) first = std::min(first, failure.at);
  running_.clear();
  pass("failed", now - first);
}

void ElasticRecords::restarting(const rendezvous::Restart&) {
  restarting_ = true;
  restart_began_ = pipeline_.clock().now();
}

void ElasticRecords::stopped(const std::vector<workers::Worker>& group, Duration took) {
  running_.clear();
  const bool told = restarting_ || std::ranges::any_of(group, &workers::Worker::failed);
  if (told) profile("_stop_workers", took);
  if (has_fifo_ && has_fifo_()) watchdog("watchdog stopped");
}

void ElasticRecords::timer_expired(const ExpiredTimer& timer) {
  watchdog("timer expired", &timer);
}

void ElasticRecords::timer_killed(const ExpiredTimer& timer) {
  watchdog("kill worker process", &timer);
}

void ElasticRecords::watchdog(std::string_view event, const ExpiredTimer* timer) {
  std::vector<std::pair<std::string, std::string>> details;
  if (timer != nullptr) {
    details = {{"worker_pid", std::to_string(timer->pid)},
               {"scope_id", timer->scope},
               {"expiration_time", python_float(to_seconds(timer->expiry))},
               {"signal", std::to_string(timer->signal)}};
  }
  events::record(pipeline_, events::watchdog_event(event, facts_, details));
}

void ElasticRecords::end_of_workers(const JobResult& result,
                                    const std::vector<workers::Worker>& group) {
  for (const auto& worker : group) {
    auto facts = facts_of(worker);
    if (const auto* failure = failure_of(result, worker.local_rank)) {
      facts.exit_code = failure->status.as_python();
      events::record(pipeline_, events::worker_event("FAILED", facts_, facts, raw_error(*failure)));
    } else {
      const auto* state = result.succeeded() ? "SUCCEEDED" : "TERMINATED";
      events::record(pipeline_, events::worker_event(state, facts_, facts));
    }
  }
}

/// Where torchrun's agent would have ended by an exception: in its rendezvous, while it started the
/// workers, or while it watched them.
void ElasticRecords::raised(const JobResult& result, Duration took) {
  using Kind = Ending::Kind;
  const bool by_signal = result.ending.kind == Kind::Signalled;
  const auto error = by_signal ? signal_exception(result.ending.signal) : verdict_sentence(result);
  const auto now = pipeline_.clock().now();
  if (joining_since_) {
    const auto waited = now - *joining_since_;
    events::record(pipeline_, events::agent_event("RENDEZVOUS", facts_, waited, error));
    profile("_rendezvous", waited, false);
    profile("_initialize_workers", waited, false);
  } else if (result.ending.kind == Kind::NoStart) {
    profile("_start_workers", Duration::zero(), false);
    profile("_initialize_workers", waited_, false);
  }
  if (restarting_) profile("_restart_workers", now - restart_began_, false);
  profile("run", took, false);
  events::record(pipeline_, events::agent_event("FAILED", facts_, {}, error));
}

void ElasticRecords::ended(const JobResult& result,
                           const std::vector<workers::Worker>* last_group) {
  using Kind = Ending::Kind;
  const auto took = pipeline_.clock().now() - start_;
  facts_.total_run_time = took;
  facts_.agent_restarts = result.restarts;
  restarts_left_ = result.restarts_left;
  const auto kind = result.ending.kind;
  const bool returned = kind == Kind::Succeeded || kind == Kind::NotNeeded ||
                        kind == Kind::WorkersFailed || kind == Kind::JobFailed;
  if (!returned) return raised(result, took);
  const auto look_took = look_at_workers().second;
  running_.clear();
  if (result.succeeded()) pass("succeeded", look_took);
  if (last_group != nullptr && pipeline_.wants("torchelastic.worker")) {
    end_of_workers(result, *last_group);
  }
  telemetry::metrics::put_run(metrics_, {facts_.role, !result.succeeded(), restarts_left_,
                                         job_.max_restarts, result.restarts > 0});
  profile("run", took);
  events::record(pipeline_, events::agent_event("SUCCEEDED", facts_));
}

}  // namespace elastrun::agent
