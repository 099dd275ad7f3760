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
  enum class Grain { Each, Seconds, Totals } grain;  // of the samples of workers, unless it is said
};
using Grain = SinkRow::Grain;
constexpr std::array<SinkRow, 7> kSinkRows = {{
    {"console", SinkKind::Console, "[:GROUP]", "console", Grain::Each},
    {"jsonl", SinkKind::JsonLines, ":FILE", "jsonl:run.jsonl", Grain::Each},
    {"prometheus", SinkKind::Prometheus, ":FILE[;openmetrics]",
     "prometheus:/var/lib/node_exporter/job.prom", Grain::Totals},
    {"tensorboard", SinkKind::TensorBoard, ":DIR", "tensorboard:runs", Grain::Seconds},
    {"trace", SinkKind::Trace, ":FILE", "trace:trace.json", Grain::Seconds},
    {"otlp", SinkKind::Otlp, ":URL", "otlp:http://collector:4318", Grain::Totals},
    {"exec", SinkKind::Exec, ":COMMAND", "exec:python3 collect.py", Grain::Seconds},
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
  // The kernel would end the name or command there, and another one would be used.
  if (argument.find('\0') != argument.npos) return "a zero byte is in it";
  if (kind == SinkKind::Otlp && !argument.starts_with("http://") &&
      !argument.starts_with("https://")) {
    return "expected http://HOST[:PORT][/PATH] or https://...";
  }
  return {};
}

constexpr std::string_view kWindow = ";window=";

/// Takes the option off the end of a sink's text: "" or the value of window.
std::string_view take_window(std::string_view& text) {
  const auto at = text.rfind(kWindow);
  if (at == text.npos) return {};
  const auto value = text.substr(at + kWindow.size());
  // A command of exec: may hold those words in its middle.
  if (value.empty() || value.find_first_of(" ;:/") != value.npos) return {};
  text = text.substr(0, at);
  return value;
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
  auto rest = text;
  const auto window = take_window(rest);
  const auto colon = rest.find(':');
  const auto name = rest.substr(0, colon);
  auto argument = colon == rest.npos ? std::string_view() : rest.substr(colon + 1);
  const auto row = std::ranges::find(kSinkRows, name, &SinkRow::name);
  if (row == kSinkRows.end()) {
    const auto near = nearest(name, names());
    return refuse(source, fmt::format("unknown sink {}", in_quotes(name)),
                  (near ? fmt::format("did you mean {}? ", *near) : std::string()) +
                      fmt::format("The sinks are none, {}", known_metrics_sinks()));
  }
  constexpr std::string_view kOpenMetrics = ";openmetrics";
  const bool open = row->kind == SinkKind::Prometheus && argument.ends_with(kOpenMetrics);
  if (open) argument.remove_suffix(kOpenMetrics.size());
  if (argument.empty() && !row->argument.starts_with('[')) {
    return refuse(source, fmt::format("the sink {} needs {}", name, row->argument.substr(1)),
                  fmt::format("for example {}", row->example));
  }
  const auto fault = argument.empty() ? std::string() : fault_of(row->kind, argument);
  if (!fault.empty()) {
    return refuse(source, fmt::format("{} of the sink {}: {}", in_quotes(argument), name, fault),
                  fmt::format("for example {}", row->example));
  }
  if (!window.empty() && row->grain == Grain::Totals) {
    return refuse(source, fmt::format("the sink {} has no window", name),
                  "it takes totals, with the count and the sum of all samples");
  }
  if (!window.empty() && window != "0" && window != "1s") {
    return refuse(
        source, fmt::format("{} is no window of the sink {}", in_quotes(window), name),
        "expected 0 (each sample) or 1s (their sum), for example jsonl:run.jsonl;window=1s");
  }
  const bool each = window.empty() ? row->grain == Grain::Each : window == "0";
  return SinkChoice{row->kind, std::string(text), std::string(argument), each, {}, open};
}

Answer<std::vector<SinkChoice>> metrics_sinks(const Override& given,
                                              const std::vector<MetricsRouteRow>& rows) {
  std::vector<SinkChoice> sinks;
  const auto add = [&](const std::string& text, const std::string& source) -> Answer<std::size_t> {
    // One sink for one text: opened twice, a file would get each record twice.
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

Answer<std::vector<std::pair<std::string, std::vector<std::string>>>> stat_aggregations(
    const Override& given) {
  static const std::vector<std::string> kNames = {"value", "mean",   "count",    "sum", "max",
                                                  "min",   "stddev", "p50",      "p90", "p95",
                                                  "p99",   "p999",   "histogram"};
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const auto& text : given.listed ? given.items : split_filters(given.text)) {
    if (text.empty()) continue;
    // The last one: a pattern may hold the sign, names of aggregations do not.
    const auto equals = text.rfind('=');
    const auto pattern = text.substr(0, equals);
    auto names =
        equals == text.npos ? std::vector<std::string>() : split(text.substr(equals + 1), '+');
    const auto strange = std::ranges::find_if(names, [](const std::string& name) {
      return std::ranges::find(kNames, name) == kNames.end();
    });
    if (pattern.empty() || names.empty()) {
      return refuse(given.source, fmt::format("{} names no aggregations", in_quotes(text)),
                    "expected PATTERN=NAME[+NAME...], for example 'train.*=p95+p99'");
    }
    if (strange != names.end()) {
      return refuse(given.source, fmt::format("unknown aggregation {}", in_quotes(*strange)),
                    fmt::format("the aggregations are {}", join(kNames, ", ")));
    }
    all.emplace_back(pattern, std::move(names));
  }
  return all;
}

}  // namespace elastrun::spec
