// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <optional>
#include <set>
#include <string>

/// Traces for Perfetto and chrome://tracing, in the array form of Chrome's "Trace Event Format":
/// one event a line. The closing bracket may be missing, so that a file is readable whenever its
/// writer ends.
namespace elastrun::exporter {

struct TraceEvent {
  enum class Phase : char { Complete = 'X', Instant = 'i', Counter = 'C', Metadata = 'M' };
  Phase phase = Phase::Instant;
  std::string name;
  std::string category{};
  Duration time{};                       // since any moment that all events share
  Duration length{};                     // of Complete
  std::int64_t process = 0, thread = 0;  // one process for each incarnation of a worker
  std::vector<telemetry::Attribute> arguments{};
};

/// What comes before the first event.
constexpr std::string_view kTraceBegin = "[\n";
/// What comes after the last event: names the agent's process once more, because an array of JSON
/// does not end with a comma.
std::string trace_end();
/// With the comma and the newline after it.
std::string trace_line(const TraceEvent& event);
/// The name of a process in the picture, and its place: smaller ones first.
std::string trace_process(std::int64_t process, std::string_view name, int place);

/// Events as instants (by severity on the process or the thread), samples and windows as counters,
/// a SpanEnd as a stretch, if it has the attribute "duration_ns". "rank" is the process; the agent,
/// which has none, is process 0, and rank r is r + 1. Nothing for what cannot be shown.
std::optional<TraceEvent> trace_event_of(const telemetry::Record& record);

/// The records of a run as the lines of one Chrome trace, whose time begins with the run. Each
/// process is named when it is first heard of: the agent above, the ranks below in order.
class TraceLines {
 public:
  explicit TraceLines(TimePoint start) : start_(start) {}
  /// Nothing for what a trace cannot show.
  std::string of(const telemetry::Record& record);

 private:
  const TimePoint start_;
  std::set<std::int64_t> named_;
};

}  // namespace elastrun::exporter
