// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/agent.hpp"
#include "agent/elastic_records.hpp"
#include "agent/goodput_account.hpp"
#include "agent/status_view.hpp"
#include "agent/torchrun_log.hpp"
#include "agent/worker_plans.hpp"
#include "binding.hpp"
#include "core/error.hpp"
#include "logs/console.hpp"
#include "process/containment.hpp"
#include "process/guardian.hpp"
#include "process/posix_launcher.hpp"
#include "process/signals.hpp"
#include "spec/resolve.hpp"
#include "system/memory_deaths.hpp"
#include "workers/channel.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace elastrun {

/// The real objects of one run, each of which borrows those above it.
class Parts {
 public:
  /// Makes them all; starts nothing. Fails with Usage, Io, Store or Rendezvous.
  static Result<std::unique_ptr<Parts>> make(const spec::JobSpec& spec, guardian::Agent& guardian);

  /// Runs the job to its end.
  agent::JobResult run();
  logs::Console& console() { return console_; }
  logs::Layout& layout() { return layout_; }
  /// Removes what is only temporary, unless it holds something that explains a failure.
  void clean_up(bool succeeded);

 private:
  Parts(const spec::JobSpec& spec, guardian::Agent& guardian, logs::Layout layout);
  Status connect();
  void watch();
  std::string channel_path();
  void heard(pid_t sender, workers::Message message);
  void sweep();
  agent::Agent::Parts agent_parts();
  agent::Agent::Settings agent_settings() const;

  const spec::JobSpec& spec_;
  guardian::Agent& guardian_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<Clock> clock_;
  TimePoint started_;
  logs::Console console_;
  logs::Layout layout_;
  logs::StatusLine status_line_;
  logs::StreamFactory streams_;
  std::unique_ptr<process::PosixLauncher> launcher_;
  process::Containment containment_;
  telemetry::Pipeline pipeline_;
  std::unique_ptr<workers::Channel> channel_;
  bool channel_tried_ = false;
  rendezvous::Node self_;
  std::unique_ptr<rendezvous::Session> session_;
  std::unique_ptr<agent::RoundStore> store_;
  system::MemoryDeaths memory_deaths_;
  agent::GoodputAccount goodput_;
  agent::StatusView status_;
  agent::TorchrunLog log_;
  Binding binding_;
  std::unique_ptr<agent::ElasticRecords> records_;
  agent::Observers observers_;
  std::unique_ptr<agent::WorkerPlans> plans_;
  std::unique_ptr<agent::Agent> agent_;
  std::unique_ptr<process::SignalSource> signals_;
  std::unique_ptr<process::DeathWatch> guardian_watch_;
};

}  // namespace elastrun
