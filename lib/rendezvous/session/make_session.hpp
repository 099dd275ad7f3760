// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/remote_session.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

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
///
/// Shares the handler with calls that it may not have returned from. Loop and clock must outlive
/// the session.
std::unique_ptr<Session> make_handler_session(boost::asio::io_context& loop, Clock& clock,
                                              Handler handler, HandlerSettings settings);

/// A session for jobs of several nodes (and for single nodes that are to meet others at an
/// endpoint, or wait as spares). Nothing is sent before `open`. Fails with Usage for a bad
/// endpoint, an unreadable secret or an unknown back end; warns in the log where a job without a
/// secret can be reached from other machines.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              SessionSettings settings);

/// A job that needs no other node. min_nodes is 1; with max_nodes above 1 (`--standalone --nnodes
/// 1:2`) the last call passes before the only node starts, as in torchrun.
struct LocalSettings {
  std::string run_id = "none";
  std::string backend{spec::backend::kC10d};
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: the node's store_port
  Rules rules{};
};

/// The rendezvous of a one-node job: the same State that a coordinator steps, in this process,
/// without sockets. Pushes arrive on `loop`. Loop and clock must outlive the session.
std::unique_ptr<Session> make_local_session(boost::asio::io_context& loop, Clock& clock,
                                            LocalSettings settings);

}  // namespace elastrun::rendezvous
