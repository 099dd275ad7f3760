// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/intake.hpp"

#include "core/text.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

using workers::CheckpointDone, workers::GoodputEntries, workers::Message, workers::MetricSample,
    workers::PhaseEntered, workers::SamplesTold, workers::StepDone, workers::WorkerEvent;

// Per second, and at once (elastrun-protocol(7)): one worker must not fill the disk.
constexpr TokenBucket::Limit kSamples{50'000, 100'000}, kEntries{2'000, 20'000},
    kSingle{1'000, 5'000};

}  // namespace

std::optional<std::uint64_t> TokenBucket::take(TimePoint now) {
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

bool Intake::admit(int rank, Message& message, TimePoint now) {
  if (std::holds_alternative<StepDone>(message)) return admit(rank, "steps", kEntries, now);
  if (std::holds_alternative<PhaseEntered>(message)) return admit(rank, "phases", {}, now);
  if (std::holds_alternative<CheckpointDone>(message)) return admit(rank, "checkpoints", {}, now);
  if (auto* sample = std::get_if<MetricSample>(&message)) return admit(rank, *sample, now);
  if (auto* event = std::get_if<WorkerEvent>(&message)) return admit(rank, *event, now);
  if (auto* said = std::get_if<GoodputEntries>(&message)) return admit(rank, *said, now);
  if (auto* told = std::get_if<SamplesTold>(&message)) return admit(rank, *told, now);
  return true;
}

bool Intake::admit(int rank, std::string_view what, TokenBucket::Limit limit, TimePoint now) {
  if (bucket(rank, what, limit).take(now)) return true;
  ++statistics_.suppressed;
  remark(what, fmt::format("Rank {} reports more than {} {} a second: others count in the summary, "
                           "and are not in the journal",
                           rank, limit.rate, what));
  return false;
}

/// For each rank: one that floods the channel must not silence its neighbours.
TokenBucket& Intake::bucket(int rank, std::string_view what, TokenBucket::Limit limit) {
  return buckets_.try_emplace({what, rank}, limit).first->second;
}

bool Intake::is_own(int rank, const std::string& group, const std::string& name) {
  if (!telemetry::is_own_scope(group)) return false;
  ++statistics_.refused;
  remark("group", fmt::format("Rank {} reports metric '{}' of the group '{}', which is the "
                              "agent's: such ones are refused, and counted",
                              rank, printable(name), printable(group)));
  return true;
}

/// Whether that series is one of those that there may be.
bool Intake::knows(const std::string& group, const std::string& name,
                   const telemetry::Meaning* meaning) {
  std::string labelled = name;
  if (meaning != nullptr) {
    for (const auto& [key, value] : meaning->labels) {
      labelled.append(1, '\0').append(key).append(1, '\0').append(value);
    }
  }
  std::pair key(group, std::move(labelled));
  if (series_.contains(key)) return true;
  if (series_.size() >= kMostSeries) return false;
  series_.insert(std::move(key));
  return true;
}

bool Intake::admit(int rank, MetricSample& sample, TimePoint now) {
  if (sample.group.empty()) sample.group = "worker";
  // A worker could otherwise write over the agent's series by taking their name.
  if (is_own(rank, sample.group, sample.name)) return false;
  if (!bucket(rank, "metrics", kSamples).take(now)) {
    ++statistics_.suppressed;
    remark("metrics",
           fmt::format("Rank {} reports more than {} metrics a second: others are counted, and not "
                       "kept; put_metric of the Python package elastrun sums them up",
                       rank, kSamples.rate));
    return false;
  }
  if (knows(sample.group, sample.name, sample.meaning.get())) return true;
  ++statistics_.overflowed;
  remark("series",
         fmt::format("Rank {} reports metric '{}', and workers of this node have used {} names and "
                     "sets of labels: this one and others become one, {}",
                     rank, printable(sample.name), kMostSeries, kOverflow));
  sample.group = "worker";
  sample.name = kOverflow;
  sample.meaning.reset();
  // One name is one kind of metric.
  if (sample.batch) sample.batch->sketch.reset();
  return true;
}

/// Those of series that cannot be kept apart are told by the sums alone.
bool Intake::admit(int rank, SamplesTold& told, TimePoint now) {
  std::vector<bool> kept;
  for (auto& [group, name, meaning] : told.series) {
    if (group.empty()) group = "worker";
    kept.push_back(!is_own(rank, group, name) && knows(group, name, meaning.get()));
  }
  auto& single = bucket(rank, "samples", kSingle);
  std::map<std::string, std::uint64_t> more;
  std::erase_if(told.samples, [&](const SamplesTold::Sample& sample) {
    if (!kept[sample.series]) return true;
    if (single.take(now)) return false;
    more[told.series[sample.series].group] += 1;
    return true;
  });
  auto& lines = bucket(rank, "lines", {});
  std::erase_if(told.suppressed, [&](const auto& one) {
    return one.first.empty() || telemetry::is_own_scope(one.first) || !lines.take(now);
  });
  for (auto& [group, count] : more) told.suppressed.emplace_back(group, count);
  return true;
}

bool Intake::admit(int rank, WorkerEvent& event, TimePoint now) {
  std::pair key(rank, event.name);
  const auto known = events_.find(key);
  // Beyond the limit all names share one: a script that makes up a name for each event would get a
  // fresh allowance with each.
  TokenBucket* allowed = &other_events_;
  if (known != events_.end()) {
    allowed = &known->second;
  } else if (events_.size() < kMostEventNames) {
    allowed = &events_.try_emplace(std::move(key), TokenBucket::Limit{}).first->second;
  }
  const auto suppressed = allowed->take(now);
  if (!suppressed) {
    ++statistics_.suppressed;
    remark("events",
           fmt::format("Rank {} reports more than {} events '{}' a second: others are counted, and "
                       "not kept",
                       rank, TokenBucket::Limit{}.rate, printable(event.name)));
    return false;
  }
  if (*suppressed > 0 && event.attributes.size() < workers::kMaxAttributes) {
    event.attributes.emplace_back("suppressed", static_cast<std::int64_t>(*suppressed));
  }
  return true;
}

bool Intake::admit(int rank, GoodputEntries& said, TimePoint now) {
  if (said.refused > 0) {
    statistics_.refused += said.refused;
    remark("refused", fmt::format("Rank {}: an entry about goodput is refused, and counts as "
                                  "lost: {}",
                                  rank, printable(said.refusal)));
  }
  auto& entries = bucket(rank, "entries", kEntries);
  const auto held_back =
      std::erase_if(said.entries, [&](const auto&) { return !entries.take(now).has_value(); });
  if (held_back == 0) return true;
  statistics_.suppressed += held_back;
  said.lost += held_back;
  remark("entries",
         fmt::format("Rank {} records more than {} entries about goodput a second: others count in "
                     "the summary, and are not in the journal",
                     rank, kEntries.rate));
  return true;
}

/// Once for each kind, whichever rank: a flood of complaints would be another flood.
void Intake::remark(std::string_view kind, std::string text) {
  if (said_.insert(kind).second) remark_ = std::move(text);
}

}  // namespace elastrun::agent
