// SPDX-License-Identifier: Apache-2.0

#include "agent/telemetry/run_metrics.hpp"

#include "agent/files/run_files.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/host.hpp"
#include "core/text.hpp"
#include "export/exposition.hpp"
#include "export/json_lines.hpp"
#include "export/otlp_sink.hpp"
#include "export/record_line.hpp"
#include "export/stream_sink.hpp"
#include "export/viewer_files.hpp"
#include "files/blocking_calls.hpp"
#include "files/whole_file.hpp"
#include "logs/console.hpp"
#include "system/machine.hpp"
#include "telemetry/metrics.hpp"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {

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

using exporter::FileForm;
using spec::SinkChoice;
using telemetry::Record;
using telemetry::Severity;
using Kind = SinkChoice::Kind;
using Made = Result<std::shared_ptr<exporter::MetricsSink>>;

std::unexpected<Error> trouble(const SinkChoice& sink, const Error& error) {
  return fail(error.code, fmt::format("--metrics {}: {}", sink.text, error.text));
}

std::string variable(const std::vector<std::string>& environment, std::string_view name) {
  return std::string(find_variable(environment, name).value_or(""));
}

exporter::RecordFormat json_format() {
  return [](const Record& record) { return exporter::to_json_line(record) + "\n"; };
}

Status make_directory(const std::string& path) {
  std::error_code error;
  if (auto allowed = files::check_links(path); !allowed) return allowed;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return fail(Code::Io, fmt::format("cannot make the directory {}: {}", path, error.message()));
}

/// Nodes that share a file system must not overwrite each other's, as with --report; before the
/// first round none knows its rank, so that each has its name in it. May wait for the file system.
std::string own_file(const std::string& path, bool shared) {
  return shared && !files::is_written_to(path) ? files::with_word(path, host_name()) : path;
}

/// `%h` is the name of this machine, `%i` the id of the run, `%p` our pid, `%%` a percent sign:
/// so that nodes with one file system can have a file each. Other pairs stay.
std::string path_for_node(std::string_view path, std::string_view run_id) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char next = path[i] == '%' && i + 1 < path.size() ? path[i + 1] : '\0';
    if (next == 'h') {
      out += host_name();
    } else if (next == 'i') {
      // A slash in the job's name must not lead to another folder.
      for (const char c : run_id) out += c == '/' ? '_' : c;
    } else if (next == 'p') {
      out += fmt::to_string(::getpid());
    } else if (next == '%') {
      out += '%';
    } else {
      out += path[i];
      continue;
    }
    ++i;
  }
  return out;
}

/// What the sink takes: a record that fits one of them.
std::vector<telemetry::Selector> selectors_of(const SinkChoice& sink) {
  std::vector<telemetry::Selector> all;
  for (const auto& route : sink.routes) {
    all.push_back({route.group,
                   route.name,
                   {},
                   telemetry::severity_named(route.severity).value_or(Severity::Trace),
                   sink.each});
  }
  if (!all.empty()) return all;
  telemetry::Selector one;
  one.each = sink.each;
  // As torchelastic's console handler, which prints the samples of one group and no events.
  if (sink.kind == Kind::Console) {
    one.scope = sink.argument.empty() ? telemetry::metrics::kDefaultGroup : sink.argument;
    one.kind = Record::Kind::Sample;
  }
  if (sink.kind != Kind::Otlp) return {one};
  // Its metrics are pulled.
  auto spans = one;
  one.kind = Record::Kind::Event;
  spans.kind = Record::Kind::SpanEnd;
  return {one, spans};
}

/// Makes the sinks that --metrics and the job file name. Before the loop runs: what can be found
/// out about a file or an address then is an error of the start, not a loss of the run.
struct MetricsSinks {
  RunContext& run;
  files::BlockingCalls& files;  // for their files alone
  process::Launcher& programs;

  std::string path_of(const SinkChoice& sink) const {
    return path_for_node(sink.argument, run.spec.run_id);
  }

  /// Whether other nodes may have been given the very same file.
  bool may_share(const SinkChoice& sink) const {
    const bool told_apart = sink.argument.contains("%h") || sink.argument.contains("%p");
    return run.spec.max_nodes > 1 && !told_apart;
  }

  std::string instance() const {
    // No two agents may have the same: OpenTelemetry's conventions ask for that of
    // service.instance.id, and a collector would mix their counters.
    return fmt::format("{}/{}/{}", run.spec.run_id, host_name(), ::getpid());
  }

  /// What is the same for all records and series of this agent.
  std::vector<telemetry::Attribute> resource() const {
    return {{"service.name", "elastrun.agent"},   {"service.instance.id", instance()},
            {"host.name", host_name()},           {"process.pid", std::int64_t{::getpid()}},
            {"elastrun.run.id", run.spec.run_id}, {"elastrun.role", run.spec.role}};
  }

  /// For a file, or for one of our own streams, which the console writes.
  Result<std::unique_ptr<exporter::PieceWriter>> open_stream(const SinkChoice& sink) const {
    using Stream = logs::Console::Stream;
    struct Opened {
      std::optional<Stream> ours;
      std::unique_ptr<exporter::PieceWriter> file;
    };
    FileForm form;
    if (sink.kind == Kind::Trace) {
      // A trace is one JSON document, to which nothing can be appended.
      form = {O_TRUNC, 0644, std::string(exporter::kTraceBegin), exporter::trace_end(), false};
    }
    const auto open = [path = path_of(sink), shared = may_share(sink), form, &files = files,
                       out = run.console.outlet(Stream::Out).fd(),
                       err = run.console.outlet(Stream::Err).fd()]() -> Result<Opened> {
      if (const auto ours = logs::own_stream(path, out, err)) return Opened{ours, nullptr};
      auto file = exporter::write_file(files, own_file(path, shared), form);
      if (!file) return std::unexpected(file.error());
      return Opened{{}, std::move(*file)};
    };
    auto opened = within_limit("--metrics " + sink.text, open);
    if (!opened) return std::unexpected(opened.error());
    if (!opened->ours) return std::move(opened->file);
    return exporter::write_console(run.console, *opened->ours, form);
  }

  Made make_stream(const SinkChoice& sink) const {
    auto writer = open_stream(sink);
    if (!writer) return trouble(sink, writer.error());
    auto format = json_format();
    if (sink.kind == Kind::Trace) {
      format = [lines = exporter::TraceLines(run.clock.now())](const Record& record) mutable {
        return lines.of(record);
      };
    }
    return exporter::make_stream_sink(run.clock, sink.text, std::move(format), std::move(*writer));
  }

  Made make_tensorboard(const SinkChoice& sink) const {
    const auto now = run.clock.wall();
    FileForm form{O_EXCL, 0644, exporter::tensorboard_version(now), {}, false};
    // A file of each agent and start: TensorBoard reads all event files of a folder as one run.
    const auto name = exporter::tensorboard_file_name(now, host_name(), ::getpid());
    const auto open = [directory = path_of(sink), name, form,
                       &files = files]() -> Result<std::unique_ptr<exporter::PieceWriter>> {
      if (auto made = make_directory(directory); !made) return std::unexpected(made.error());
      return exporter::write_file(files, directory + "/" + name, form);
    };
    auto file = within_limit("--metrics " + sink.text, open);
    if (!file) return trouble(sink, file.error());
    auto format = [records = exporter::TensorBoardRecords()](const Record& record) mutable {
      return records.of(record);
    };
    return exporter::make_stream_sink(run.clock, sink.text, std::move(format), std::move(*file));
  }

  Made make_page(const SinkChoice& sink) const {
    using exporter::PageForm;
    const auto form = sink.openmetrics ? PageForm::OpenMetrics : PageForm::Prometheus;
    const auto put = [path = path_of(sink), shared = may_share(sink),
                      form]() -> Result<std::string> {
      auto own = own_file(path, shared);
      // So that a place that cannot be written is told before any worker runs.
      if (auto done = exporter::put_empty_page(own, form); !done)
        return std::unexpected(done.error());
      return own;
    };
    const auto path = within_limit("--metrics " + sink.text, put);
    if (!path) return trouble(sink, path.error());
    return exporter::make_page_sink(
        files, sink.text, *path, form,
        exporter::PageOptions{.resource = resource(), .tells_refused = true});
  }

  Made make_otlp(const SinkChoice& sink) const {
    const auto& environment = run.environment;
    auto target = exporter::parse_otlp_url(sink.argument);
    if (!target) return trouble(sink, target.error());
    exporter::OtlpSettings settings{.target = std::move(*target)};
    if (settings.target.tls) {
      const auto ca = variable(environment, "OTEL_EXPORTER_OTLP_CERTIFICATE");
      auto tls = within_limit("--metrics " + sink.text, [ca] {
        return net::load_tls({ca, {}, {}});
      });
      if (!tls) return trouble(sink, tls.error());
      settings.tls = *tls;
    }
    settings.headers =
        exporter::parse_otlp_headers(variable(environment, "OTEL_EXPORTER_OTLP_HEADERS"));
    settings.options = {.resource = resource(), .version = ELASTRUN_VERSION};
    // The agents of a job share a trace, without a word between them. Of jobs of one node the name
    // is often the same.
    settings.options.trace = run.spec.max_nodes > 1 ? run.spec.run_id : instance();
    return exporter::make_otlp_sink(run.loop, run.clock, sink.text, std::move(settings));
  }

  Made make(const SinkChoice& sink) const {
    switch (sink.kind) {
      case Kind::Console:
        return exporter::make_console_lines(sink.text, run.console);
      case Kind::JsonLines:
      case Kind::Trace:
        return make_stream(sink);
      case Kind::Prometheus:
        return make_page(sink);
      case Kind::TensorBoard:
        return make_tensorboard(sink);
      case Kind::Otlp:
        return make_otlp(sink);
      case Kind::Exec:
        break;
    }
    auto writer =
        exporter::write_program(run.loop, run.clock, programs, sink.argument, run.environment);
    return exporter::make_stream_sink(run.clock, sink.text, json_format(), std::move(writer));
  }
};

std::string cause_name(const rendezvous::Restart& order) {
  return order.attempt_spent ? "failure" : "membership";
}

using Report = telemetry::Registry::Report;

double number(std::uint64_t whole) {
  return static_cast<double>(whole);
}

}  // namespace

class TelemetryHost::Samples final : public telemetry::Sink {
 public:
  explicit Samples(TelemetryHost& host) : host_(host) {}
  void consume(const Record& sample) override { host_.take_sample(sample); }

 private:
  TelemetryHost& host_;
};

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

/// What the agent measures of itself: elastrun-telemetry(7) lists the instruments. Beside them it
/// tells the pipeline of each stretch of time that has ended (rendezvous, start, stop, the life of
/// a worker) as a span, for traces.
class AgentMetrics final : public Observes<AgentMetrics> {
 public:
  /// Borrows the host. `start`: of the job.
  AgentMetrics(TelemetryHost& host, TimePoint start, int max_restarts)
      : host_(host), start_(start), max_restarts_(max_restarts) {
    restarts_left_.set(max_restarts);
  }

  void on(const moment::PhaseChanged& seen) {
    // A gauge keeps its value, so without this the phase that is over would be told as well.
    if (phase_) phases_.with({std::string(phase_name(*phase_))}).set(0);
    phases_.with({std::string(phase_name(seen.phase))}).set(1);
    phase_ = seen.phase;
    host_.recorded();
  }
  void on(const moment::RoundReady& seen) {
    const auto& self = seen.round.self();
    host_.round_began(seen.round.rank_base, self.local_world_size);
    rendezvous_.add(to_seconds(seen.waited));
    restarts_left_.set(seen.round.restarts_left);
    span("rendezvous", host_.pipeline().clock().now(), seen.waited, {{"round", seen.round.number}});
    host_.recorded();
  }
  void on(const moment::Started& seen) {
    const auto now = host_.pipeline().clock().now();
    starting_.add(to_seconds(seen.took));
    attempt_ = seen.round.attempt;
    span("start", now, seen.took, {{"round", seen.round.number}});
    // Of the first start alone: what a restart takes is another series.
    if (!std::exchange(has_started_, true)) startup_.set(to_seconds(now - start_));
    if (restart_began_) restarting_.add(to_seconds(now - *restart_began_));
    restart_began_.reset();
    group_began_ = now;
    host_.recorded();
  }
  void on(const moment::Restarting& seen) {
    restarts_.with({cause_name(seen.order)}).add();
    restart_began_ = host_.pipeline().clock().now();
    host_.recorded();
  }

  void on(const moment::Stopped& seen) {
    stopping_.add(to_seconds(seen.took));
    span("stop", host_.pipeline().clock().now(), seen.took);
    for (const auto& worker : seen.group) {
      // One that could not be ended has none, and is left behind.
      if (!worker.exit) continue;
      const auto& status = worker.exit->status;
      const bool exited = status.how == process::ExitStatus::How::Exited;
      exits_
          .with({exited ? fmt::to_string(status.number) : "",
                 exited ? "" : process::signal_name(status.number),
                 worker.stopped_by_us ? "true" : "false"})
          .add();
      // Of a group whose start failed started() was never told.
      if (!group_began_) continue;
      span("worker", worker.exit->at, worker.exit->at - *group_began_,
           {{"rank", std::int64_t{worker.rank}},
            {"pid", std::int64_t{worker.pid}},
            {"attempt", std::int64_t{attempt_}}});
    }
    group_began_.reset();
    host_.recorded();
  }

  void on(const moment::Ended& seen) {
    const int left = seen.result.restarts_left;
    // torchelastic's formula: + 1 keeps it defined where no restart is allowed.
    const double spent = 1 - static_cast<double>(left + 1) / (max_restarts_ + 1);
    flakiness_.set(seen.result.succeeded() ? spent : 1);
    restarts_left_.set(left);
    runs_
        .with({seen.result.succeeded() ? "success" : "failure",
               seen.result.restarts > 0 ? "true" : "false"})
        .add();
    span("job", host_.pipeline().clock().now(), host_.pipeline().clock().now() - start_,
         {{"ending", std::string(ending_name(seen.result.ending.kind))}});
    host_.recorded();
  }

 private:
  void span(std::string name, TimePoint end, Duration length,
            std::vector<telemetry::Attribute> attributes = {}) {
    auto& pipeline = host_.pipeline();
    if (!pipeline.carries(telemetry::Record::Kind::SpanEnd)) return;
    telemetry::Record record;
    record.kind = telemetry::Record::Kind::SpanEnd;
    const auto now = pipeline.clock().now();
    // Of the end, not of this call: workers are told of when all of their group are gone.
    record.stamp = {end, pipeline.clock().wall() - (now - end)};
    record.scope = kAgentScope;
    record.name = std::move(name);
    record.attributes = std::move(attributes);
    record.attributes.emplace_back("duration_ns", std::int64_t{length.count()});
    pipeline.emit(std::move(record));
  }

  template <class Instrument>
  Instrument make(std::string name, std::string unit, std::string help,
                  std::vector<std::string> label_keys = {}) const {
    return Instrument({.name = "elastrun." + std::move(name),
                       .unit = std::move(unit),
                       .help = std::move(help),
                       .scope = std::string(kAgentScope),
                       .label_keys = std::move(label_keys)},
                      host_.registry());
  }

  TelemetryHost& host_;
  const TimePoint start_;
  const int max_restarts_;
  std::optional<Phase> phase_;
  std::optional<TimePoint> restart_began_;
  std::optional<TimePoint> group_began_;
  bool has_started_ = false;
  int attempt_ = 0;  // of the workers that run, or ran last
  using Histogram = telemetry::Histogram;
  using Gauge = telemetry::Gauge;
  using Counter = telemetry::Counter;
  const Histogram rendezvous_ =
      make<Histogram>("rendezvous.duration", "s", "Waiting for a round of nodes.");
  const Histogram starting_ =
      make<Histogram>("worker.start.duration", "s", "Starting the workers of this node.");
  const Histogram stopping_ = make<Histogram>(
      "worker.stop.duration", "s", "From the order to stop until nothing of the workers was left.");
  const Histogram restarting_ = make<Histogram>(
      "restart.duration", "s", "From the order to restart until the new workers were started.");
  const Gauge startup_ =
      make<Gauge>("startup.duration", "s",
                  "From the start of the launcher until the first workers were started.");
  const Gauge restarts_left_ =
      make<Gauge>("restarts.remaining", "{restart}", "Restarts that are left.");
  const Gauge flakiness_ =
      make<Gauge>("run.flakiness", "1", "Share of the restarts that a run has spent.");
  const Gauge phases_ =
      make<Gauge>("agent.phase", "", "1 for the phase that the agent is in.", {"phase"});
  const Counter restarts_ = make<Counter>(
      "restart.count", "{restart}",
      "Restarts of the workers, after a failure or a change of the nodes.", {"cause"});
  const Counter exits_ = make<Counter>("worker.exits", "{exit}", "Workers that have ended.",
                                       {"code", "signal", "stopped"});
  const Counter runs_ =
      make<Counter>("run.count", "{run}", "Runs that have ended.", {"outcome", "retried"});
};

void RunMetrics::observe() {
  const auto add = [this](telemetry::Kind kind, std::string name, std::string unit,
                          std::string help, std::vector<std::string> keys, auto report) {
    observations_.add(kind,
                      {.name = std::move(name),
                       .unit = std::move(unit),
                       .help = std::move(help),
                       .label_keys = std::move(keys)},
                      std::move(report));
  };
  using Is = telemetry::Kind;
  add(Is::Counter, "elastrun.store.requests", "{request}",
      "Requests to the workers' store, where this node serves it.", {},
      [this](const Report& report) { report(number(run_.counts().store_requests), {}); });
  add(Is::Gauge, "elastrun.store.connections", "{connection}",
      "Open connections to the workers' store of this node.", {},
      [this](const Report& report) { report(number(run_.counts().store_connections), {}); });
  add(Is::Counter, "elastrun.worker.output", "By",
      "What the workers have written to stdout and stderr.", {"stream"},
      [this](const Report& report) {
        report(number(run_.counts().output), {"stdout"});
        report(number(run_.counts().errors), {"stderr"});
      });
  add(Is::Counter, "elastrun.channel.messages", "{message}",
      "What workers have reported over their channel.", {},
      [this](const Report& report) { report(number(run_.counts().channel.messages), {}); });
  add(Is::Counter, "elastrun.channel.dropped", "{message}",
      "Reports of workers that were refused, or were too many to be taken further.", {"reason"},
      [this](const Report& report) {
        const auto& records = records_.statistics();
        const auto channel = run_.counts().channel;
        report(number(channel.refused + records.refused), {"refused"});
        report(number(channel.strange), {"stranger"});
        report(number(records.suppressed), {"suppressed"});
        report(number(records.overflowed), {"overflowed"});
        report(number(channel.not_told), {"worker"});
      });
  add(Is::Counter, "elastrun.telemetry.dropped", "{record}",
      "Records that a sink of --metrics or the journal has lost, or the pipeline before all sinks.",
      {"sink"}, [this](const Report& report) {
        report(number(host_.pipeline().dropped()), {"pipeline"});
        report(number(host_.registry().refused_samples()), {"series"});
        if (journal_) report(number(journal_->lost()), {"journal"});
        for (const auto& one : host_.accounts()) {
          // An account counts as lost what has not been delivered yet, and what waits may still be.
          report(number(one.lost - one.waiting), {one.sink});
        }
      });
  add(Is::Gauge, "elastrun.telemetry.queue.length", "{record}",
      "Records that wait for a sink of --metrics.", {"sink"}, [this](const Report& report) {
        for (const auto& one : host_.accounts()) report(number(one.waiting), {one.sink});
      });
}

RunMetrics::RunMetrics(RunContext& run, telemetry::Pipeline& pipeline, const WorkerRecords& records)
    : run_(run),
      records_(records),
      files_(run.loop.get_executor()),
      programs_(run.loop, run.clock),
      host_(run.clock, pipeline, telemetry::process_registry(), run.spec.metrics_interval),
      own_(std::make_unique<AgentMetrics>(host_, run.clock.now(), run.spec.max_restarts)),
      machine_(run) {
  observe();
  const auto gather = [this](TelemetryHost::TakePoints take) {
    machine_.look([this, take = std::move(take)](const system::MachineSample& sample) {
      take(machine_.points_of(sample));
    });
  };
  host_.add_source(gather, system::machine_point_names());
  for (const auto& [pattern, names] : run.spec.aggregations) choose(pattern, names);
}

/// Of our own instruments; workers do the same for their Stats, where `*` matches dots, too.
void RunMetrics::choose(const std::string& pattern, const std::vector<std::string>& names) {
  using telemetry::Aggregation;
  if (!pattern.starts_with("elastrun.")) return;
  std::set<Aggregation> chosen;
  for (const auto& name : names) {
    const auto found = std::ranges::find(worker::kAggregations, name);
    const auto one = static_cast<Aggregation>(found - worker::kAggregations.begin());
    // That is for Stats of workers.
    if (one < Aggregation::Histogram) chosen.insert(one);
  }
  std::string wide;
  for (const char c : pattern) wide.append(c == '*' ? 2 : 1, c);
  if (!chosen.empty()) host_.registry().override_aggregations(std::move(wide), std::move(chosen));
}

Started<void> RunMetrics::add_sinks() {
  const MetricsSinks sinks{run_, files_, programs_};
  for (const auto& choice : run_.spec.metrics) {
    auto sink = sinks.make(choice);
    if (!sink) {
      using Reason = StartFailure::Reason;
      const bool wrong = sink.error().code == Code::Usage;
      return std::unexpected(
          StartFailure(sink.error(), wrong ? Reason::WrongOption : Reason::Conditions));
    }
    using By = TelemetryHost::By;
    host_.add(std::move(*sink), selectors_of(choice),
              choice.routes.empty() ? By::Default : By::User);
  }
  return {};
}

const std::vector<exporter::SinkAccount>& RunMetrics::end() {
  if (std::exchange(ended_, true)) return accounts_;
  const auto delivered = std::make_shared<bool>(false);
  host_.finish([this, delivered, alive = lifetime_.token()] {
    *delivered = true;
    if (alive && ending_) run_.loop.stop();
  });
  if (!*delivered) {
    ending_ = true;
    const auto limit = run_.clock.make_alarm();
    // A loop that was stopped runs nothing until then (io_context::restart()).
    run_.loop.restart();
    // A collector that does not answer must not keep the job from ending.
    limit->arm(run_.clock.now() + kTimeLimit, [this] { run_.loop.stop(); });
    run_.loop.run();
    ending_ = false;
  }
  accounts_ = host_.accounts();
  for (const auto& sink : accounts_) {
    if (sink.lost == 0) {
      log::info("metrics", "{}: {} delivered", sink.sink, sink.delivered);
    } else {
      log::warning("metrics", "{}: {} delivered, {} lost: {}", sink.sink, sink.delivered, sink.lost,
                   sink.trouble.empty() ? "it is too slow" : sink.trouble);
    }
  }
  return accounts_;
}

}  // namespace elastrun::agent
