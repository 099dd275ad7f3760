// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Records as files for programs that draw them.
///
/// Traces for Perfetto and chrome://tracing are in the array form of Chrome's "Trace Event Format":
/// one event a line. The closing bracket may be missing, so that a file is readable whenever its
/// writer ends.
///
/// TensorBoard's event files are TFRecords (tensorflow/core/lib/io/record_writer.h) of Event
/// messages (tensorboard/compat/proto/event.proto and summary.proto), written by hand.
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

/// CRC-32C (Castagnoli) of RFC 3720, as TFRecords store it.
std::uint32_t masked_crc32c(std::string_view bytes);
/// Length, its checksum, payload, its checksum; little endian.
std::string tf_record(std::string_view payload);

/// The first record of a file.
std::string tensorboard_version(WallTime when);
struct TensorBoardValue {
  std::string tag;
  double value = 0;                           // kept as float
  const telemetry::Sketch* sketch = nullptr;  // a histogram instead
  double min = 0, max = 0, sum = 0;           // of the values themselves
};
/// Values of one moment and step.
std::string tensorboard_values(WallTime when, std::int64_t step,
                               const std::vector<TensorBoardValue>& values);
/// "events.out.tfevents.SECONDS.HOST.PID.0": one writer for each file.
std::string tensorboard_file_name(WallTime when, std::string_view host, int pid);

/// What TensorboardEventHandler of torch.monitor is for: a scalar NAME.AGGREGATION for each
/// aggregation of a window, a histogram NAME for its sketch, a scalar NAME for each sample. The
/// step is its attribute "step", else the number of the value in its tag (torch has no
/// step, so there all points lie above each other). The tag of a sample that has a "rank" ends in
/// "/rank_N". Gaps (no data) are not written.
class TensorBoardRecords {
 public:
  /// Nothing for what has no place in such a file.
  std::string of(const telemetry::Record& record);

 private:
  std::int64_t step_of(const telemetry::Record& record, const std::string& tag);
  std::string window(const telemetry::Record& record);
  std::map<std::string, std::int64_t> steps_;
};

}  // namespace elastrun::exporter
