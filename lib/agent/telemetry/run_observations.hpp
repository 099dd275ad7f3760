// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/round_store.hpp"
#include "agent/loop/worker_channel.hpp"
#include "agent/telemetry/telemetry_host.hpp"
#include "agent/telemetry/worker_records.hpp"
#include "export/json_lines.hpp"
#include "logs/stream_factory.hpp"
#include "telemetry/observation.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What the parts of a run count anyway, as instruments of the scope elastrun.agent that are asked
/// when somebody collects: elastrun-telemetry(7) lists them. They cost nothing before that, and go
/// with this object, which the parts must outlive.
class RunObservations {
 public:
  struct Parts {
    const logs::StreamFactory& streams;
    const WorkerChannel& channel;
    const WorkerRecords& records;
    const RoundStore& store;
  };
  /// Borrows all. The registry is that of the host.
  RunObservations(const Parts& parts, TelemetryHost& host);
  /// The journal counts among the sinks from now on.
  void watch_journal(std::shared_ptr<const exporter::JsonLines> journal) {
    journal_ = std::move(journal);
  }

 private:
  void observe(telemetry::Kind kind, telemetry::Spec spec, telemetry::Registry::Observer observer);
  void observe_store();
  void observe_output();
  void observe_channel();
  void observe_telemetry();

  const Parts parts_;
  TelemetryHost& host_;
  std::shared_ptr<const exporter::JsonLines> journal_;  // null: there is none
  std::vector<telemetry::Observation> all_;
};

}  // namespace elastrun::agent
