// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::spec {

/// One destination of metrics and events: `--metrics NAME[:ARGUMENT]`. Checked, not opened.
struct SinkChoice {
  enum class Kind {
    Console,
    JsonLines,
    Prometheus,
    TensorBoard,
    Trace,
    Otlp,
    Exec
  } kind = Kind::Console;
  std::string text;  // as it was given: its name in logs and reports
  std::string argument;
  /// Whether it is told each sample of a worker, and not what a second of them comes to.
  bool each = false;
  std::vector<MetricsRoute> routes{};  // empty: what it takes by default
  bool openmetrics = false;            // prometheus: in that form
  bool operator==(const SinkChoice&) const = default;
};

/// "console", "tensorboard:runs;window=0", "prometheus:job.om;openmetrics". Refuses (exit code 2) a
/// name that is not known, and an argument that is missing or of the wrong form; `source` is who
/// said it.
Answer<SinkChoice> parse_sink_choice(std::string_view text, std::string_view source);

/// The sinks that `given` names, in order, each once, and those that `rows` name beside them; what
/// a row selects is all that its sink gets.
Answer<std::vector<SinkChoice>> metrics_sinks(const Override& given,
                                              const std::vector<MetricsRouteRow>& rows);

/// "train.*=p95+p99": patterns of names, and what the Stats of those are summarised to.
Answer<std::vector<std::pair<std::string, std::vector<std::string>>>> stat_aggregations(
    const Override& given);

/// "console[:GROUP], jsonl:FILE, ...": for people.
std::string known_metrics_sinks();
/// "trace", "debug", "info", "warn", "error", "fatal"; also "warning".
bool is_severity(std::string_view text);

}  // namespace elastrun::spec
