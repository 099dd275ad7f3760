// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_forwarder.hpp"

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

SignalForwarder::SignalForwarder(boost::asio::io_context& loop, Clock& clock,
                                 guardian::Agent& guardian,
                                 const std::vector<std::string>& forwarded,
                                 const std::vector<int>& handled, std::function<void(int)> deliver)
    : clock_(clock), deliver_(std::move(deliver)) {
  std::set<int> held{SIGUSR1, SIGUSR2};
  for (const auto& name : forwarded) {
    const int number = signal_number(name);
    held.insert(number);
    alarms_.emplace(number, clock_.make_alarm());
  }
  for (const int one : handled) held.erase(one);
  std::vector<int> numbers(held.begin(), held.end());
  guardian.tell_apart(numbers);
  if (!numbers.empty()) numbers.push_back(guardian::passing_signal());
  source_ = std::make_unique<process::SignalSource>(
      loop, numbers, [this](const process::SignalEvent& event) { heard(event); });
}

void SignalForwarder::heard(const process::SignalEvent& event) {
  log::info(kArea, "{}", process::describe(event));
  const auto alarm = alarms_.find(event.number);
  if (alarm == alarms_.end() || !passing_.heard(event, clock_.now())) return;
  alarm->second->arm(clock_.now() + workers::PassingSignals::kWait,
                     [this, number = event.number] { decide(number); });
}

void SignalForwarder::decide(int signal) {
  if (passing_.is_for_workers(signal)) return deliver_(signal);
  log::info(kArea, "{} was sent to every process: the workers have theirs", signal_name(signal));
}

}  // namespace elastrun::agent
