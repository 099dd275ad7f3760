// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "export/metrics_sink.hpp"

#include <functional>
#include <string_view>

namespace elastrun::exporter {

/// Samples and windows as torchelastic's console handler prints metrics, a line for each number:
/// "[SECONDS][GROUP]: NAME=VALUE"; of a window NAME.AGGREGATION. Names come from workers: what
/// would steer a terminal is shown as text.
class ConsoleLines final : public MetricsSink {
 public:
  /// `write` takes everything at once, or counts itself what it does not.
  ConsoleLines(std::string name, std::function<void(std::string_view)> write)
      : MetricsSink(std::move(name)), write_(std::move(write)) {}
  void consume(const telemetry::Record& record) override;
  void finish(std::function<void()> done) override { done(); }
  SinkAccount account() const override { return {name(), delivered_, 0, {}}; }

 private:
  const std::function<void(std::string_view)> write_;
  std::uint64_t delivered_ = 0;
};

}  // namespace elastrun::exporter
