// SPDX-License-Identifier: Apache-2.0
#include "agent/elastic_records.hpp"

#include "agent/verdict.hpp"
#include "core/json.hpp"
#include "process/exit_status.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {
namespace events = telemetry::events;

constexpr std::string_view kSimple = "SimpleElasticAgent";
constexpr std::string_view kLocal = "LocalElasticAgent";

/// torchelastic's error data of a failed worker, as JSON text.
std::string raw_error(const workers::Failure& failure) {
  if (failure.error_file && failure.error_file->understood) return failure.error_file->raw;
  json::object error;
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
                               int max_restarts)
    : pipeline_(pipeline),
      metrics_(pipeline),
      facts_(std::move(facts)),
      max_restarts_(max_restarts),
      start_(pipeline.clock().now()) {}

void ElasticRecords::profile(std::string_view method, Duration took) {
  const auto owner = method.starts_with("_start_w") || method.starts_with("_stop") ||
                             method.starts_with("_monitor")
                         ? kLocal
                         : kSimple;
  metrics_.put_profile(fmt::format("{}.{}", owner, method), true, took);
}

/// What torchrun puts after each look at its workers; we look when something happened.
void ElasticRecords::pass(std::string_view state) {
  profile("_monitor_workers", Duration::zero());
  metrics_.put(fmt::format("workers.{}.remaining_restarts", facts_.role),
               max_restarts_ - facts_.agent_restarts);
  metrics_.put(fmt::format("workers.{}.{}", facts_.role, state), 1);
}

void ElasticRecords::round_ready(const rendezvous::Round& round, Duration waited) {
  facts_.agent_restarts = round.attempt;
  events::record(pipeline_, events::agent_event("RENDEZVOUS", facts_, waited));
  events::record(pipeline_, events::agent_event("ASSIGN_WORKER_RANKS", facts_, Duration::zero()));
  profile("_assign_worker_ranks", Duration::zero());
  profile("_rendezvous", waited);
  facts_.group_rank = round.group_rank;
  facts_.group_world_size = round.group_world_size();
  role_rank_base_ = round.role_rank_base;
  role_world_size_ = round.role_world_size;
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
  profile("_initialize_workers", took);
  if (restarting_) profile("_restart_workers", pipeline_.clock().now() - restart_began_);
  restarting_ = false;
  pass("healthy");
}

void ElasticRecords::failed(const workers::Judgement&) {
  pass("failed");
}

void ElasticRecords::restarting(const rendezvous::Restart&) {
  restarting_ = true;
  restart_began_ = pipeline_.clock().now();
}

void ElasticRecords::stopped(const std::vector<workers::Worker>& group, Duration took) {
  const bool stopped = std::ranges::any_of(group, &workers::Worker::failed);
  if (stopped) profile("_stop_workers", took);
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

void ElasticRecords::ended(const JobResult& result,
                           const std::vector<workers::Worker>* last_group) {
  using Kind = Ending::Kind;
  const auto took = pipeline_.clock().now() - start_;
  facts_.total_run_time = took;
  facts_.agent_restarts = result.restarts;
  const auto kind = result.ending.kind;
  const bool returned = kind == Kind::Succeeded || kind == Kind::NotNeeded ||
                        kind == Kind::WorkersFailed || kind == Kind::JobFailed;
  if (!returned) {
    events::record(pipeline_, events::agent_event("FAILED", facts_, {}, verdict_sentence(result)));
    return;
  }
  if (result.succeeded()) pass("succeeded");
  if (last_group != nullptr && pipeline_.wants("torchelastic.worker")) {
    end_of_workers(result, *last_group);
  }
  telemetry::metrics::put_run(
      metrics_, {facts_.role, !result.succeeded(), max_restarts_ - result.restarts, max_restarts_});
  profile("run", took);
  events::record(pipeline_, events::agent_event("SUCCEEDED", facts_));
}

}  // namespace elastrun::agent
