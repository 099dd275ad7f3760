// SPDX-License-Identifier: Apache-2.0
#include "spec/sink_choices.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

using SinkKind = SinkChoice::Kind;

struct SinkRow {
  std::string_view name;
  SinkKind kind;
  std::string_view argument;  // for people; in brackets: may be left out
  std::string_view example;
};
constexpr std::array<SinkRow, 10> kSinkRows = {{
    {"console", SinkKind::Console, "[:GROUP]", "console"},
    {"jsonl", SinkKind::JsonLines, ":FILE", "jsonl:run.jsonl"},
    {"prometheus", SinkKind::Prometheus, ":FILE", "prometheus:/var/lib/node_exporter/job.prom"},
    {"openmetrics", SinkKind::OpenMetrics, ":FILE", "openmetrics:job.om"},
    {"tensorboard", SinkKind::TensorBoard, ":DIR", "tensorboard:runs"},
    {"trace", SinkKind::Trace, ":FILE", "trace:trace.json"},
    {"statsd", SinkKind::Statsd, ":HOST[:PORT]", "statsd:127.0.0.1:8125"},
    {"otlp", SinkKind::Otlp, ":URL", "otlp:http://collector:4318"},
    {"exec", SinkKind::Exec, ":COMMAND", "exec:python3 collect.py"},
    {"plugin", SinkKind::Plugin, ":FILE[?ARGUMENT]", "plugin:./sink.so?verbose"},
}};

std::unexpected<Refusal> refuse(std::string_view source, std::string text, std::string hint) {
  return std::unexpected(
      Refusal{fmt::format("{}: {}", source, std::move(text)), 2, false, std::move(hint)});
}

std::vector<std::string> names() {
  std::vector<std::string> all{"none"};
  for (const auto& row : kSinkRows) all.emplace_back(row.name);
  return all;
}

/// What is wrong with an argument that is there; empty: nothing.
std::string fault_of(SinkKind kind, std::string_view argument) {
  if (argument.find('\0') != argument.npos) return "a zero byte is in it";
  if (kind == SinkKind::Otlp && !argument.starts_with("http://") &&
      !argument.starts_with("https://")) {
    return "expected http://HOST[:PORT][/PATH] or https://...";
  }
  if (kind == SinkKind::Plugin && argument.starts_with('?')) return "no FILE stands before the ?";
  if (kind != SinkKind::Statsd) return {};
  const auto endpoint = parse_endpoint(argument);
  return endpoint && endpoint->port != 0 ? std::string() : "expected HOST or HOST:PORT";
}

}  // namespace

std::string known_metrics_sinks() {
  std::vector<std::string> all;
  for (const auto& row : kSinkRows) all.push_back(fmt::format("{}{}", row.name, row.argument));
  return join(all, ", ");
}

bool is_severity(std::string_view text) {
  constexpr std::array<std::string_view, 7> kNames = {"trace",   "debug", "info", "warn",
                                                      "warning", "error", "fatal"};
  return std::ranges::find(kNames, text) != kNames.end();
}

Answer<SinkChoice> parse_sink_choice(std::string_view text, std::string_view source) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto argument = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  const auto row = std::ranges::find(kSinkRows, name, &SinkRow::name);
  if (row == kSinkRows.end()) {
    const auto near = nearest(name, names());
    return refuse(source, fmt::format("unknown sink {}", in_quotes(name)),
                  (near ? fmt::format("did you mean {}? ", *near) : std::string()) +
                      fmt::format("The sinks are none, {}", known_metrics_sinks()));
  }
  if (argument.empty() && !row->argument.starts_with('[')) {
    return refuse(source, fmt::format("the sink {} needs {}", name, row->argument.substr(1)),
                  fmt::format("for example {}", row->example));
  }
  const auto fault = argument.empty() ? std::string() : fault_of(row->kind, argument);
  if (!fault.empty()) {
    return refuse(source, fmt::format("{} of the sink {}: {}", in_quotes(argument), name, fault),
                  fmt::format("for example {}", row->example));
  }
  return SinkChoice{row->kind, std::string(text), std::string(argument)};
}

Answer<std::vector<SinkChoice>> metrics_sinks(const Override& given,
                                              const std::vector<MetricsRouteRow>& rows) {
  std::vector<SinkChoice> sinks;
  const auto add = [&](const std::string& text, const std::string& source) -> Answer<std::size_t> {
    const auto known = std::ranges::find(sinks, text, &SinkChoice::text);
    if (known != sinks.end()) return static_cast<std::size_t>(known - sinks.begin());
    auto sink = parse_sink_choice(text, source);
    if (!sink) return std::unexpected(sink.error());
    sinks.push_back(std::move(*sink));
    return sinks.size() - 1;
  };
  for (const auto& text : given.listed ? given.items : split_filters(given.text)) {
    if (text == "none" || text.empty()) continue;
    const auto added = add(text, given.source);
    if (!added) return std::unexpected(added.error());
  }
  for (const auto& row : rows) {
    const auto added = add(row.sink, row.source);
    if (!added) return std::unexpected(added.error());
    sinks[*added].routes.push_back(row.route);
  }
  return sinks;
}

}  // namespace elastrun::spec
