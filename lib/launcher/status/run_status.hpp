// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/status/run_registration.hpp"
#include "launcher/status/status_view.hpp"
#include "launcher/status/torchrun_log.hpp"
#include "launcher/status/waiting_warning.hpp"
#include "logs/console.hpp"
#include "logs/status_line.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What others see of a run on this machine: the status line, torchrun's log lines, the warning of
/// a long wait, and the entry that elastrunctl finds.
class RunStatus {
 public:
  struct Parts {
    boost::asio::any_io_executor loop;
    Clock& clock;
    guardian::Agent& guardian;
    const spec::JobSpec& spec;
    logs::Console& console;
    bool shows_line = false;
    RunRegistration::Facts facts;
  };
  /// Borrows all but the facts.
  explicit RunStatus(Parts parts)
      : line_(parts.clock, parts.console, parts.shows_line),
        view_(line_, parts.spec),
        log_(parts.spec),
        waiting_(parts.clock, parts.spec, line_.is_enabled()),
        registration_(parts.loop, parts.clock, parts.guardian, parts.spec, std::move(parts.facts)) {
  }

  logs::StatusLine& line() { return line_; }
  /// Hears the agent before the records do, so that its lines come before theirs.
  TorchrunLog& log() { return log_; }
  /// The others, in the order in which they are to hear it.
  std::vector<Observer*> observers() { return {&view_, &waiting_, &registration_}; }
  /// After all files of the run are complete.
  void end() { registration_.end(); }

 private:
  logs::StatusLine line_;
  StatusView view_;
  TorchrunLog log_;
  WaitingWarning waiting_;
  RunRegistration registration_;
};

}  // namespace elastrun::agent
