// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/clock.hpp"
#include "core/text.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/route.hpp"
#include "workers/diagnostics.hpp"
#include "workers/message.hpp"
#include "workers/shared_page.hpp"

#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// Lets so many through: `burst` at once, `rate` a second in the long run, and counts the others.
class TokenBucket {
 public:
  struct Limit {
    double rate = 100, burst = 1000;
  };
  explicit TokenBucket(Limit limit) : limit_(limit), tokens_(limit.burst) {}
  /// The number of those suppressed since the last one that passed; nothing if this one is, too.
  std::optional<std::uint64_t> take(TimePoint now) {
    // Threads take the time before they get here, so it may be behind that of the one before.
    if (filled_ && now > *filled_) {
      const std::chrono::duration<double> passed = now - *filled_;
      tokens_ = std::min(limit_.burst, tokens_ + passed.count() * limit_.rate);
    }
    if (!filled_ || now > *filled_) filled_ = now;
    if (tokens_ < 1) {
      suppressed_ += 1;
      return std::nullopt;
    }
    tokens_ -= 1;
    return std::exchange(suppressed_, 0);
  }

 private:
  Limit limit_;
  double tokens_;
  std::optional<TimePoint> filled_;
  std::uint64_t suppressed_ = 0;
};

/// How much of what the workers of a node say is taken further, so that one of them can neither
/// fill a disk nor make names without end. Pure.
///
/// Of one rank 50,000 samples pass a second (100,000 at once), of those that are told one by one
/// beside their sum 1,000 (5,000 at once), and 100 events of one name (1,000 at
/// once); what passes next has the number of those that did not as its attribute `suppressed`. The
/// node's workers have 2,000 series in all, by name and labels; samples of others become the series
/// "otel.metric.overflow" of the group "worker". Of events, those beyond 1,000 names of all ranks
/// share one limit. Of what a recorder of goodput says 2,000 entries pass a second (20,000 at
/// once), of steps as many; of phases and of checkpoints 100 each (1,000 at once). The groups of
/// the agent ("elastrun" and what begins with "elastrun.") are refused.
class Intake {
 public:
  static constexpr std::size_t kMostSeries = 2000, kMostEventNames = 1000;
  static constexpr const char* kOverflow = "otel.metric.overflow";
  struct Statistics {
    std::uint64_t suppressed = 0;  // samples, events and entries that did not pass
    std::uint64_t overflowed = 0;  // samples that lost their name
    std::uint64_t refused = 0;     // entries that could not be read, samples of a group of ours
  };

  /// False: not to be taken further. What is not named above passes; of entries those that pass are
  /// left in the message.
  bool admit(int rank, workers::Message& message, TimePoint now);
  const Statistics& statistics() const { return statistics_; }
  /// A sentence for the first time that each limit is reached; empty otherwise.
  std::string take_remark() { return std::exchange(remark_, {}); }

 private:
  bool admit(int rank, workers::MetricSample& sample, TimePoint now);
  bool admit(int rank, workers::WorkerEvent& event, TimePoint now);
  bool admit(int rank, workers::GoodputEntries& said, TimePoint now);
  bool admit(int rank, workers::SamplesTold& told, TimePoint now);
  bool is_own(int rank, const std::string& group, const std::string& name) {
    if (!telemetry::is_own_scope(group)) return false;
    ++statistics_.refused;
    remark("group", fmt::format("Rank {} reports metric '{}' of the group '{}', which is the "
                                "agent's: such ones are refused, and counted",
                                rank, printable(name), printable(group)));
    return true;
  }
  bool knows(const std::string& group, const std::string& name, const telemetry::Meaning* meaning);
  bool admit(int rank, std::string_view what, TokenBucket::Limit limit, TimePoint now) {
    if (bucket(rank, what, limit).take(now)) return true;
    ++statistics_.suppressed;
    remark(what,
           fmt::format("Rank {} reports more than {} {} a second: others count in the summary, "
                       "and are not in the journal",
                       rank, limit.rate, what));
    return false;
  }
  // For each rank: one that floods the channel must not silence its neighbours.
  TokenBucket& bucket(int rank, std::string_view what, TokenBucket::Limit limit) {
    return buckets_.try_emplace({what, rank}, limit).first->second;
  }
  // Once for each kind, whichever rank: a flood of complaints would be another flood.
  void remark(std::string_view kind, std::string text) {
    if (said_.insert(kind).second) remark_ = std::move(text);
  }

  std::map<std::pair<std::string_view, int>, TokenBucket> buckets_;  // by what and rank
  std::map<std::pair<int, std::string>, TokenBucket> events_;
  TokenBucket other_events_{{}};
  std::set<std::pair<std::string, std::string>> series_;
  Statistics statistics_;
  std::string remark_;
  std::set<std::string_view> said_;  // kinds of remarks
};

/// Tells the pipeline what the workers of this node report, each with its rank, local_rank, role
/// and attempt, and within the limits of Intake. elastrun-protocol(7) lists the names.
/// Without a route nothing is built.
class WorkerRecords final : public Observes<WorkerRecords> {
 public:
  static constexpr std::string_view kScope = "elastrun.worker";

  /// Borrows all.
  WorkerRecords(telemetry::Pipeline& pipeline, const spec::JobSpec& spec,
                const workers::SharedPages& pages)
      : pipeline_(pipeline), spec_(spec), pages_(pages) {}

  /// Tells that worker, on its page, that more of what it said in this round was not taken: it was
  /// refused before it came here.
  void refused(const workers::Worker& worker, std::uint64_t count) {
    auto& all = refused_[worker.local_rank];
    all += count;
    if (const auto* page = pages_.find(worker.local_rank)) page->tell_refused(all);
  }
  using Observes::heard;
  void on(const moment::RoundReady& seen) {
    attempt_ = seen.round.attempt;
    refused_.clear();
  }
  void on(const moment::WorkerSaid& seen) { heard(seen.worker, seen.said); }
  /// What a worker said over its channel: of its training, and a sample that may sum up others, as
  /// an observer; else as the consumer of events and of samples one by one.
  void heard(const workers::Worker& worker, workers::Message message) {
    if (!admits(worker, message)) return;
    std::visit(
        [&](auto& said) {
          if constexpr (requires { tell(worker, std::move(said)); }) tell(worker, std::move(said));
        },
        message);
  }
  const Intake::Statistics& statistics() const { return intake_.statistics(); }

 private:
  /// Within the limits; what it says may be another series then.
  bool admits(const workers::Worker& worker, workers::Message& message);
  using Attributes = std::vector<telemetry::Attribute>;
  Attributes labels(const workers::Worker& worker) const {
    return {{"rank", std::int64_t{worker.rank}},
            {"local_rank", std::int64_t{worker.local_rank}},
            {"role", spec_.role},
            {"attempt", std::int64_t{attempt_}}};
  }
  telemetry::Record record(telemetry::Record::Kind kind, std::string scope, std::string name,
                           Attributes attributes) const;
  void event(std::string_view scope, std::string_view name, Attributes attributes,
             const workers::Worker& worker) {
    if (!pipeline_.wants(scope)) return;
    std::ranges::move(labels(worker), std::back_inserter(attributes));
    pipeline_.event(std::string(scope), std::string(name), std::move(attributes));
  }
  // As a sample, which is not written at once: a job may do thousands of steps a second.
  void tell(const workers::Worker& worker, workers::StepDone step) {
    // All ranks do the same steps; of thousands of ranks the journal would grow for nothing.
    if (worker.rank == 0) pipeline_.sample(std::string(kScope), "step", step.step);
  }
  void tell(const workers::Worker& worker, workers::CheckpointDone checkpoint) {
    event(kScope, "checkpoint", {{"step", checkpoint.step}}, worker);
  }
  void tell(const workers::Worker& worker, const workers::PhaseEntered& phase) {
    event(kScope, "phase", {{"phase", phase.name}}, worker);
  }
  void tell(const workers::Worker& worker, const workers::MetricSample& metric);
  void tell(const workers::Worker& worker, workers::WorkerEvent event);
  void tell(const workers::Worker& worker, workers::GoodputEntries said);
  void tell_total(const workers::Worker& worker, const workers::MetricSample& metric);
  void tell(const workers::Worker& worker, const workers::SamplesTold& told);
  void tell_batch(const workers::MetricSample& metric, telemetry::Record sample);
  void tell_stat(const workers::Worker& worker, const workers::WorkerEvent& event,
                 const Attributes& labels);

  telemetry::Pipeline& pipeline_;
  const spec::JobSpec& spec_;
  const workers::SharedPages& pages_;
  int attempt_ = 0;
  // Of the counters of each rank, by group and name: Intake says how many there may be.
  std::map<std::tuple<int, std::string, std::string>, double> totals_;
  Intake intake_;
  std::map<int, std::uint64_t> refused_;  // in this round, by local rank
};

}  // namespace elastrun::agent
