// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/job_records.hpp"

#include "agent/goodput/goodput_account.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/host.hpp"
#include "core/text.hpp"
#include "goodput/account/restart_log.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "workers/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using telemetry::Attribute;
using telemetry::Value;
using Attributes = std::vector<Attribute>;

Value whole(std::int64_t number) {
  return number;
}

/// "exit_code" or "signal", whichever it was; neither for a process that could not be ended.
void add_exit(Attributes& attributes, const std::optional<process::Exit>& exit) {
  if (!exit) return;
  const bool exited = exit->status.how == process::ExitStatus::How::Exited;
  if (exited) attributes.emplace_back("exit_code", whole(exit->status.number));
  if (!exited) attributes.emplace_back("signal", process::signal_name(exit->status.number));
  // The record is written when all of the group have gone, which may be a grace later.
  attributes.emplace_back("ended", to_seconds(exit->wall));
  attributes.emplace_back("peak_rss_bytes", exit->peak_rss_bytes);
}

/// What the restart policy went by, so that `elastrunctl goodput what-if --policy` can ask another.
void add_policy(Attributes& attributes, const rendezvous::Cause& cause) {
  if (const auto what = rendezvous::class_of(cause)) {
    attributes.emplace_back("class", std::string(spec::cause_class_name(*what)));
  }
  if (!cause.fingerprint.empty()) attributes.emplace_back("fingerprint", cause.fingerprint);
  if (cause.kind == rendezvous::Cause::Kind::WorkerFailed && cause.exit_code != 0)
    attributes.emplace_back("exit_code", whole(cause.exit_code));
  if (cause.step >= 0) attributes.emplace_back("step", cause.step);
  if (cause.checkpoint >= 0) attributes.emplace_back("checkpoint", cause.checkpoint);
  if (!cause.rule.empty()) attributes.emplace_back("rule", cause.rule);
}

Attributes worker_attributes(const workers::Worker& worker) {
  return {{"rank", whole(worker.rank)},
          {"local_rank", whole(worker.local_rank)},
          {"pid", whole(worker.pid)}};
}

std::vector<telemetry::Attribute> facts_of(const ExpiredTimer& timer) {
  return {{"rank", whole(timer.rank)},
          {"local_rank", whole(timer.local_rank)},
          {"pid", whole(timer.pid)},
          {"scope", timer.scope},
          {"after_s", to_seconds(timer.after)},
          {"signal", whole(timer.signal)}};
}

}  // namespace

void JobRecords::tell(std::string_view name, Attributes attributes) {
  pipeline_.event(std::string(kScope), std::string(name), std::move(attributes));
}

void JobRecords::begin(Duration since_start) {
  if (!pipeline_.wants(kScope)) return;
  // With how long before this record the agent began: without that the account of a report would
  // have a shorter start than the live one.
  tell("job.started", {{"format", whole(1)},
                       {"run_id", job_.run_id},
                       {"job_name", job_.name},
                       {"entry_point", workers::entry_name(job_)},
                       {"host", host_name()},
                       {"pid", whole(::getpid())},
                       {"min_nodes", whole(job_.min_nodes)},
                       {"max_nodes", whole(job_.max_nodes)},
                       {"nproc_per_node", whole(job_.nproc_per_node)},
                       {"max_restarts", whole(job_.max_restarts)},
                       {"rdzv_backend", job_.rdzv_backend},
                       {"role", job_.role},
                       {"since_start_s", to_seconds(since_start)}});
}

void JobRecords::on(const moment::PhaseChanged& seen) {
  phase_since_ = seen.now;
  tell("phase", {{"phase", std::string(goodput::phase_name(seen.phase))}});
}

void JobRecords::on(const moment::Progress& seen) {
  tell("rendezvous.progress", {{"text", seen.text}});
}

void JobRecords::on(const moment::RoundReady& seen) {
  tell("rendezvous.round", {{"round", seen.round.number},
                            {"epoch", seen.round.epoch},
                            {"attempt", whole(seen.round.attempt)},
                            {"group_rank", whole(seen.round.group_rank)},
                            {"group_world_size", whole(seen.round.group_world_size())},
                            {"rank_base", whole(seen.round.rank_base)},
                            {"world_size", whole(seen.round.world_size)},
                            {"master_addr", seen.round.master_addr},
                            {"master_port", whole(seen.round.master_port)},
                            {"waited_s", to_seconds(seen.waited)}});
}

void JobRecords::on(const moment::Started& seen) {
  for (const auto& worker : seen.group) tell("worker.started", worker_attributes(worker));
  tell("group.started", {{"round", seen.round.number},
                         {"attempt", whole(seen.round.attempt)},
                         {"workers", whole(static_cast<std::int64_t>(seen.group.size()))},
                         {"took_s", to_seconds(seen.took)}});
}

void JobRecords::on(const moment::Joined& seen) {
  tell(seen.all ? "ranks.connected" : "ranks.connecting", {});
}

void JobRecords::on(const moment::Failed& seen) {
  const auto& first = seen.judgement.first();
  Attributes attributes{
      {"rank", whole(first.rank)},
      {"local_rank", whole(first.local_rank)},
      {"pid", whole(first.pid)},
      {"what", workers::what_happened(first)},
      {"failures", whole(static_cast<std::int64_t>(seen.judgement.failures.size()))},
      {"noticed_after_s", to_seconds(phase_since_ - first.at)}};
  if (const auto exit = workers::exit_time(first)) {
    attributes.emplace_back("exit_s", to_seconds(*exit));
  }
  tell("group.failed", std::move(attributes));
}

// By another name: this node has no downtime, which readers of a journal take from `restart`.
void JobRecords::tell_restart(std::string_view name, const rendezvous::Restart& order) {
  const auto& cause = order.cause;
  // `failure` beside `attempt_spent`: a node that is lost counts as a failure in the account,
  // though it costs no restart.
  Attributes attributes{{"cause", cause.text},
                        {"attempt_spent", order.attempt_spent},
                        {"failure", is_failure(cause)},
                        {"restarts_left", whole(order.restarts_left)}};
  if (!order.role.empty()) attributes.emplace_back("role", order.role);
  if (!cause.node.empty()) attributes.emplace_back("node", cause.node);
  if (cause.rank >= 0) attributes.emplace_back("rank", whole(cause.rank));
  add_policy(attributes, cause);
  if (order.delay > Duration::zero()) attributes.emplace_back("delay_s", to_seconds(order.delay));
  tell(name, std::move(attributes));
}

void JobRecords::on(const moment::Stopped& seen) {
  for (const auto& worker : seen.group) {
    auto attributes = worker_attributes(worker);
    add_exit(attributes, worker.exit);
    if (worker.stopped_by_us) attributes.emplace_back("stopped_by_us", true);
    if (worker.abandoned) attributes.emplace_back("abandoned", true);
    tell("worker.ended", std::move(attributes));
  }
  tell("group.gone", {{"took_s", to_seconds(seen.took)}});
}

void JobRecords::on(const TimerExpired& seen) {
  tell("timer.expired", facts_of(*seen.timer));
}

void JobRecords::on(const TimerKilled& seen) {
  auto attributes = facts_of(*seen.timer);
  attributes.emplace_back("stack", join(seen.timer->stack, "\n"));
  tell("timer.killed", std::move(attributes));
}

void JobRecords::on(const HangSeen& seen) {
  const auto culprits = hangs::culprits_of(seen.hang->stacks);
  Attributes attributes{
      {"text", hangs::hang_text(seen.hang->stacks)},
      {"standing_s", to_seconds(seen.hang->standing)},
      {"groups", whole(static_cast<std::int64_t>(seen.hang->stacks.groups.size()))}};
  if (!culprits.empty()) attributes.emplace_back("culprits", hangs::ranks_text(culprits));
  if (!seen.hang->stacks.dumps.empty())
    attributes.emplace_back("dumps", join(seen.hang->stacks.dumps, "\n"));
  tell("job.hang", std::move(attributes));
}

void JobRecords::on(const moment::Ended& seen) {
  Attributes attributes{{"ending", std::string(ending_name(seen.result.ending.kind))},
                        {"succeeded", seen.result.succeeded()},
                        {"verdict", verdict_sentence(seen.result)},
                        {"restarts", whole(seen.result.restarts)},
                        {"restarts_left", whole(seen.result.restarts_left)},
                        {"max_restarts", whole(job_.max_restarts)}};
  if (seen.result.culprit) {
    attributes.emplace_back("cause", seen.result.culprit->cause.text);
    if (!seen.result.culprit->cause.node.empty())
      attributes.emplace_back("node", seen.result.culprit->cause.node);
    add_policy(attributes, seen.result.culprit->cause);
  }
  tell("job.ended", std::move(attributes));
}

void JobRecords::summary(const goodput::Ledger::Summary& summary) {
  if (job_.goodput == spec::Goodput::Off || !pipeline_.wants(kScope)) return;
  Attributes attributes{{"goodput_at_most", summary.goodput_at_most()},
                        {"elapsed_s", to_seconds(summary.elapsed)},
                        {"restarts", whole(summary.restarts)},
                        {"loss_known", summary.loss_known}};
  if (const auto known = summary.goodput()) attributes.emplace_back("goodput", *known);
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto bucket = static_cast<goodput::Bucket>(i);
    attributes.emplace_back(fmt::format("{}_s", goodput::bucket_name(bucket)),
                            to_seconds(summary.of(bucket)));
  }
  tell("goodput", std::move(attributes));
}

}  // namespace elastrun::agent
