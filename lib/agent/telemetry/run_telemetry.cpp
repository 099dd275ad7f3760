// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/run_telemetry.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/host.hpp"
#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "goodput/account/job_account.hpp"
#include "process/launcher.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

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

using rendezvous::Cause;

// The longest name that DNS has (RFC 1035, without the length bytes).
constexpr std::size_t kLongestName = 253;

/// What a node has done to the others; none: nothing, or it was ordered and not suffered.
std::optional<std::string_view> interruption(Cause::Kind kind) {
  if (kind == Cause::Kind::WorkerFailed) return "worker_failed";
  if (kind == Cause::Kind::NodeLost) return "node_lost";
  return kind == Cause::Kind::NodeLeft ? std::optional("node_left") : std::nullopt;
}

/// Hands every record of a run to the handlers of this process.
class ToProcessPipeline final : public telemetry::Sink {
 public:
  void consume(const telemetry::Record& record) override {
    telemetry::process_pipeline().emit(record);
  }
  void flush(TimePoint deadline) override { telemetry::process_pipeline().flush(deadline); }
};

}  // namespace

/// Tells the pipeline what the agent does, as events of the scope "elastrun.agent": for the journal
/// and every other sink. elastrun-protocol(7) lists the names and attributes. Without a route
/// nothing is built.
class JobRecords final : public Observes<JobRecords> {
 public:
  static constexpr std::string_view kScope = kAgentScope;

  /// Borrows both.
  JobRecords(telemetry::Pipeline& pipeline, const spec::JobSpec& job)
      : pipeline_(pipeline), job_(job) {}

  /// First of all: what the job is. `since_start`: so long ago its agent began.
  void begin(Duration since_start) {
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

  void heard(const Moment& one) override {
    if (pipeline_.wants(kScope)) Observes::heard(one);
  }
  void on(const moment::PhaseChanged& seen) {
    phase_since_ = seen.now;
    tell("phase", {{"phase", std::string(goodput::phase_name(seen.phase))}});
  }
  void on(const moment::Progress& seen) { tell("rendezvous.progress", {{"text", seen.text}}); }
  void on(const moment::RoundReady& seen) {
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
  void on(const moment::Started& seen) {
    for (const auto& worker : seen.group) tell("worker.started", worker_attributes(worker));
    tell("group.started", {{"round", seen.round.number},
                           {"attempt", whole(seen.round.attempt)},
                           {"workers", whole(static_cast<std::int64_t>(seen.group.size()))},
                           {"took_s", to_seconds(seen.took)}});
  }
  void on(const moment::Joined& seen) {
    tell(seen.all ? "ranks.connected" : "ranks.connecting", {});
  }
  void on(const moment::Failed& seen) {
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
  void on(const moment::Restarting& seen) { tell_restart("restart", seen.order); }
  void on(const moment::RoleRestarting& seen) { tell_restart("role.restart", seen.order); }
  void on(const moment::Stopped& seen) {
    for (const auto& worker : seen.group) {
      auto attributes = worker_attributes(worker);
      add_exit(attributes, worker.exit);
      if (worker.stopped_by_us) attributes.emplace_back("stopped_by_us", true);
      if (worker.abandoned) attributes.emplace_back("abandoned", true);
      tell("worker.ended", std::move(attributes));
    }
    tell("group.gone", {{"took_s", to_seconds(seen.took)}});
  }
  void on(const TimerExpired& seen) { tell("timer.expired", facts_of(*seen.timer)); }
  void on(const TimerKilled& seen) {
    auto attributes = facts_of(*seen.timer);
    attributes.emplace_back("stack", join(seen.timer->stack, "\n"));
    tell("timer.killed", std::move(attributes));
  }
  void on(const HangSeen& seen) {
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

  void on(const moment::Ended& seen) {
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

  /// Last of all: where the time went.
  void summary(const goodput::Ledger::Summary& summary) {
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

 private:
  using Attributes = std::vector<telemetry::Attribute>;
  void tell(std::string_view name, Attributes attributes) {
    pipeline_.event(std::string(kScope), std::string(name), std::move(attributes));
  }

  // By another name: this node has no downtime, which readers of a journal take from `restart`.
  void tell_restart(std::string_view name, const rendezvous::Restart& order) {
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

  telemetry::Pipeline& pipeline_;
  const spec::JobSpec& job_;
  TimePoint phase_since_;
};

/// Emits torchelastic's events and metrics (torchrun-parity 9 and 10) for what the agent does.
/// Costs next to nothing while no handler wants them.
class ElasticRecords final : public Observes<ElasticRecords> {
 public:
  /// `has_fifo`: there is one for torch's timers; torch tells of its watchdog only where it runs.
  ElasticRecords(telemetry::Pipeline& pipeline, Clock& clock, telemetry::events::AgentFacts facts,
                 const spec::JobSpec& job, bool has_fifo = false)
      : pipeline_(pipeline),
        metrics_(pipeline),
        facts_(std::move(facts)),
        job_(job),
        has_fifo_(has_fifo),
        restarts_left_(job.max_restarts),
        start_(pipeline.clock().now()),
        alarm_(clock.make_alarm()) {}

  void on(const moment::PhaseChanged& seen) {
    if (seen.phase == Phase::Joining) joining_since_ = seen.now;
  }

  void on(const moment::RoundReady& seen) {
    joining_since_.reset();
    waited_ = seen.waited;
    facts_.agent_restarts = seen.round.attempt;
    restarts_left_ = seen.round.restarts_left;
    events::record(pipeline_, events::agent_event("RENDEZVOUS", facts_, seen.waited));
    // torch's agents exchange what they need for this by the store; here it has come with the
    // round.
    const auto begin = pipeline_.clock().now();
    const auto before = facts_;  // torch tells of this without the rank of the group, too
    facts_.group_rank = seen.round.group_rank;
    facts_.group_world_size = seen.round.group_world_size();
    role_rank_base_ = seen.round.role_rank_base;
    role_world_size_ = seen.round.role_world_size;
    const auto took = pipeline_.clock().now() - begin;
    events::record(pipeline_, events::agent_event("ASSIGN_WORKER_RANKS", before, took));
    profile("_assign_worker_ranks", took);
    profile("_rendezvous", seen.waited);
    // torch's agent starts one for each group, ours serves all of them by one FIFO; readers expect
    // the former.
    if (has_fifo_) watchdog("watchdog started");
  }

  void on(const moment::Started& seen) {
    if (pipeline_.wants("torchelastic.worker")) {
      for (const auto& worker : seen.group) {
        events::record(pipeline_, events::worker_event("START", facts_, facts_of(worker)));
      }
    }
    profile("_start_workers", seen.took);
    profile("_initialize_workers", waited_ + seen.took);
    if (restarting_) profile("_restart_workers", pipeline_.clock().now() - restart_began_);
    restarting_ = false;
    running_.clear();
    for (const auto& worker : seen.group) running_.push_back(worker.pid);
    pass("healthy", look_at_workers().second);
    wait_for_look();
  }

  // From the end of the first worker that has failed, which torchrun finds at its next look, until
  // that is judged.
  void on(const moment::Failed& seen) {
    const auto now = pipeline_.clock().now();
    auto first = now;
    for (const auto& failure : seen.judgement.failures) first = std::min(first, failure.at);
    running_.clear();
    pass("failed", now - first);
  }
  void on(const moment::Restarting&) {
    restarting_ = true;
    restart_began_ = pipeline_.clock().now();
  }
  void on(const moment::Stopped& seen) {
    running_.clear();
    const bool told = restarting_ || std::ranges::any_of(seen.group, &workers::Worker::failed);
    if (told) profile("_stop_workers", seen.took);
    if (has_fifo_) watchdog("watchdog stopped");
  }
  void on(const TimerExpired& seen) { watchdog("timer expired", seen.timer.get()); }
  void on(const TimerKilled& seen) { watchdog("kill worker process", seen.timer.get()); }

  void on(const moment::Ended& seen) {
    using Kind = Ending::Kind;
    const auto took = pipeline_.clock().now() - start_;
    facts_.total_run_time = took;
    facts_.agent_restarts = seen.result.restarts;
    restarts_left_ = seen.result.restarts_left;
    const auto kind = seen.result.ending.kind;
    const bool returned = kind == Kind::Succeeded || kind == Kind::NotNeeded ||
                          kind == Kind::WorkersFailed || kind == Kind::JobFailed;
    if (!returned) return raised(seen.result, took);
    const auto look_took = look_at_workers().second;
    running_.clear();
    if (seen.result.succeeded()) pass("succeeded", look_took);
    if (seen.group != nullptr && pipeline_.wants("torchelastic.worker")) {
      end_of_workers(seen.result, *seen.group);
    }
    telemetry::metrics::put_run(metrics_, {facts_.role, !seen.result.succeeded(), restarts_left_,
                                           job_.max_restarts, seen.result.restarts > 0});
    profile("run", took);
    events::record(pipeline_, events::agent_event("SUCCEEDED", facts_));
  }

 private:
  void profile(std::string_view method, Duration took, bool success = true) {
    // By torchrun's classes: LocalElasticAgent has these three, its base the others.
    const auto owner = method.starts_with("_start_w") || method.starts_with("_stop") ||
                               method.starts_with("_monitor")
                           ? kLocal
                           : kSimple;
    if (!pipeline_.wants(telemetry::metrics::kDefaultGroup)) return;
    metrics_.put_profile(fmt::format("{}.{}", owner, method), success, took);
  }
  // What torchrun puts after each look at its workers; ours has taken so long.
  void pass(std::string_view state, Duration took) {
    if (!pipeline_.wants(telemetry::metrics::kDefaultGroup)) return;
    profile("_monitor_workers", took);
    metrics_.put(fmt::format("workers.{}.remaining_restarts", facts_.role), restarts_left_);
    metrics_.put(fmt::format("workers.{}.{}", facts_.role, state), 1);
  }
  // Whether all of them are there, and how long it took to find that out.
  std::pair<bool, Duration> look_at_workers() const {
    const auto begin = pipeline_.clock().now();
    // One that runs as another user is there as well.
    const bool all = std::ranges::all_of(
        running_, [](pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; });
    return {all, pipeline_.clock().now() - begin};
  }
  void wait_for_look() {
    // Each look wakes the agent, and what torchrun says of it is the same each time: only who wants
    // every sample gets that.
    if (running_.empty() || !pipeline_.wants_each(telemetry::metrics::kDefaultGroup)) return;
    const auto interval =
        std::max<Duration>(from_seconds(job_.monitor_interval), kShortestInterval);
    alarm_->arm(pipeline_.clock().now() + interval, [this] { look(); });
  }
  void look() {
    const auto [all, took] = look_at_workers();
    if (running_.empty() || !all) return;  // how they have ended is told when it is known
    const auto base = fmt::format("{}._monitor_workers", kLocal);
    put_each(base + ".success", std::int64_t{1});
    put_each(base + ".duration.ms", std::int64_t{took / std::chrono::milliseconds(1)});
    put_each(fmt::format("workers.{}.remaining_restarts", facts_.role),
             std::int64_t{restarts_left_});
    put_each(fmt::format("workers.{}.healthy", facts_.role), std::int64_t{1});
    wait_for_look();
  }
  void put_each(std::string name, telemetry::Value value) {
    pipeline_.sample(std::string(telemetry::metrics::kDefaultGroup), std::move(name),
                     std::move(value), telemetry::Detail::Each);
  }
  void watchdog(std::string_view event, const ExpiredTimer* timer = nullptr) {
    std::vector<std::pair<std::string, std::string>> details;
    if (timer != nullptr) {
      details = {{"worker_pid", std::to_string(timer->pid)},
                 {"scope_id", timer->scope},
                 {"expiration_time", python_float(to_seconds(timer->expiry))},
                 {"signal", std::to_string(timer->signal)}};
    }
    events::record(pipeline_, events::watchdog_event(event, facts_, details));
  }

  // Where torchrun's agent would have ended by an exception: in its rendezvous, while it started
  // the workers, or while it watched them.
  void raised(const JobResult& result, Duration took) {
    using Kind = Ending::Kind;
    const bool by_signal = result.ending.kind == Kind::Signalled;
    const auto error =
        by_signal ? signal_exception(result.ending.signal) : verdict_sentence(result);
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

  void end_of_workers(const JobResult& result, const std::vector<workers::Worker>& group) {
    for (const auto& worker : group) {
      auto facts = facts_of(worker);
      if (const auto* failure = failure_of(result, worker.local_rank)) {
        facts.exit_code = failure->status.as_python();
        events::record(pipeline_,
                       events::worker_event("FAILED", facts_, facts, raw_error(*failure)));
      } else {
        const auto* state = result.succeeded() ? "SUCCEEDED" : "TERMINATED";
        events::record(pipeline_, events::worker_event(state, facts_, facts));
      }
    }
  }
  telemetry::events::WorkerFacts facts_of(const workers::Worker& worker) const {
    events::WorkerFacts facts;
    facts.global_rank = worker.rank;
    facts.local_rank = worker.local_rank;
    facts.role_rank = role_rank_base_ + worker.local_rank;
    facts.role_world_size = role_world_size_;
    facts.pid = worker.pid;
    return facts;
  }

  telemetry::Pipeline& pipeline_;
  telemetry::metrics::Metrics metrics_;
  telemetry::events::AgentFacts facts_;
  const spec::JobSpec& job_;
  const bool has_fifo_;
  int restarts_left_;
  const TimePoint start_;
  std::unique_ptr<Alarm> alarm_;  // of the next look
  std::vector<pid_t> running_;    // the workers that are looked at
  bool restarting_ = false;
  TimePoint restart_began_{};
  std::optional<TimePoint> joining_since_;
  Duration waited_{};  // for the round
  int role_rank_base_ = 0, role_world_size_ = 1;
};

/// The nodes of the job as series of the node that has rank 0: which are in the world, and which
/// of them have interrupted it. A fall of goodput can then be laid at the door of a machine.
class NodeSeries final : public Observes<NodeSeries> {
 public:
  /// Nodes are named by scripts and networks: others than the first ones are not told.
  static constexpr std::size_t kMost = 2000;

  explicit NodeSeries(telemetry::Registry& registry) : observations_(registry, kAgentScope) {
    observations_.add(telemetry::Kind::Gauge,
                      {.name = "elastrun.node.up",  // without a unit: no ratio
                       .help = "Whether a node of the job is in its world.",
                       .label_keys = {"node"}},
                      [this](const Report& report) {
                        for (const auto& [node, up] : up_) {
                          if (here_) report(up ? 1 : 0, {node});
                        }
                      });
    observations_.add(
        telemetry::Kind::Counter,
        {.name = "elastrun.node.interruptions",
         .unit = "{interruption}",
         .help = "Restarts of the workers, by the node where the cause was.",
         .label_keys = {"node", "cause"}},
        [this](const Report& report) {
          for (const auto& [key, count] : interruptions_) {
            if (here_) {
              report(static_cast<double>(count), {key.first, std::string(key.second)});
            }
          }
        });
  }

  void on(const moment::RoundReady& seen) {
    here_ = seen.round.group_rank == 0;  // only there all entries are complete
    if (!here_) return;
    addresses_.clear();
    // Those that have gone are told as 0 from now on, instead of not at all: people can write an
    // alert on that.
    for (auto& [node, up] : up_) up = false;
    for (const auto& member : seen.round.members) {
      // Another node says it: no longer than a host name may be, and text.
      const auto& said = member.address.empty() ? member.id : member.address;
      const auto address = valid_utf8(cut(said, kLongestName));
      addresses_[member.id] = address;
      // On spot machines a long job meets ever new ones.
      if (up_.size() < kMost || up_.contains(address)) up_[address] = true;
    }
  }

  void on(const moment::Restarting& seen) {
    const auto cause = interruption(seen.order.cause.kind);
    const auto known = addresses_.find(seen.order.cause.node);
    if (!cause || known == addresses_.end() || !up_.contains(known->second)) return;
    ++interruptions_[{known->second, *cause}];
    if (seen.order.cause.kind != Cause::Kind::WorkerFailed) up_[known->second] = false;
  }
  void on(const moment::RoleRestarting& seen) { on(moment::Restarting{seen.order}); }

 private:
  using Report = telemetry::Registry::Report;
  bool here_ = false;
  std::map<std::string, std::string> addresses_;  // by the id in this world
  std::map<std::string, bool> up_;                // by address
  std::map<std::pair<std::string, std::string_view>, std::int64_t> interruptions_;  // and cause
  telemetry::Observations observations_;
};

AccountViewers viewers_of(RunContext& run, RunMetrics* metrics) {
  if (metrics == nullptr || run.spec.goodput == spec::Goodput::Off) return {};
  return {&metrics->host(), &metrics->machine(), scheduled_since(run.environment)};
}

Started<std::unique_ptr<RunTelemetry>> RunTelemetry::make(RunContext& run,
                                                          const workers::SharedPages& pages,
                                                          events::AgentFacts facts, bool has_fifo) {
  std::unique_ptr<RunTelemetry> made(new RunTelemetry(run, pages, std::move(facts), has_fifo));
  const auto& name = run.spec.event_log_handler;
  const auto handler =
      telemetry::events::find_handler(name, [&console = run.console](std::string_view line) {
        console.write(logs::Console::Stream::Err, line);
      });
  if (!handler) return std::unexpected(handler.error());
  if (name != "null") telemetry::events::attach(made->pipeline_, *handler);
  if (!made->metrics_) return made;
  if (auto added = made->metrics_->add_sinks(); !added) return std::unexpected(added.error());
  return made;
}

RunTelemetry::RunTelemetry(RunContext& run, const workers::SharedPages& pages,
                           events::AgentFacts facts, bool has_fifo)
    : run_(run),
      pipeline_(run.clock),
      job_records_(std::make_unique<JobRecords>(pipeline_, run.spec)),
      worker_records_(pipeline_, run.spec, pages),
      elastic_records_(std::make_unique<ElasticRecords>(pipeline_, run.clock, std::move(facts),
                                                        run.spec, has_fifo)),
      metrics_(TelemetryHost::is_wanted(run.spec)
                   ? std::make_unique<RunMetrics>(run, pipeline_, worker_records_)
                   : nullptr),
      account_(run.clock, run.began, run.spec.max_nodes > 1, run.spec.goodput != spec::Goodput::Off,
               viewers_of(run, metrics_.get())),
      nodes_(metrics_ ? std::make_unique<NodeSeries>(metrics_->host().registry()) : nullptr) {}

RunTelemetry::~RunTelemetry() = default;

void RunTelemetry::begin() {
  job_records_->begin(run_.clock.now() - run_.began);
}

void RunTelemetry::tell_process() {
  using Kind = telemetry::Record::Kind;
  const auto carried = [](Kind kind) { return telemetry::process_pipeline().carries(kind); };
  // A route for nothing would have every record built, also those that no sink of the job wants.
  if (!std::ranges::any_of(std::array{Kind::Event, Kind::Sample, Kind::Window, Kind::SpanEnd},
                           carried)) {
    return;
  }
  pipeline_.route({}, std::make_shared<ToProcessPipeline>());
}

std::vector<Observer*> RunTelemetry::observers() {
  // First the account, so that all who ask it afterwards find the same fact in it.
  std::vector<Observer*> all{&account_,          nodes_.get(),     elastic_records_.get(),
                             job_records_.get(), &worker_records_, nullptr};
  if (metrics_) all.back() = &metrics_->observer();
  std::erase(all, nullptr);
  return all;
}

void RunTelemetry::sum_up(JobResult& result) {
  account_.tell(result);
  job_records_->summary(result.goodput);
}

}  // namespace elastrun::agent
