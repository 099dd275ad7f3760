// SPDX-License-Identifier: Apache-2.0
#include "agent/files/round_gate.hpp"

#include <utility>

namespace elastrun::agent {
namespace {

bool is_round(const rendezvous::Push& push) {
  return std::holds_alternative<rendezvous::RoundReady>(push);
}

bool ends_round(const rendezvous::Push& push, const std::string& role) {
  const auto* restart = std::get_if<rendezvous::Restart>(&push);
  return (restart != nullptr && restart->is_for(role)) ||
         std::holds_alternative<rendezvous::Done>(push) ||
         std::holds_alternative<rendezvous::Lost>(push);
}

}  // namespace

rendezvous::Session::OnPush RoundGate::before(rendezvous::Session::OnPush on_push) {
  on_push_ = std::move(on_push);
  return [this](rendezvous::Push push) { hear(std::move(push)); };
}

void RoundGate::hear(rendezvous::Push push) {
  // The agent never hears of a round that ended before its directories were made.
  if (ends_round(push, role_) && std::erase_if(held_, is_round) > 0) dropped_ = preparing_;
  held_.push_back(std::move(push));
  pass_on();
}

void RoundGate::prepare(const rendezvous::Round& round) {
  preparing_ = true;
  prepare_(round, [this, alive = lifetime_.token()] {
    if (!alive) return;
    preparing_ = false;
    // What ended the round meanwhile has dropped it.
    prepared_ = !std::exchange(dropped_, false);
    pass_on();
  });
}

void RoundGate::pass_on() {
  while (!held_.empty()) {
    if (const auto* ready = std::get_if<rendezvous::RoundReady>(&held_.front())) {
      // What was told after this round waits behind it: the agent hears all in the order of the
      // coordinator.
      if (preparing_) return;
      if (!std::exchange(prepared_, false)) return prepare(ready->round);
    }
    // Taken out first: what hears it may lead back here.
    auto push = std::move(held_.front());
    held_.pop_front();
    on_push_(std::move(push));
  }
}

}  // namespace elastrun::agent
