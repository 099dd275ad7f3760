// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/worker_records.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "goodput/journals/journal_books.hpp"
#include "telemetry/record.hpp"
#include "telemetry/registry.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <set>

namespace elastrun::agent {
namespace {

using workers::CheckpointDone, workers::GoodputEntries, workers::Message, workers::MetricSample,
    workers::PhaseEntered, workers::SamplesTold, workers::StepDone, workers::WorkerEvent;

// Per second, and at once (elastrun-protocol(7)): one worker must not fill the disk.
constexpr TokenBucket::Limit kSamples{50'000, 100'000}, kEntries{2'000, 20'000},
    kSingle{1'000, 5'000};

/// A name with its labels: which series of its group that is.
std::string labelled(std::string name, const telemetry::Meaning* meaning) {
  if (meaning == nullptr) return name;
  for (const auto& [key, value] : meaning->labels) {
    name.append(1, '\0').append(key).append(1, '\0').append(value);
  }
  return name;
}

// As elastrun.monitor and the C++ header name the windows of their Stats.
constexpr std::string_view kMonitorScope = "torch.monitor", kStatEvent = "torch.monitor.Stat";

using telemetry::Detail;
using telemetry::Record;

bool is_severity(const telemetry::Attribute& attribute) {
  return attribute.first == "severity";
}

std::string text_in(const std::vector<telemetry::Attribute>& attributes, std::string_view name) {
  const auto found = std::ranges::find(attributes, name, &telemetry::Attribute::first);
  const auto* text = found == attributes.end() ? nullptr : std::get_if<std::string>(&found->second);
  return text == nullptr ? std::string() : *text;
}

/// That of a Stat; null: it has none.
std::shared_ptr<const telemetry::Meaning> meaning_in(
    const std::vector<telemetry::Attribute>& attributes) {
  telemetry::Meaning meaning{text_in(attributes, "stat.unit").substr(0, workers::kMaxName),
                             text_in(attributes, "stat.help"),
                             {}};
  if (meaning == telemetry::Meaning()) return nullptr;
  return std::make_shared<const telemetry::Meaning>(std::move(meaning));
}

/// The stretch of which an event tells the end, for traces.
std::optional<Record> span_of(const Record& end) {
  if (end.text("span.phase") != "stop") return std::nullopt;
  const auto* const seconds = std::get_if<double>(end.find("span.seconds"));
  constexpr double kLongest = 1e9;  // more does not fit its nanoseconds
  if (seconds == nullptr || !(*seconds >= 0 && *seconds < kLongest)) return std::nullopt;
  Record span = end;
  span.kind = Record::Kind::SpanEnd;
  std::erase_if(span.attributes, [](const telemetry::Attribute& attribute) {
    return attribute.first == "span.phase" || attribute.first == "span.seconds";
  });
  span.attributes.emplace_back("duration_ns", std::int64_t{from_seconds(*seconds).count()});
  return span;
}

constexpr Duration kLongestUnderWay = std::chrono::minutes(1);  // a message of a worker

/// When it was put, which is earlier than now: by both clocks.
void set_time(Record& record, std::optional<double> time) {
  if (!time) return;
  const WallTime wall(from_seconds(*time));
  // Bounded, because the worker says it: a time of its choice must not put a record before the job.
  record.stamp.mono -= std::clamp<Duration>(record.stamp.wall - wall, {}, std::chrono::hours(1));
  record.stamp.wall = wall;
}

}  // namespace

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

/// Whether that series is one of those that there may be.
bool Intake::knows(const std::string& group, const std::string& name,
                   const telemetry::Meaning* meaning) {
  std::pair key(group, labelled(name, meaning));
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

bool WorkerRecords::admits(const workers::Worker& worker, workers::Message& message) {
  const auto not_taken = [this] {
    return intake_.statistics().suppressed + intake_.statistics().refused;
  };
  // By the difference, because of one message some parts may be taken and others not.
  const auto before = not_taken();
  const bool admitted = intake_.admit(worker.rank, message, pipeline_.clock().now());
  if (const auto more = not_taken() - before; more > 0) refused(worker, more);
  if (const auto remark = intake_.take_remark(); !remark.empty()) {
    log::warning("channel", "{}", remark);
  }
  return admitted;
}

Record WorkerRecords::record(Record::Kind kind, std::string scope, std::string name,
                             Attributes attributes) const {
  Record record;
  record.kind = kind;
  record.stamp = {pipeline_.clock().now(), pipeline_.clock().wall()};
  record.scope = std::move(scope);
  record.name = std::move(name);
  record.attributes = std::move(attributes);
  return record;
}

void WorkerRecords::tell(const workers::Worker& worker, const workers::MetricSample& metric) {
  if (metric.counts) return tell_total(worker, metric);
  if (!pipeline_.wants(metric.group)) return;
  auto sample = record(Record::Kind::Sample, metric.group, metric.name, labels(worker));
  if (metric.step) sample.attributes.emplace_back("step", *metric.step);
  sample.meaning = metric.meaning;
  set_time(sample, metric.time);
  sample.value = metric.value;
  if (metric.each) sample.detail = Detail::Summed;
  if (metric.batch) return tell_batch(metric, std::move(sample));
  pipeline_.emit(std::move(sample));
}

/// In order, each with its own time. What is too much to be told one by one is told in one line.
void WorkerRecords::tell(const workers::Worker& worker, const workers::SamplesTold& told) {
  const auto who = labels(worker);
  for (const auto& [series, time, value, step] : told.samples) {
    const auto& [group, name, meaning] = told.series[series];
    if (!pipeline_.wants_each(group)) continue;
    auto sample = record(Record::Kind::Sample, group, name, who);
    if (step) sample.attributes.emplace_back("step", *step);
    sample.meaning = meaning;
    set_time(sample, time);
    sample.value = value;
    sample.detail = Detail::Each;
    pipeline_.emit(std::move(sample));
  }
  for (const auto& [group, count] : told.suppressed) {
    auto sample = record(Record::Kind::Sample, group, "samples.suppressed", who);
    sample.value = static_cast<std::int64_t>(count);
    sample.detail = Detail::Each;
    pipeline_.emit(std::move(sample));
  }
}

/// It goes on where a worker is restarted, so that it never falls while this agent lives.
void WorkerRecords::tell_total(const workers::Worker& worker, const workers::MetricSample& metric) {
  auto& total = totals_[{worker.rank, metric.group, labelled(metric.name, metric.meaning.get())}];
  total += metric.value;
  if (!pipeline_.wants(metric.group)) return;
  auto sample = record(Record::Kind::Sample, metric.group, metric.name, labels(worker));
  sample.attributes.emplace_back("total", true);
  sample.meaning = metric.meaning;
  sample.value = total;
  pipeline_.emit(std::move(sample));
}

/// The worker has summed up about a second: what happened in it, for those to whom the last value
/// is not enough.
void WorkerRecords::tell_batch(const workers::MetricSample& metric, Record sample) {
  using enum worker::Aggregation;
  const auto& batch = *metric.batch;
  const bool histogram = batch.sketch.has_value();
  auto told = sample;
  sample.summary = metric.batch;
  if (histogram) sample.detail = Detail::Summed;
  pipeline_.emit(std::move(sample));
  if (batch.count == 1 && !histogram) return;
  std::set<worker::Aggregation> chosen{worker::Aggregation::Value, Mean, Count, Sum, Max, Min};
  if (histogram) chosen.insert({P50, P90, P95, P99});
  telemetry::Window window;
  window.end = pipeline_.clock().now();
  window.start = window.end - std::chrono::seconds(1);
  window.count = batch.count;
  if (metric.meaning) window.unit = metric.meaning->unit;
  window.aggregates = telemetry::aggregates_of(batch, chosen);
  if (histogram) window.sketch = {metric.batch, &*batch.sketch};
  told.kind = Record::Kind::Window;
  told.value = {};
  told.window = std::make_shared<const telemetry::Window>(std::move(window));
  // The windows of histograms are all that is told of them.
  if (histogram) told.detail = Detail::Whole;
  pipeline_.emit(std::move(told));
}

void WorkerRecords::tell(const workers::Worker& worker, workers::WorkerEvent event) {
  const auto who = labels(worker);
  if (event.name == kStatEvent) tell_stat(worker, event, who);
  if (!pipeline_.wants("worker")) return;
  auto told = record(Record::Kind::Event, "worker", std::move(event.name), {});
  // A trace is drawn by the steady clock, and a span that arrives late must not begin after those
  // within it. What is older than a message can be has a time that the user gave.
  const auto now = told.stamp.mono;
  set_time(told, event.time);
  if (now - told.stamp.mono > kLongestUnderWay) told.stamp.mono = now;
  told.attributes = std::move(event.attributes);
  if (const auto severity = telemetry::severity_named(text_in(told.attributes, "severity"))) {
    told.severity = *severity;
    std::erase_if(told.attributes, is_severity);
  }
  for (const auto& one : who) make_room(told.attributes, one.first);
  told.attributes.insert(told.attributes.end(), who.begin(), who.end());
  auto span = span_of(told);
  pipeline_.emit(std::move(told));
  if (span) pipeline_.emit(std::move(*span));
}

/// Of rank 0 alone, as steps: recorders of several ranks say the same.
void WorkerRecords::tell(const workers::Worker& worker, workers::GoodputEntries said) {
  if (worker.rank != 0 || spec_.goodput == spec::Goodput::Off) return;
  for (auto& [entry, name, members] : said.entries) {
    Attributes attributes{{"job_name", said.job.empty() ? spec_.run_id : said.job}};
    std::ranges::move(members, std::back_inserter(attributes));
    event(goodput::kRecorderScope, goodput::measurement_name(entry.kind), std::move(attributes),
          worker);
  }
  if (said.lost == 0) return;
  event(goodput::kRecorderScope, "lost", {{"count", static_cast<std::int64_t>(said.lost)}}, worker);
}

/// A window of torch.monitor, of which each aggregation is a series: "loss.mean".
void WorkerRecords::tell_stat(const workers::Worker& worker, const workers::WorkerEvent& event,
                              const Attributes& labels) {
  if (!pipeline_.wants(kMonitorScope)) return;
  const auto meaning = meaning_in(event.attributes);
  for (const auto& [name, value] : event.attributes) {
    // A histogram, which comes as a metric, too; unit and help.
    if (std::holds_alternative<std::string>(value)) continue;
    const std::string group(kMonitorScope);
    workers::Message one = workers::MetricSample{name.substr(0, workers::kMaxName), 0, group};
    if (!admits(worker, one)) continue;
    auto& metric = std::get<workers::MetricSample>(one);
    auto sample =
        record(Record::Kind::Sample, std::move(metric.group), std::move(metric.name), labels);
    sample.value = value;
    // The number of values has not the unit of the values.
    sample.meaning = name.ends_with(".count") ? nullptr : meaning;
    pipeline_.emit(std::move(sample));
  }
}

}  // namespace elastrun::agent
