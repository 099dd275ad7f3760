// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/telemetry_host.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"
#include "system/machine.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

namespace elastrun::agent {

MachineWatch::MachineWatch(RunContext& run)
    : run_(run),
      begun_(run.clock.now()),
      calls_(run.loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse),
      limit_(run.clock.make_alarm()) {}

/// The driver's library is closed by a thread: that, too, may wait for a GPU without end.
MachineWatch::~MachineWatch() {
  if (!detach_thread([machine = std::move(machine_)] {})) {
    log::debug("machine", "the GPU driver is closed without a thread");
  }
}

std::vector<system::WatchedWorker> MachineWatch::watched() const {
  std::vector<system::WatchedWorker> watched;
  const auto* const group = run_.workers();
  if (group == nullptr) return watched;
  for (const auto& worker : *group) {
    if (!worker.exit) watched.push_back({worker.rank, worker.local_rank, worker.pid});
  }
  return watched;
}

void MachineWatch::answer() {
  limit_->disarm();
  for (const auto& one : std::exchange(waiting_, {})) one(sample_);
}

void MachineWatch::look(Then then) {
  waiting_.push_back(std::move(then));
  // One limit for all that wait: where the driver does not answer, they get the sample before.
  if (waiting_.size() == 1) limit_->arm(run_.clock.now() + kTimeLimit, [this] { answer(); });
  // A driver that hangs would otherwise hold one more thread with each look.
  if (looking_) return;
  looking_ = true;
  const auto work = [machine = machine_, watched = watched(), now = run_.clock.now()] {
    return Result<system::MachineSample>(machine->sample(now, watched));
  };
  calls_.make("the state of this machine", work,
              [this, alive = lifetime_.token()](Result<system::MachineSample> sample) {
                if (!alive) return;
                looking_ = false;
                if (sample) {
                  sample_ = std::move(*sample);
                  if (hear_) hear_(sample_);
                }
                answer();
              });
}

namespace {

using telemetry::Record;
using telemetry::Selector;

/// Whether a sample of a series without a scope, whose name begins with one of these, could fit.
bool may_fit(const Selector& selector, const std::vector<std::string>& names) {
  if (selector.kind.value_or(Record::Kind::Sample) != Record::Kind::Sample) return false;
  if (selector.at_least > telemetry::Severity::Info) return false;
  if (!selector.scope.empty() && selector.scope != "*") return false;
  std::string_view wanted = selector.name;
  const bool open = wanted.empty() || wanted.ends_with('*');
  if (wanted.ends_with('*')) wanted.remove_suffix(1);
  return std::ranges::any_of(names, [&](const std::string& name) {
    return wanted.starts_with(name) || (open && name.starts_with(wanted));
  });
}

constexpr Duration kFirstPull = std::chrono::seconds(1);

}  // namespace

class TelemetryHost::Samples final : public telemetry::Sink {
 public:
  explicit Samples(TelemetryHost& host) : host_(host) {}
  void consume(const Record& sample) override { host_.take_sample(sample); }

 private:
  TelemetryHost& host_;
};

TelemetryHost::TelemetryHost(Clock& clock, telemetry::Pipeline& pipeline,
                             telemetry::Registry& registry, Duration interval)
    : clock_(clock), pipeline_(pipeline), registry_(registry), interval_(interval) {}

TelemetryHost::~TelemetryHost() {
  // The pipeline outlives this object, and would go on to call its sinks.
  for (const auto route : routes_) pipeline_.unroute(route);
  if (takes_samples_) registry_.forget_samples();
}

void TelemetryHost::add(std::shared_ptr<exporter::MetricsSink> sink,
                        std::vector<Selector> selectors, By by) {
  sinks_.push_back(sink);
  if (sink->is_told()) routes_.push_back(pipeline_.route_any(selectors, sink));
  const bool asks = by == By::User && std::ranges::any_of(selectors, [&](const auto& selector) {
                      return may_fit(selector, gathered_names_);
                    });
  if (sink->pulls()) {
    take_samples();
    pullers_.emplace_back(std::move(sink), std::move(selectors));
  } else if (asks) {
    listeners_.emplace_back(std::move(sink), std::move(selectors));
  }
}

void TelemetryHost::take_samples() {
  if (std::exchange(takes_samples_, true)) return;
  routes_.push_back(
      pipeline_.route({.kind = Record::Kind::Sample}, std::make_shared<Samples>(*this)));
}

void TelemetryHost::take_sample(const Record& sample) {
  const auto why = registry_.take(sample);
  if (why.empty()) return recorded();
  if (std::exchange(said_refused_, true)) return;
  log::warning("metrics",
               "Metric '{}' of '{}' becomes no series, because {}; it and others are counted in "
               "elastrun.telemetry.dropped as those of the sink 'series'",
               printable(sample.name), printable(sample.scope), why);
}

void TelemetryHost::round_began(int first, int count) {
  if (!takes_samples_) return;
  // The series go, and with them the last values before a failure.
  if (std::exchange(has_begun_, true)) pull();
  std::set<std::string> ranks;
  for (int rank = first; rank < first + count; ++rank) ranks.insert(std::to_string(rank));
  registry_.end_samples([&](const telemetry::Registry::SampleKey& key) {
    const bool of_worker = !key.rank.empty() || key.scope == "elastrun.worker";
    // Counters of ranks that stay on this node go on: a total must not fall. Gauges would show a
    // round that is over.
    return of_worker && !(key.counts && ranks.contains(key.rank));
  });
}

void TelemetryHost::recorded() {
  // By what is recorded, so that a job that tells nothing wakes nothing.
  if (!pull_due_ && !(pullers_.empty() && listeners_.empty())) arm_pull();
  if (window_open_ || !pipeline_.carries(Record::Kind::Window)) return;
  const auto due = registry_.due();
  if (!due) return;
  if (!window_end_) window_end_ = clock_.make_alarm();
  window_open_ = true;
  window_end_->arm(*due, [this] {
    window_open_ = false;
    tell_windows(telemetry::Registry::Closing::InTime);
  });
}

/// The first time soon, so that people who look see something.
void TelemetryHost::arm_pull() {
  if (!next_pull_) next_pull_ = clock_.make_alarm();
  pull_due_ = true;
  const auto pause = std::exchange(pulled_, true) ? interval_ : std::min(interval_, kFirstPull);
  next_pull_->arm(clock_.now() + pause, [this] { gather_and_pull(); });
}

void TelemetryHost::gather_and_pull() {
  if (!gather_) {
    pull_due_ = false;
    return pull();
  }
  gather_([this, alive = lifetime_.token()](std::vector<telemetry::Point> points) {
    // finish() has pulled for the last time: the sinks may be closed.
    if (!alive || finished_) return;
    gathered_ = std::move(points);
    pull();
    tell_gathered();
    arm_pull();
  });
}

void TelemetryHost::pull() {
  if (pullers_.empty()) return;
  auto all = registry_.collect();
  std::ranges::copy(gathered_, std::back_inserter(all.points));
  for (const auto& [sink, selectors] : pullers_) {
    auto snapshot = all;
    std::erase_if(snapshot.points, [&](const telemetry::Point& point) {
      return std::ranges::none_of(selectors, [&](const Selector& selector) {
        return selector.matches(point.spec->scope, point.spec->name);
      });
    });
    sink->pull(snapshot);
  }
}

/// Not by the pipeline: the journal and others have not asked for these.
void TelemetryHost::tell_gathered() {
  if (listeners_.empty()) return;
  const auto records =
      telemetry::records_of(gathered_, {pipeline_.clock().now(), pipeline_.clock().wall()});
  for (const auto& record : records) {
    for (const auto& [sink, selectors] : listeners_) {
      const bool fits = std::ranges::any_of(
          selectors, [&](const Selector& selector) { return selector.matches(record); });
      if (fits) sink->consume(record);
    }
  }
}

void TelemetryHost::finish(std::function<void()> done) {
  finished_ = true;
  if (next_pull_) next_pull_->disarm();
  if (window_end_) window_end_->disarm();
  // Windows that are still open have seen values, too.
  if (pipeline_.carries(Record::Kind::Window)) {
    tell_windows(telemetry::Registry::Closing::AtTheEnd);
  }
  pull();
  const auto open = std::make_shared<std::size_t>(sinks_.size());
  // Counted down by all sinks, in any order; the last one ends the wait.
  const auto one_done = [open, done = std::move(done)] {
    if (--*open == 0) done();
  };
  if (sinks_.empty()) {
    *open = 1;
    one_done();
  }
  for (const auto& sink : sinks_) sink->finish(one_done);
}

std::vector<exporter::SinkAccount> TelemetryHost::accounts() const {
  std::vector<exporter::SinkAccount> all;
  for (const auto& sink : sinks_) all.push_back(sink->account());
  return all;
}

}  // namespace elastrun::agent
