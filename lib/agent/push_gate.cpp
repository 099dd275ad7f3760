// SPDX-License-Identifier: Apache-2.0
#include "agent/push_gate.hpp"

#include <utility>

namespace elastrun::agent {

rendezvous::Session::OnPush PushGate::before(rendezvous::Session::OnPush on_push) {
  on_push_ = std::move(on_push);
  return [this](rendezvous::Push push) {
    held_.push_back(std::move(push));
    if (!preparing_) pass_on();
  };
}

void PushGate::pass_on() {
  while (!held_.empty()) {
    const auto* ready = std::get_if<rendezvous::RoundReady>(&held_.front());
    if (ready != nullptr && !std::exchange(prepared_, false)) {
      preparing_ = true;
      return prepare_(ready->round, [this, alive = lifetime_.token()] {
        if (!alive) return;
        preparing_ = false;
        prepared_ = true;
        pass_on();
      });
    }
    auto push = std::move(held_.front());
    held_.pop_front();
    on_push_(std::move(push));
  }
}

}  // namespace elastrun::agent
