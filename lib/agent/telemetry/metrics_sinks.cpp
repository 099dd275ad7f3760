// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/metrics_sinks.hpp"

#include "agent/files/log_folders.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "export/chrome_trace.hpp"
#include "export/exposition.hpp"
#include "export/json_lines.hpp"
#include "export/otlp_sink.hpp"
#include "export/program_writer.hpp"
#include "export/stream_sink.hpp"
#include "export/tensorboard.hpp"
#include "files/blocking_calls.hpp"
#include "files/whole_file.hpp"
#include "logs/console.hpp"
#include "telemetry/metrics.hpp"
#include "workers/environment.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

using exporter::FileWriter;
using exporter::StreamSink;
using spec::SinkChoice;
using telemetry::Record;
using telemetry::Severity;
using Kind = SinkChoice::Kind;
using Made = Result<std::shared_ptr<exporter::MetricsSink>>;

std::unexpected<Error> trouble(const SinkChoice& sink, const Error& error) {
  return fail(error.code, fmt::format("--metrics {}: {}", sink.text, error.text));
}

/// Before the loop: a call that may wait for a file system.
auto within_limit(const SinkChoice& sink, auto work) {
  return files::result_within("--metrics " + sink.text, LogFolders::kTimeLimit, std::move(work));
}

std::string variable(const std::vector<std::string>& environment, std::string_view name) {
  return std::string(workers::find_variable(environment, name).value_or(""));
}

StreamSink::Format json_format() {
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

}  // namespace

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

std::string MetricsSinks::path_of(const SinkChoice& sink) const {
  return path_for_node(sink.argument, spec_.run_id);
}

/// Whether other nodes may have been given the very same file.
bool MetricsSinks::may_share(const SinkChoice& sink) const {
  const bool told_apart = sink.argument.contains("%h") || sink.argument.contains("%p");
  return spec_.max_nodes > 1 && !told_apart;
}

std::vector<telemetry::Selector> MetricsSinks::selectors_of(const SinkChoice& sink) {
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

std::string MetricsSinks::instance() const {
  // No two agents may have the same: OpenTelemetry's conventions ask for that of
  // service.instance.id, and a collector would mix their counters.
  return fmt::format("{}/{}/{}", spec_.run_id, host_name(), ::getpid());
}

/// What is the same for all records and series of this agent.
std::vector<telemetry::Attribute> MetricsSinks::resource() const {
  return {{"service.name", "elastrun.agent"}, {"service.instance.id", instance()},
          {"host.name", host_name()},         {"process.pid", std::int64_t{::getpid()}},
          {"elastrun.run.id", spec_.run_id},  {"elastrun.role", spec_.role}};
}

Made MetricsSinks::make_console(const SinkChoice& sink) const {
  return std::make_shared<exporter::ConsoleLines>(sink.text, parts_.console);
}

/// For a file, or for one of our own streams, which the console writes.
Result<std::unique_ptr<exporter::PieceWriter>> MetricsSinks::open_stream(
    const SinkChoice& sink) const {
  using Stream = logs::Console::Stream;
  struct Opened {
    std::optional<Stream> ours;
    std::shared_ptr<FileWriter::File> file;
  };
  FileWriter::Form form;
  if (sink.kind == Kind::Trace) {
    // A trace is one JSON document, to which nothing can be appended.
    form = {O_TRUNC, 0644, std::string(exporter::kTraceBegin), exporter::trace_end(), false};
  }
  const auto open = [path = path_of(sink), shared = may_share(sink), form,
                     out = parts_.console.outlet(Stream::Out).fd(),
                     err = parts_.console.outlet(Stream::Err).fd()]() -> Result<Opened> {
    if (const auto ours = logs::own_stream(path, out, err)) return Opened{ours, nullptr};
    auto file = FileWriter::open(own_file(path, shared), form);
    if (!file) return std::unexpected(file.error());
    return Opened{{}, std::move(*file)};
  };
  const auto opened = within_limit(sink, open);
  if (!opened) return std::unexpected(opened.error());
  if (!opened->ours) return std::make_unique<FileWriter>(parts_.files, opened->file);
  return std::make_unique<exporter::ConsoleWriter>(parts_.console, *opened->ours, form);
}

Made MetricsSinks::make_stream(const SinkChoice& sink) const {
  auto writer = open_stream(sink);
  if (!writer) return trouble(sink, writer.error());
  auto format = json_format();
  if (sink.kind == Kind::Trace) {
    format = [lines = exporter::TraceLines(parts_.clock.now())](const Record& record) mutable {
      return lines.of(record);
    };
  }
  return std::make_shared<StreamSink>(parts_.clock, sink.text, std::move(format),
                                      std::move(*writer));
}

Made MetricsSinks::make_tensorboard(const SinkChoice& sink) const {
  const auto now = parts_.clock.wall();
  FileWriter::Form form{O_EXCL, 0644, exporter::tensorboard_version(now), {}, false};
  // A file of each agent and start: TensorBoard reads all event files of a folder as one run.
  const auto name = exporter::tensorboard_file_name(now, host_name(), ::getpid());
  const auto open = [directory = path_of(sink), name,
                     form]() -> Result<std::shared_ptr<FileWriter::File>> {
    if (auto made = make_directory(directory); !made) return std::unexpected(made.error());
    return FileWriter::open(directory + "/" + name, form);
  };
  auto file = within_limit(sink, open);
  if (!file) return trouble(sink, file.error());
  auto format = [records = exporter::TensorBoardRecords()](const Record& record) mutable {
    return records.of(record);
  };
  return std::make_shared<StreamSink>(parts_.clock, sink.text, std::move(format),
                                      std::make_unique<FileWriter>(parts_.files, *file));
}

Made MetricsSinks::make_page(const SinkChoice& sink) const {
  using exporter::PageForm, exporter::PageSink;
  const auto form = sink.openmetrics ? PageForm::OpenMetrics : PageForm::Prometheus;
  const auto put = [path = path_of(sink), shared = may_share(sink), form]() -> Result<std::string> {
    auto own = own_file(path, shared);
    // So that a place that cannot be written is told before any worker runs.
    if (auto done = PageSink::put_empty(own, form); !done) return std::unexpected(done.error());
    return own;
  };
  const auto path = within_limit(sink, put);
  if (!path) return trouble(sink, path.error());
  return std::make_shared<PageSink>(
      parts_.files, sink.text, *path, form,
      exporter::PageOptions{.resource = resource(), .tells_refused = true});
}

Made MetricsSinks::make_otlp(const SinkChoice& sink) const {
  const auto& environment = parts_.environment;
  auto target = exporter::parse_otlp_url(sink.argument);
  if (!target) return trouble(sink, target.error());
  exporter::OtlpSink::Settings settings{.target = std::move(*target)};
  if (settings.target.tls) {
    const auto ca = variable(environment, "OTEL_EXPORTER_OTLP_CERTIFICATE");
    auto tls = within_limit(sink, [ca] { return net::TlsClient::make({ca, {}, {}}); });
    if (!tls) return trouble(sink, tls.error());
    settings.tls = *tls;
  }
  settings.headers =
      exporter::parse_otlp_headers(variable(environment, "OTEL_EXPORTER_OTLP_HEADERS"));
  settings.options = {.resource = resource(), .version = ELASTRUN_VERSION};
  // The agents of a job share a trace, without a word between them. Of jobs of one node the name is
  // often the same.
  settings.options.trace = spec_.max_nodes > 1 ? spec_.run_id : instance();
  return std::make_shared<exporter::OtlpSink>(parts_.loop, parts_.clock, sink.text,
                                              std::move(settings));
}

Made MetricsSinks::make_program(const SinkChoice& sink) const {
  auto writer = std::make_unique<exporter::ProgramWriter>(
      parts_.loop, parts_.clock, parts_.programs, sink.argument, parts_.environment);
  return std::make_shared<StreamSink>(parts_.clock, sink.text, json_format(), std::move(writer));
}

Made MetricsSinks::make(const SinkChoice& sink) const {
  switch (sink.kind) {
    case Kind::Console:
      return make_console(sink);
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
  return make_program(sink);
}

}  // namespace elastrun::agent
