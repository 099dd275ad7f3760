// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>

namespace elastrun::rendezvous {

struct HandlerSettings {
  const spec::JobSpec& job;     // must outlive the session
  BootstrapStoreInfo master{};  // wins over what the handler says; empty and 0: not fixed
  Duration close_timeout = std::chrono::seconds(30);  // for shutdown() to return
};

/// The session of an agent whose nodes are brought together by a user's handler. Rounds are the
/// handler's; restarts are counted here, for the job as far as the agents of a round know of each
/// other's (agree_on_round). As in torchelastic the other nodes are not told of a failure: they see
/// it in num_nodes_waiting when this node wants to join again.
class HandlerSession : public Session {
 public:
  /// Of the last round. Whether its workers' store is this job's agents' business at all, or the
  /// handler has said where it is.
  virtual bool agent_serves_store() const = 0;
  /// Whether workers find a server there (TORCHELASTIC_USE_AGENT_STORE).
  virtual bool workers_are_clients() const = 0;
};

/// Shares the handler with calls that it may not have returned from. Loop and clock must outlive
/// the session.
std::unique_ptr<HandlerSession> make_handler_session(boost::asio::io_context& loop, Clock& clock,
                                                     Handler handler, HandlerSettings settings);

}  // namespace elastrun::rendezvous
