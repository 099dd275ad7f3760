// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/guardian.hpp"
#include "process/signals.hpp"
#include "workers/passing_signals.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Carries out --forward-signals: what guardian or agent alone hears goes on to the workers, what
/// every process of the job got does not. SIGUSR1 and SIGUSR2 end nothing even if they are not to
/// be forwarded, unless they are handled.
class SignalForwarder {
 public:
  /// `deliver` runs on the loop, once for each signal that the workers are to get.
  SignalForwarder(boost::asio::io_context& loop, Clock& clock, guardian::Agent& guardian,
                  const std::vector<std::string>& forwarded, const std::vector<int>& handled,
                  std::function<void(int signal)> deliver);

  void ignore_rest() { source_->ignore_rest(); }

 private:
  void heard(const process::SignalEvent& event);
  void decide(int signal);

  Clock& clock_;
  std::function<void(int)> deliver_;
  workers::PassingSignals passing_;
  std::map<int, std::unique_ptr<Alarm>> alarms_;  // of the forwarded ones
  std::unique_ptr<process::SignalSource> source_;
};

}  // namespace elastrun::agent
