// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/session/remote_session.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// A session for jobs of several nodes (and for single nodes that are to meet others at an
/// endpoint, or wait as spares). Nothing is sent before `open`. Fails with Usage for a bad
/// endpoint, an unreadable secret or an unknown back end; warns in the log where a job without a
/// secret can be reached from other machines.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              const SessionSettings& settings);

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
