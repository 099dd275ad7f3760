// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry_host.hpp"

namespace elastrun::agent {

using telemetry::Record;

bool TelemetryHost::is_wanted(const spec::JobSpec& spec) {
  return spec.metrics != "none" || spec.http;
}

TelemetryHost::TelemetryHost(Clock& clock, telemetry::Pipeline& pipeline,
                             telemetry::Registry& registry)
    : clock_(clock), pipeline_(pipeline), registry_(registry), collector_(registry, pipeline) {}

TelemetryHost::~TelemetryHost() {
  if (samples_) pipeline_.unroute(samples_route_);
}

std::unique_ptr<telemetry::Cursor> TelemetryHost::open_cursor(Temporality temporality) {
  if (!samples_) {
    samples_ = std::make_shared<telemetry::SampleSeries>(registry_);
    samples_route_ = pipeline_.route({.kind = Record::Kind::Sample}, samples_);
  }
  return std::make_unique<telemetry::Cursor>(registry_, temporality);
}

void TelemetryHost::recorded() {
  if (window_open_ || !pipeline_.carries(Record::Kind::Window)) return;
  const auto due = registry_.due();
  if (!due) return;
  if (!window_end_) window_end_ = clock_.make_alarm();
  window_open_ = true;
  window_end_->arm(*due, [this] {
    window_open_ = false;
    collector_.step();
  });
}

}  // namespace elastrun::agent
