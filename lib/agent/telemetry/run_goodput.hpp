// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/telemetry/alert_command.hpp"
#include "agent/telemetry/goodput_account.hpp"
#include "agent/telemetry/goodput_monitor.hpp"
#include "process/containment.hpp"
#include "process/posix_launcher.hpp"
#include "spec/job_spec.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>

namespace elastrun::agent {

/// Where the time of a run goes: the account, and what watches it while the job runs, if anybody
/// has asked for that.
class RunGoodput {
 public:
  /// Borrows clock and spec.
  RunGoodput(Clock& clock, TimePoint job_start, const spec::JobSpec& spec);

  struct Parts {
    boost::asio::io_context& loop;
    telemetry::Pipeline& pipeline;
    process::Containment& containment;  // is to leave the alert's command alone
    TelemetryHost* host = nullptr;      // null: nobody has asked for metrics
  };
  /// Borrows all; to go before them.
  void watch(const Parts& parts);

  /// Hears what the agent does.
  Observer& observer() { return observers_; }
  void heard(const workers::Worker& worker, const workers::Message& message);
  /// Where the time went until now.
  void tell(JobResult& result) const { account_.tell(result); }
  /// For /status; null if nobody watches.
  json::value status() const { return monitor_ ? monitor_->status() : nullptr; }

 private:
  Clock& clock_;
  const TimePoint job_start_;
  const spec::JobSpec& spec_;
  GoodputAccount account_;
  std::unique_ptr<process::PosixLauncher> programs_;
  std::unique_ptr<AlertCommand> command_;
  std::unique_ptr<GoodputMonitor> monitor_;
  Observers observers_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
