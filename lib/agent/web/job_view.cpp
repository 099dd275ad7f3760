// SPDX-License-Identifier: Apache-2.0
#include "agent/web/job_view.hpp"

#include "core/host.hpp"
#include "core/text.hpp"
#include "goodput/account/restart_log.hpp"
#include "net/endpoint.hpp"

#include <cmath>
#include <fmt/format.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

/// Over how long the rate of steps is counted.
constexpr Duration kRateOver = std::chrono::seconds(10);

std::string_view state_of(const workers::Worker& worker) {
  if (worker.abandoned) return "abandoned";
  if (!worker.exit) return worker.returned ? "returned" : "running";
  if (worker.succeeded()) return "succeeded";
  return worker.stopped_by_us ? "stopped" : "failed";
}

}  // namespace

JobView::JobView(const spec::JobSpec& spec, Clock& clock, Sources sources)
    : spec_(spec),
      clock_(clock),
      sources_(std::move(sources)),
      restarts_left_(spec.max_restarts),
      begun_(clock.now()),
      begun_wall_(clock.wall()),
      phase_since_(begun_) {}

std::string JobView::phase_name() const {
  return std::string(goodput::phase_name(phase_));
}

json::object JobView::job_json() const {
  return {{"run_id", spec_.run_id},
          {"name", spec_.name},
          {"script", spec_.script},
          {"role", spec_.role},
          {"min_nodes", spec_.min_nodes},
          {"max_nodes", spec_.max_nodes},
          {"nproc_per_node", spec_.nproc_per_node},
          {"max_restarts", spec_.max_restarts}};
}

json::value JobView::round_json() const {
  if (!round_) return nullptr;
  return {{"number", round_->number},
          {"attempt", round_->attempt},
          {"nodes", round_->group_world_size()},
          {"group_rank", round_->group_rank},
          {"world_size", round_->world_size},
          {"waited_s", to_seconds(waited_)},
          {"starting_s", to_seconds(starting_)}};
}

json::object JobView::worker_json(const workers::Worker& worker) const {
  const auto held = held_.find(worker.rank);
  const auto found = steps_.find(worker.rank);
  json::value step, age, rate;
  if (found != steps_.end()) {
    const auto& steps = found->second;
    const double passed = to_seconds(clock_.now() - steps.at);
    step = steps.last, age = passed;
    // One that stands still has not the pace of before.
    rate = steps.rate * passed > 1 ? 1 / passed : steps.rate;
  }
  return {{"rank", worker.rank},
          {"local_rank", worker.local_rank},
          {"pid", worker.pid},
          {"state", state_of(worker)},
          {"end", worker.exit ? json::value(worker.exit->status.text()) : nullptr},
          {"held", held != held_.end() ? json::value(held->second) : nullptr},
          {"step", std::move(step)},
          {"step_age_s", std::move(age)},
          {"steps_per_s", std::move(rate)}};
}

json::array JobView::workers_json() const {
  const auto* workers = sources_.workers();
  if (workers == nullptr) return last_workers_;
  json::array all;
  for (const auto& worker : *workers) all.push_back(worker_json(worker));
  return all;
}

json::object JobView::restarts_json() const {
  json::array latest;
  for (const auto& one : restarts_) {
    json::object text{{"text", printable(one.cause.text)},
                      {"node", one.cause.node},
                      {"rank", one.cause.rank >= 0 ? json::value(one.cause.rank) : nullptr},
                      {"at", to_seconds(one.at)},
                      {"round", one.round},
                      {"spent", one.spent}};
    if (!one.role.empty()) text["role"] = one.role;
    latest.push_back(std::move(text));
  }
  return {{"count", restart_count_},
          {"spent", spent_},
          {"left", restarts_left_},
          {"limit", spec_.max_restarts},
          {"latest", std::move(latest)}};
}

json::array JobView::metrics_json() const {
  json::array all;
  for (const auto& [name, metric] : metrics_) {
    all.push_back({{"group", printable(name.first)},
                   {"name", printable(name.second)},
                   // JSON has no NaN and no infinity (RFC 8259, section 6); a browser would refuse
                   // the whole text.
                   {"value", std::isfinite(metric.value) ? json::value(metric.value) : nullptr},
                   {"rank", metric.counts ? json::value(nullptr) : json::value(metric.rank)}});
  }
  return all;
}

json::object JobView::status() const {
  const auto now = clock_.now();
  json::object store{{"rendezvous", spec_.rdzv_backend}, {"workers", nullptr}};
  if (round_) {
    store["workers"] = net::format_endpoint(round_->master_addr, round_->master_port);
    store["served_here"] = sources_.serves_store();
  }
  const auto report = succeeded_ && sources_.report ? sources_.report() : std::string();
  return {{"job", job_json()},
          {"node", {{"host", host_name()}, {"pid", ::getpid()}}},
          {"started", to_seconds(begun_wall_)},
          {"now", to_seconds(clock_.wall())},
          {"uptime_s", to_seconds(now - begun_)},
          {"phase", phase_name()},
          {"phase_text", phase_text(phase_)},
          {"phase_s", to_seconds(now - phase_since_)},
          {"progress", progress_},
          {"round", round_json()},
          {"store", std::move(store)},
          {"workers", workers_json()},
          {"restarts", restarts_json()},
          {"goodput", sources_.goodput ? sources_.goodput() : nullptr},
          {"metrics", metrics_json()},
          {"failure", text_or_null(failure_)},
          {"failed_rank", or_null(failed_rank_)},
          {"succeeded", or_null(succeeded_)},
          {"report", text_or_null(printable(report))}};
}

void JobView::on(const moment::WorkerSaid& seen) {
  if (const auto number = workers::step_of(seen.said)) step(seen.worker.rank, *number);
  const auto* sample = std::get_if<workers::MetricSample>(&seen.said);
  if (sample != nullptr) metric(seen.worker.rank, *sample);
}

void JobView::step(int rank, std::int64_t number) {
  const auto now = clock_.now();
  auto [place, is_new] = steps_.try_emplace(rank);
  auto& steps = place->second;
  // Steps that go back were resumed: a rate over both parts would be wrong.
  if (is_new || number < steps.last) {
    steps = {number, now, number, now};
    return;
  }
  steps.last = number;
  steps.at = now;
  const auto passed = now - steps.base_at;
  // Over a few milliseconds the rate would jump.
  if (passed > std::chrono::milliseconds(200) || steps.rate == 0) {
    const double seconds = to_seconds(passed);
    if (seconds > 0) steps.rate = static_cast<double>(number - steps.base) / seconds;
  }
  if (passed < kRateOver) return;
  steps.base = number;
  steps.base_at = now;
}

void JobView::metric(int rank, const workers::MetricSample& sample) {
  const std::pair name(sample.group, sample.name);
  // The names are the workers': their number must not grow with the job.
  if (metrics_.size() >= kKeptMetrics && !metrics_.contains(name)) return;
  auto [place, is_new] = metrics_.try_emplace(name);
  auto& metric = place->second;
  metric.counts = sample.counts;
  if (sample.counts) {
    metric.value += sample.value;
  } else if (is_new || rank <= metric.rank) {
    // Of several ranks that tell a gauge, the lowest one's value: the chart would jump otherwise.
    metric.value = sample.value;
    metric.rank = rank;
  }
}

void JobView::on(const moment::PhaseChanged& seen) {
  phase_ = seen.phase;
  phase_since_ = seen.now;
  if (seen.phase == Phase::Running) progress_.clear();
  tell();
}

void JobView::on(const moment::Progress& seen) {
  progress_ = seen.text;
  tell();
}

void JobView::on(const moment::RoundReady& seen) {
  round_ = seen.round;
  waited_ = seen.waited;
  // A rank may be another process on another machine now, of whose pace nothing is known.
  steps_.clear();
  // Counters go on: a total must not fall because workers were restarted.
  std::erase_if(metrics_, [](const auto& one) { return !one.second.counts; });
  progress_.clear();
  tell();
}

void JobView::on(const moment::Started& seen) {
  starting_ = seen.took;
  tell();
}

void JobView::on(const moment::Failed& seen) {
  const auto& first = seen.judgement.first();
  failure_ = printable(fmt::format("rank {} {}", first.rank, workers::what_happened(first)));
  failed_rank_ = first.rank;
  tell();
}

void JobView::on(const moment::Restarting& seen) {
  ++restart_count_;
  if (seen.order.attempt_spent) ++spent_;
  restarts_left_ = seen.order.restarts_left;
  restarts_.push_back({clock_.wall(), round_ ? round_->number : 0, seen.order.cause,
                       seen.order.attempt_spent, seen.order.role});
  if (restarts_.size() > kKeptRestarts) restarts_.pop_front();
  tell();
}

void JobView::on(const HeldSeen& seen) {
  held_ = seen.ranks;
  tell();
}

void JobView::on(const moment::Ended& seen) {
  succeeded_ = seen.result.ending.kind == Ending::Kind::Succeeded;
  // Now, because the group, of which later questions would read, goes with the run.
  last_workers_ = workers_json();
  tell();
}

}  // namespace elastrun::agent
