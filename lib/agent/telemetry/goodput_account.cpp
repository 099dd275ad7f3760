// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/goodput_account.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/reports/summary.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <ctime>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>
#include <utility>

namespace elastrun::agent {

bool is_failure(const rendezvous::Cause& cause) {
  using Kind = rendezvous::Cause::Kind;
  return cause.kind != Kind::NodeJoined && cause.kind != Kind::NodeLeft;
}

namespace {

constexpr const char* kCreated = "ELASTRUN_JOB_CREATED";
constexpr std::int64_t kLatest = 9'000'000'000;  // seconds
constexpr std::string_view kAccount = "/var/run/secrets/kubernetes.io/serviceaccount";

std::optional<WallTime> at_second(std::int64_t seconds) {
  if (seconds <= 0 || seconds > kLatest) return std::nullopt;
  return WallTime(std::chrono::seconds(seconds));
}

/// RFC 3339 as Kubernetes writes it: UTC, whole seconds.
std::optional<WallTime> parse_utc(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  // timegm(3), since mktime(3) would take these parts for local time.
  return rest != nullptr && *rest == '\0' ? at_second(::timegm(&parts)) : std::nullopt;
}

std::optional<WallTime> created(const std::string& text) {
  const auto seconds = parse_int(text);
  const auto time = seconds ? at_second(*seconds) : parse_utc(text);
  if (!time) {
    log::warning("goodput", "{}='{}': no time, ignored; expected seconds since the epoch, or {}",
                 kCreated, text, "2026-01-02T03:04:05Z");
  }
  return time;
}

/// An update of the token, once an hour or so, changes the folder; where its file system tells when
/// it was made, that holds.
std::optional<WallTime> volume_made(const std::string& root) {
  struct statx made {};
  const std::string path = root + std::string(kAccount);
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME | STATX_MTIME, &made) != 0)
    return std::nullopt;
  // Not every file system keeps the time of birth: the mask says what was filled in (statx(2)).
  const bool birth = (made.stx_mask & STATX_BTIME) != 0;
  return at_second(birth ? made.stx_btime.tv_sec : made.stx_mtime.tv_sec);
}

using goodput::Bucket;
using goodput::WindowView;
using telemetry::Kind;

// A collection asks a dozen instruments in a row, and all must tell of the same moment.
constexpr Duration kSameLook = std::chrono::milliseconds(50);

std::string size_label(Duration size) {
  return fmt::to_string(std::chrono::duration_cast<std::chrono::seconds>(size).count());
}

/// Nothing where the clocks of scheduler and node cannot both be right.
std::optional<Duration> waited_before(TimePoint job_start, std::optional<WallTime> scheduled,
                                      const Clock& clock) {
  if (!scheduled) return std::nullopt;
  // The start is counted back by the steady clock: the wall clock of that moment may have been set
  // since.
  const auto waited = clock.wall() - (clock.now() - job_start) - *scheduled;
  const bool can_be = waited >= Duration::zero() && waited < std::chrono::days(366);
  return can_be ? std::optional<Duration>(waited) : std::nullopt;
}

bool workers_run(Bucket bucket) {
  return bucket != Bucket::Startup && bucket != Bucket::Rendezvous && bucket != Bucket::Restart &&
         bucket != Bucket::Stopping && bucket != Bucket::Queued;
}

json::object window_json(const WindowView& view) {
  json::object buckets;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    if (view.buckets[i] <= Duration::zero()) continue;
    buckets[goodput::bucket_name(static_cast<Bucket>(i))] = to_seconds(view.buckets[i]);
  }
  json::object object{{"size_s", to_seconds(view.size)}, {"covered_s", to_seconds(view.covered)}};
  const auto share = view.share();
  object["goodput"] = share.is_known() ? json::value(share.least()) : nullptr;
  object["goodput_at_most"] = share.most();
  object["goodput_at_least"] = share.least();
  object["buckets_s"] = std::move(buckets);
  return object;
}

}  // namespace

std::optional<WallTime> scheduled_since(const std::vector<std::string>& environment,
                                        const std::string& root) {
  const auto variable = [&](std::string_view name) { return find_variable(environment, name); };
  if (const auto text = variable(kCreated); text && !text->empty()) {
    if (const auto time = created(std::string(*text))) return time;
  }
  if (const auto text = variable("SLURM_JOB_START_TIME")) {
    const auto seconds = parse_int(*text);
    return seconds ? at_second(*seconds) : std::nullopt;
  }
  return variable("KUBERNETES_SERVICE_HOST") ? volume_made(root) : std::nullopt;
}

/// All of those that work for the job must be: a job waits for its slowest rank. GPUs whose driver
/// does not tell are not asked.
bool DutyCycle::is_busy(const system::MachineSample& sample) {
  if (sample.workers.empty()) return false;
  const auto told = [](const system::GpuUse& gpu) { return gpu.utilization.has_value(); };
  if (std::ranges::any_of(sample.gpus, told)) {
    // Those without memory in use are not this job's.
    return std::ranges::all_of(sample.gpus, [&](const system::GpuUse& gpu) {
      return !told(gpu) || gpu.memory_used == 0U || *gpu.utilization > kIdle;
    });
  }
  return std::ranges::all_of(sample.workers, [](const system::WorkerUse& worker) {
    return worker.cores.value_or(0) > kIdle;
  });
}

GoodputAccount::GoodputAccount(Clock& clock, TimePoint job_start, bool several_nodes,
                               bool hears_workers, AccountViewers viewers)
    : clock_(clock),
      job_start_(job_start),
      hears_workers_(hears_workers),
      viewers_(viewers),
      waited_(waited_before(job_start, viewers.scheduled, clock)),
      account_(job_start, several_nodes, clock.now()),
      monitor_({std::chrono::hours(1), std::chrono::days(1)}),
      tick_(clock.make_alarm()) {
  if (viewers_.host == nullptr) return;
  observations_.emplace(viewers_.host->registry(), kAgentScope);
  observe_all();
  if (viewers_.machine == nullptr) return;
  viewers_.machine->on_sample(
      [this, alive = lifetime_.token()](const system::MachineSample& sample) {
        if (alive) duty_.take(sample);
      });
}

const goodput::Ledger::Summary& GoodputAccount::now() const {
  const auto time = clock_.now();
  if (!summary_ || time - summary_at_ > kSameLook) {
    summary_ = account_.summary(time);
    summary_at_ = time;
  }
  return *summary_;
}

void GoodputAccount::on(const moment::Restarting& seen) {
  const auto& cause = seen.order.cause;
  account_.restarting(cause.text, is_failure(cause), clock_.now());
  const bool runs = phase_ != Phase::Joining;  // else the order is for others
  // A job that grows was not disrupted.
  if (runs && cause.kind != rendezvous::Cause::Kind::NodeJoined) ++disruptions_;
  take();
}

void GoodputAccount::on(const moment::Ended& seen) {
  using Kind = Ending::Kind;
  const auto kind = seen.result.ending.kind;
  account_.ended(seen.result.succeeded(), clock_.now(),
                 kind == Kind::Preempted   ? "preempted"
                 : kind == Kind::Signalled ? "signalled"
                                           : "stopped");
  take();
  tick_->disarm();
}

void GoodputAccount::hear(const workers::Message& said) {
  const auto now = clock_.now();
  if (const auto* one = std::get_if<workers::StepDone>(&said)) step(one->step);
  if (const auto* one = std::get_if<workers::PhaseEntered>(&said)) account_.entered(one->name, now);
  const auto* entries = std::get_if<workers::GoodputEntries>(&said);
  if (entries == nullptr) return;
  const auto wall = clock_.wall();
  for (const auto& [entry, name, members] : entries->entries) {
    const auto at = goodput::time_of_entry(entry.time, now, wall);
    account_.recorded(entry, name, at);
    const bool is_step = entry.kind == goodput::MeasurementKind::Step;
    if (is_step && first_rank_ == 0) pace_.step(entry.step, at);
  }
}

json::value GoodputAccount::status() const {
  if (!here_ || !viewers_.host) return nullptr;
  auto text = goodput::summary_json(now());
  json::array windows;
  for (std::size_t i = 0; i < monitor_.windows(); ++i) {
    windows.push_back(window_json(monitor_.view(i, now())));
  }
  text["windows"] = std::move(windows);
  return text;
}

/// The names, units and labels of the reference's monitoring, under our prefix.
void GoodputAccount::observe_all() {
  using Self = GoodputAccount;
  using Number = std::optional<double>;
  struct One {
    Kind kind;
    std::string_view name, unit, help;
    Number (*number)(const Self& self);
    std::string_view key = {}, label = {};
  };
  static constexpr One kOnes[] = {
      {Kind::Gauge, "goodput_time", "s", "Time in steps that count.",
       [](const Self& self) -> Number {
         const auto& now = self.now();
         if (!now.steps_known()) return std::nullopt;
         return to_seconds(now.of(Bucket::Productive) - now.doubtful);
       },
       "goodput_source", "TOTAL"},
      {Kind::Gauge, "doubtful_time", "s",
       "Time in steps that failures may have cost: which were saved could not be told.",
       [](const Self& self) {
         return self.now().untold_saves > 0 ? Number(to_seconds(self.now().doubtful)) : Number();
       }},
      {Kind::Gauge, "goodput_at_full_pace", "1",
       "Share of the time that the kept steps would have taken at the pace of the most ranks.",
       [](const Self& self) { return goodput::at_full_pace(self.now()); }},
      {Kind::Gauge, "total_elapsed_time", "s", "Time since the start of the job.",
       [](const Self& self) { return Number(to_seconds(self.now().elapsed)); }, "window_type",
       "cumulative"},
      {Kind::Counter, "disruptions", "{disruption}",
       "Restarts of the workers, other than for nodes that join.",
       [](const Self& self) { return Number(self.disruptions_); }, "window_type", "cumulative"},
      {Kind::Gauge, "max_productive_steps", "{step}", "The last step that is kept.",
       [](const Self& self) { return Number(self.now().last_kept); }},
      {Kind::Gauge, "step_time_deviation", "s", "How far steps are from their usual time.",
       [](const Self& self) { return self.pace_.deviation(); }},
      {Kind::Gauge, "performance", "s", "What a step takes if nothing disturbs it.",
       [](const Self& self) { return self.pace_.ideal(); }},
      {Kind::Gauge, "scheduling_goodput", "1",
       "Share of the time since the scheduler started the job in which its workers ran.",
       [](const Self& self) { return self.scheduling(); }},
      {Kind::Gauge, "proxy_runtime_goodput", "1",
       "Share of the time in which the accelerators of this node, or else its workers' "
       "processors, were busy.",
       [](const Self& self) -> Number {
         const double all = to_seconds(self.since_scheduled());
         const auto busy = self.duty_.busy();
         if (!busy || all <= 0) return std::nullopt;
         return std::min(to_seconds(*busy) / all, 1.0);
       }}};
  for (const auto& one : kOnes) {
    if (one.name == "scheduling_goodput" && !waited_) continue;
    std::vector<std::string> keys, labels;
    if (!one.key.empty()) keys.emplace_back(one.key), labels.emplace_back(one.label);
    observe(one.kind, one.name, one.unit, one.help, keys,
            [this, number = one.number, labels](const Report& report) {
              if (!here_) return;
              if (const auto value = number(*this)) report(*value, labels);
            });
  }
  observe(Kind::Gauge, "badput_time", "s", "All other time, by where it went.",
          {"badput_source", "bucket"}, [this](const Report& report) { tell_badput(report); });
  observe(Kind::Gauge, "interval_goodput", "%", "Share of a rolling window in steps that count.",
          {"rolling_window_size", "goodput_source"},
          [this](const Report& report) { tell_interval_goodput(report); });
  observe(Kind::Gauge, "interval_badput", "%", "Share of a rolling window, by where it went.",
          {"rolling_window_size", "badput_source", "bucket"},
          [this](const Report& report) { tell_interval_badput(report); });
}

void GoodputAccount::tell_badput(const Report& report) const {
  if (!here_) return;
  const auto tell = [&](Duration time, std::vector<std::string> labels) {
    if (time > Duration::zero()) report(to_seconds(time), std::move(labels));
  };
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto bucket = static_cast<Bucket>(i);
    if (bucket == Bucket::Productive || bucket == Bucket::Checkpoint) continue;
    // Told by name below.
    if (bucket == Bucket::Custom && !now().custom.empty()) continue;
    tell(now().of(bucket), labels_of(bucket));
  }
  for (const auto& [name, time] : now().custom) {
    // A page with a byte that is not UTF-8 is refused as a whole.
    const auto valid = valid_utf8(name);
    tell(time, {"CUSTOM_BADPUT_EVENTS." + goodput::in_capitals(valid), "custom." + valid});
  }
  auto checkpoint = labels_of(Bucket::Checkpoint);
  tell(now().of(Bucket::Checkpoint) - now().restoring, checkpoint);
  checkpoint.front() = goodput::kRestoreSource;
  tell(now().restoring, checkpoint);
}

std::optional<double> GoodputAccount::scheduling() const {
  Duration time{};
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    if (workers_run(static_cast<Bucket>(i))) time += now().buckets[i];
  }
  const double all = to_seconds(since_scheduled());
  return all > 0 ? std::optional(to_seconds(time) / all) : std::nullopt;
}

void GoodputAccount::tell_interval_goodput(const Report& report) const {
  if (!here_) return;
  for (std::size_t i = 0; i < monitor_.windows(); ++i) {
    const auto view = monitor_.view(i, now());
    if (!view.share().is_bounded()) continue;
    report(view.share().least() * 100, {size_label(view.size), "TOTAL"});
  }
}

void GoodputAccount::tell_interval_badput(const Report& report) const {
  if (!here_) return;
  for (std::size_t i = 0; i < monitor_.windows(); ++i) {
    const auto view = monitor_.view(i, now());
    const double whole = std::max(to_seconds(view.covered), 1e-9);
    for (std::size_t b = 0; b < goodput::kBuckets; ++b) {
      const auto bucket = static_cast<Bucket>(b);
      // Once it has been of some use, it is zero where it has gone.
      if (bucket == Bucket::Productive || now().of(bucket) <= Duration::zero()) continue;
      auto labels = labels_of(bucket);
      labels.insert(labels.begin(), size_label(view.size));
      Duration time = view.of(bucket);
      if (bucket == Bucket::Checkpoint && now().restoring > Duration::zero()) {
        auto restored = labels;
        restored[1] = goodput::kRestoreSource;
        report(to_seconds(view.restoring) / whole * 100, restored);
        time -= view.restoring;
      }
      report(to_seconds(time) / whole * 100, std::move(labels));
    }
  }
}

}  // namespace elastrun::agent
