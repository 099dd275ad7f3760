// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_signals.hpp"

#include "core/log.hpp"
#include "core/signal_names.hpp"

#include <csignal>
#include <set>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr const char* kArea = "signals";

}  // namespace

std::unique_ptr<RunSignals> RunSignals::start(Parts parts) {
  std::unique_ptr<RunSignals> signals(new RunSignals(std::move(parts)));
  signals->listen();
  if (signals->parts_.guardian.guardian_pid() != 0) signals->listen_to_passing();
  signals->watch_around();
  return signals;
}

RunSignals::RunSignals(Parts parts)
    : parts_(std::move(parts)), handled_(process::parse_signals(parts_.spec.signals_to_handle)) {}

void RunSignals::listen() {
  for (const auto& warning : handled_.warnings) log::warning(kArea, "{}", warning);
  // Before we listen: the guardian stops itself at a terminal's signal that it has not been asked
  // for.
  parts_.guardian.relay(handled_.numbers);
  source_ = std::make_unique<process::SignalSource>(
      parts_.loop, handled_.numbers, [this](const process::SignalEvent& event) {
        log::info(kArea, "{}", process::describe(event));
        parts_.demanded(event, escalation_.heard(event, parts_.clock.now()));
      });
}

/// Not within another program, whose signals they are.
void RunSignals::listen_to_passing() {
  std::set<int> held{SIGUSR1, SIGUSR2};
  for (const auto& name : parts_.spec.forward_signals) {
    const int number = signal_number(name);
    held.insert(number);
    alarms_.emplace(number, parts_.clock.make_alarm());
  }
  // These end the job or ask for a save: listen() has them.
  for (const int one : handled_.numbers) held.erase(one);
  std::vector<int> numbers(held.begin(), held.end());
  parts_.guardian.tell_apart(numbers);
  // As this one the guardian passes them on.
  if (!numbers.empty()) numbers.push_back(guardian::passing_signal());
  passing_source_ = std::make_unique<process::SignalSource>(
      parts_.loop, numbers, [this](const process::SignalEvent& event) { heard_passing(event); });
}

void RunSignals::watch_around() {
  using Stream = logs::Console::Stream;
  if (parts_.console.is_terminal(Stream::Out) || parts_.console.is_terminal(Stream::Err)) {
    resizes_ = std::make_unique<process::SignalSource>(parts_.loop, std::vector<int>{SIGWINCH},
                                                       [this](const auto&) { parts_.resized(); });
  }
  guardian_watch_ = std::make_unique<process::DeathWatch>(
      parts_.loop, parts_.guardian.guardian_fd(), parts_.guardian_gone);
}

void RunSignals::heard_passing(const process::SignalEvent& event) {
  log::info(kArea, "{}", process::describe(event));
  if (!alarms_.contains(event.number)) return;
  passing_.heard(event, parts_.clock.now());
  await(event.number);
}

void RunSignals::await(int signal) {
  const auto due = passing_.due(signal);
  if (due) alarms_.at(signal)->arm(*due, [this, signal] { decide(signal); });
}

void RunSignals::decide(int signal) {
  const bool is_for_workers = passing_.is_for_workers(signal, parts_.clock.now());
  await(signal);
  if (is_for_workers) return pass_on(signal);
  log::info(kArea, "{} was sent to every process: the workers have theirs", signal_name(signal));
}

void RunSignals::pass_on(int signal) const {
  const auto* group = parts_.running();
  if (group == nullptr) {
    return log::warning(kArea, "{}: no workers run, so none got it", signal_name(signal));
  }
  std::vector<pid_t> pids;
  for (const auto& worker : group->workers()) pids.push_back(worker.pid);
  const auto found = workers::receivers(parts_.containment.processes(), pids, signal);
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
