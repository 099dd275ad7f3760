// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "rendezvous/session/session.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace elastrun::agent {

/// Holds a round back, and what the rendezvous says after it, until something has been done for it
/// that may take a file system's time: directories are made. So the agent's policy knows of no
/// round that cannot be started, and its heartbeats go on meanwhile. A round that is over before
/// that is dropped: its end (Restart, Done, Lost) passes at once.
class RoundGate {
 public:
  /// `prepare` calls `done` once, inside or later on the loop; it is not called again before.
  using Prepare = std::function<void(const rendezvous::Round&, std::function<void()> done)>;
  /// `role`: of this node.
  explicit RoundGate(Prepare prepare, std::string role = {})
      : prepare_(std::move(prepare)), role_(std::move(role)) {}

  /// What to give to Session::open for an agent that wants `on_push`. Borrows this object.
  rendezvous::Session::OnPush before(rendezvous::Session::OnPush on_push);

 private:
  void hear(rendezvous::Push push);
  void prepare(const rendezvous::Round& round);
  void pass_on();

  const Prepare prepare_;
  const std::string role_;
  rendezvous::Session::OnPush on_push_;
  std::deque<rendezvous::Push> held_;
  bool preparing_ = false;
  bool dropped_ = false;   // the round for which that is done
  bool prepared_ = false;  // for the next one in `held_`
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
