// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/registry.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace elastrun::exporter {

/// What became of what a sink was given. Of sinks that are told of records the numbers count those;
/// of sinks that pull they count what those send: pages, datagrams, requests.
struct SinkAccount {
  std::string sink;  // as the user named it
  std::uint64_t delivered = 0, lost = 0;
  std::string trouble;  // what the first loss was due to; empty: nothing was lost, or too many came
  std::uint64_t waiting = 0;  // of the lost: those that are on their way as long as the job runs
};

/// A destination of --metrics: takes records, or pulls the series of the agent from time to time,
/// and delivers them at the pace of the receiver. Delivery never delays the emitter: the queue is
/// bounded, drops its oldest records first, and counts them. On the loop only.
class MetricsSink : public telemetry::Sink {
 public:
  using Done = std::function<void()>;
  explicit MetricsSink(std::string name) : name_(std::move(name)) {}

  /// Whether it takes records; then by consume().
  virtual bool is_told() const { return true; }
  void consume(const telemetry::Record& record) override { static_cast<void>(record); }
  /// Whether it takes series; then by pull().
  virtual bool pulls() const { return false; }
  virtual void pull(const telemetry::Snapshot& snapshot) { static_cast<void>(snapshot); }

  /// Nothing will come any more: delivers what waits and runs `done` once, maybe inside this call.
  virtual void finish(Done done) = 0;
  /// After the last wait for finish(): what has not been delivered is lost.
  virtual SinkAccount account() const {
    return {name_, delivered_, lost_ + waiting(), trouble_, waiting()};
  }
  const std::string& name() const { return name_; }

 protected:
  /// How much has been taken and is neither delivered nor lost.
  virtual std::uint64_t waiting() const { return 0; }

  std::uint64_t delivered_ = 0, lost_ = 0;
  std::string trouble_;  // of the first loss
  Done finished_;        // from finish() until that has run

 private:
  const std::string name_;
};

}  // namespace elastrun::exporter
