// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"

#include <string>
#include <vector>

/// Metrics as StatsD lines, with DogStatsD's tags if asked for. StatsD never answers, so what the
/// network loses is lost: counters are therefore written as the increase since the last time.
namespace elastrun::exporter {

struct StatsdOptions {
  std::string prefix{};         // "elastrun."
  bool tags = true;             // `|#key:value`; without them labels are parts of the name
  std::size_t datagram = 1432;  // what passes an Ethernet in one piece
};

/// Datagrams of whole lines; a single line that is longer than a datagram is left out. The snapshot
/// must be taken with a Delta cursor. Counters as `c` if they have risen, gauges as `g`, stats and
/// histograms as `.count`, `.mean`, `.min`, `.max` (and `.p50`, `.p99`) of the values since then.
std::vector<std::string> statsd_datagrams(const telemetry::Snapshot& snapshot,
                                          const StatsdOptions& options = {});

}  // namespace elastrun::exporter
