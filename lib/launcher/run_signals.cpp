// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_signals.hpp"

#include "core/log.hpp"
#include "core/signal_names.hpp"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr const char* kArea = "signals";

}  // namespace

RunSignals::RunSignals(RunContext& run, Agent& agent, RunTelemetry& telemetry, RunFiles& files,
                       logs::StreamFactory& streams, logs::StatusLine& line)
    : run_(run),
      agent_(agent),
      telemetry_(telemetry),
      files_(files),
      streams_(streams),
      line_(line),
      handled_(process::parse_signals(run.spec.signals_to_handle)) {
  listen();
  if (run.guardian.guardian_pid() != 0) listen_to_passing();
  watch_around();
}

void RunSignals::end_with(const std::vector<int>& descriptors) {
  for (const int fd : descriptors) {
    callers_.push_back(std::make_unique<process::DeathWatch>(run_.loop, fd, [this] {
      // Several of them end with the same process.
      if (std::exchange(callers_gone_, true)) return;
      log::warning(kArea, "the process that started this job has gone: the job ends");
      heard({.number = SIGTERM}, process::Demand::Stop);
    }));
  }
}

void RunSignals::listen() {
  for (const auto& warning : handled_.warnings) log::warning(kArea, "{}", warning);
  // Before we listen: the guardian stops itself at a terminal's signal that it has not been asked
  // for.
  run_.guardian.relay(handled_.numbers);
  source_ = std::make_unique<process::SignalSource>(
      run_.loop, handled_.numbers, [this](const process::SignalEvent& event) {
        log::info(kArea, "{}", process::describe(event));
        heard(event, escalation_.heard(event, run_.clock.now()));
      });
}

/// Not within another program, whose signals they are.
void RunSignals::listen_to_passing() {
  std::set<int> held{SIGUSR1, SIGUSR2};
  for (const auto& name : run_.spec.forward_signals) {
    const int number = signal_number(name);
    held.insert(number);
    alarms_.emplace(number, run_.clock.make_alarm());
  }
  // These end the job or ask for a save: listen() has them.
  for (const int one : handled_.numbers) held.erase(one);
  std::vector<int> numbers(held.begin(), held.end());
  run_.guardian.tell_apart(numbers);
  // As this one the guardian passes them on.
  if (!numbers.empty()) numbers.push_back(process::passing_signal());
  passing_source_ = std::make_unique<process::SignalSource>(
      run_.loop, numbers, [this](const process::SignalEvent& event) { heard_passing(event); });
}

void RunSignals::watch_around() {
  using Stream = logs::Console::Stream;
  if (run_.console.is_terminal(Stream::Out) || run_.console.is_terminal(Stream::Err)) {
    resizes_ = std::make_unique<process::SignalSource>(run_.loop, std::vector<int>{SIGWINCH},
                                                       [this](const auto&) {
                                                         streams_.terminal_resized();
                                                         line_.redraw();
                                                       });
  }
  guardian_watch_ = std::make_unique<process::DeathWatch>(run_.loop, run_.guardian.guardian_fd(),
                                                          [this] { agent_.guardian_gone(); });
}

void RunSignals::heard(const process::SignalEvent& event, process::Demand demand) {
  using process::Demand;
  // The job is over: a signal can only shorten what is waited for.
  if (telemetry_.ending_metrics()) {
    telemetry_.metrics()->hurry();
    return files_.shorten();
  }
  if (files_.signalled(demand)) return;
  const auto& asks = run_.spec.preempt_signals;
  const auto name = process::signal_name(event.number);
  if (demand == Demand::Stop && std::ranges::find(asks, name) != asks.end()) {
    return agent_.preempt(name, {});
  }
  if (demand != Demand::Nothing) {
    agent_.signal(event.number, demand == Demand::KillNow);
  } else if (event.route == process::Route::Kernel && event.number == SIGINT) {
    log::warning(kArea, "The job is ending already; press Ctrl+C again to kill it now");
  }
}

void RunSignals::heard_passing(const process::SignalEvent& event) {
  log::info(kArea, "{}", process::describe(event));
  if (!alarms_.contains(event.number)) return;
  passing_.heard(event, run_.clock.now());
  await(event.number);
}

void RunSignals::await(int signal) {
  const auto due = passing_.due(signal);
  if (due) alarms_.at(signal)->arm(*due, [this, signal] { decide(signal); });
}

void RunSignals::decide(int signal) {
  const bool is_for_workers = passing_.is_for_workers(signal, run_.clock.now());
  await(signal);
  if (is_for_workers) return pass_on(signal);
  log::info(kArea, "{} was sent to every process: the workers have theirs", signal_name(signal));
}

void RunSignals::pass_on(int signal) const {
  const auto* group = agent_.group();
  if (group == nullptr || agent_.phase() != Phase::Running) {
    return log::warning(kArea, "{}: no workers run, so none got it", signal_name(signal));
  }
  std::vector<pid_t> pids;
  for (const auto& worker : group->workers()) pids.push_back(worker.pid);
  const auto found = workers::receivers(run_.processes, pids, signal);
  // By their pids and start times, as the table has them: a trainer may have ended since it was
  // read.
  process::signal_each(found, signal);
  if (!found.empty()) return;
  log::warning(kArea, "{}: no worker handles it, so none got it", signal_name(signal));
}

void RunSignals::ignore_rest() {
  source_->ignore_rest();
  if (passing_source_) passing_source_->ignore_rest();
}

}  // namespace elastrun::agent
