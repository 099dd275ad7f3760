// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "logs/console.hpp"
#include "process/containment.hpp"
#include "process/guardian.hpp"
#include "process/signals.hpp"
#include "spec/job_spec.hpp"
#include "workers/group.hpp"
#include "workers/passing_signals.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace elastrun::agent {

/// The signals of a run, from its making on: those that end the job are judged and told, those of
/// --forward-signals go on to the workers. What guardian or agent alone hears goes on, what every
/// process of the job got does not. SIGUSR1 and SIGUSR2 end nothing even if they are not to be
/// forwarded, unless they are handled.
class RunSignals {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    guardian::Agent& guardian;
    const spec::JobSpec& spec;
    logs::Console& console;
    process::Containment& containment;
    std::function<void(const process::SignalEvent&, process::Demand)> demanded;
    /// The group while it runs; null: there is none that a signal can be passed on to.
    std::function<const workers::Group*()> running;
    std::function<void()> resized;  // the terminal
    std::function<void()> guardian_gone;
  };
  static std::unique_ptr<RunSignals> start(Parts parts);

  /// What comes from now on changes nothing.
  void ignore_rest();

 private:
  explicit RunSignals(Parts parts);
  void listen();
  void listen_to_passing();
  void watch_around();
  void heard_passing(const process::SignalEvent& event);
  void await(int signal);
  void decide(int signal);
  void pass_on(int signal) const;

  const Parts parts_;
  const process::SignalList handled_;
  process::SignalEscalation escalation_;
  workers::PassingSignals passing_;
  std::map<int, std::unique_ptr<Alarm>> alarms_;  // of the forwarded ones
  std::unique_ptr<process::SignalSource> source_, passing_source_, resizes_;
  std::unique_ptr<process::DeathWatch> guardian_watch_;
};

}  // namespace elastrun::agent
