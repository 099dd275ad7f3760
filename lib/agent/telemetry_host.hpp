// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/job_spec.hpp"
#include "telemetry/collector.hpp"
#include "telemetry/sample_series.hpp"

#include <memory>
#include <string_view>

namespace elastrun::agent {

/// What the metrics of a run take in its agent: the instruments of this process, the windows that
/// end in time, and series of what workers report. Made only where --metrics or --http asks for
/// it; a run without one has no timer, no thread and no wake-up for telemetry.
///
/// Events do not come by here: whoever has some emits them into the pipeline of the run, which has
/// routes of its own (the journal), and builds none where nobody listens. On the loop only.
class TelemetryHost {
 public:
  /// Whether the job asks for one.
  static bool is_wanted(const spec::JobSpec& spec);

  /// Borrows all.
  TelemetryHost(Clock& clock, telemetry::Pipeline& pipeline,
                telemetry::Registry& registry = telemetry::process_registry());
  ~TelemetryHost();
  TelemetryHost(const TelemetryHost&) = delete;
  TelemetryHost& operator=(const TelemetryHost&) = delete;

  using Temporality = telemetry::Cursor::Temporality;
  /// For who pulls, one each; must not outlive this. From the first on samples of the pipeline are
  /// series, too (telemetry::SampleSeries).
  std::unique_ptr<telemetry::Cursor> open_cursor(Temporality temporality = Temporality::Cumulative);
  /// All series now, or those whose names fit.
  telemetry::Snapshot collect(telemetry::Cursor& cursor, std::string_view pattern = "**") {
    return registry_.collect(cursor, pattern);
  }
  /// Something was added to an instrument of the registry: its window is closed in time, if
  /// anybody is told of windows. A series that nobody tells of appears in the next window of
  /// another, and to those who pull. Costs next to nothing once a window is open.
  void recorded();

  telemetry::Registry& registry() { return registry_; }
  /// That of the run, for routes to sinks of one's own.
  telemetry::Pipeline& pipeline() { return pipeline_; }

 private:
  Clock& clock_;
  telemetry::Pipeline& pipeline_;
  telemetry::Registry& registry_;
  telemetry::Collector collector_;
  std::shared_ptr<telemetry::SampleSeries> samples_;  // null: nobody has pulled
  telemetry::RouteId samples_route_ = 0;
  std::unique_ptr<Alarm> window_end_;
  bool window_open_ = false;
};

}  // namespace elastrun::agent
