// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "rendezvous/membership/round.hpp"
#include "spec/agreed_rules.hpp"
#include "store/server.hpp"

#include <functional>
#include <string>

namespace elastrun::rendezvous {

/// Where the agent of a node binds its workers' store before it joins.
struct StorePlan {
  std::string bind_address = "127.0.0.1";  // "::" where other nodes must reach it
  spec::PortRange ports{};                 // any free one of these
  /// The session listens on MASTER_PORT itself and hands over the connections of workers
  /// (`share_store`): bind to loopback, any port.
  bool lent_port = false;
};

/// One agent's side of the rendezvous. The agent says `join`, reports what happens to its group,
/// and obeys what is pushed; it never decides about the job by itself. Implementations:
/// `LocalSession` (one node: the pure `State`, no sockets), `RemoteSession` (a coordinator over
/// TCP, whichever way it was found), `UsersSession` (a user's RendezvousHandler).
///
/// All calls return at once; pushes arrive on the loop, never inside a call, and none after
/// close().
class Session {
 public:
  using OnPush = std::function<void(Push)>;
  virtual ~Session() = default;

  /// Starts to listen for pushes. Called once, before join.
  virtual void open(OnPush on_push) = 0;
  /// Wants to be in the next round with this description of itself. Called at the start and after
  /// each Restart, once the old group is gone.
  virtual void join(Node self) = 0;
  virtual void report(Report report) = 0;
  /// Says goodbye if it can, and stops pushing. `on_closed` runs once that is out or hopeless
  /// (bounded by close_timeout).
  virtual void close(Then on_closed) = 0;

  /// How to bind the store. Asked before each join.
  virtual StorePlan store_plan() const { return {}; }
  /// The stores of this node, told before each join: where `lent_port` is set, workers' connections
  /// that reach the session's own port are adopted by one of them. Borrowed until others, or none,
  /// are told: before one is destroyed.
  virtual void share_store(const store::Stores&) {}

  /// Whether agents of other nodes depend on this process: were it closed now, their groups would
  /// be stopped.
  virtual bool serves_others() const { return false; }

  /// "static", "c10d", ...: as RendezvousHandler.get_backend.
  virtual std::string backend() const = 0;
  virtual std::string run_id() const = 0;

  // With a user's handler, of the last round:
  /// Whether the workers' store is the agents' business, or the handler has said where it is.
  virtual bool agent_serves_store() const { return true; }
  /// Whether workers find a server there (TORCHELASTIC_USE_AGENT_STORE).
  virtual bool workers_are_clients() const { return true; }
};

}  // namespace elastrun::rendezvous
