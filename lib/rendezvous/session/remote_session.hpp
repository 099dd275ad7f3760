// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "net/seal.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <sys/types.h>

namespace elastrun::rendezvous {

struct RemoteSettings {
  std::string run_id = "none";
  std::string start;  // which start of the job, as the scheduler tells
  std::string backend{spec::backend::kC10d};
  Rules rules;
  int node_rank = 0;  // only where ranks are fixed
  /// --local-addr. Empty: the own address of the connection to the coordinator.
  std::string local_addr;
  Duration keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_max_attempt = 3;
  Duration close_timeout = std::chrono::seconds(30);
  /// Of one attempt to reach the coordinator, and the wait for one that was lost and is mute.
  Duration read_timeout = std::chrono::seconds(60);
  /// How long an elected coordinator's entry stands at most after its end (see Refusals).
  Duration entry_life = std::chrono::seconds(30);
  StorePlan store_plan;
  pid_t guardian = 0;  // of this process; 0: there is none
};

/// One agent's connection to a coordinator, whichever way it is found, and across coordinators:
/// when one is lost and another may follow, this node's group is stopped and joins again there.
/// Fills in what the node leaves out: its address, its id, its instance.
std::unique_ptr<Session> make_remote_session(boost::asio::io_context& loop, Clock& clock,
                                             std::shared_ptr<const net::Sealer> sealer,
                                             std::unique_ptr<Locator> locator,
                                             RemoteSettings settings);

}  // namespace elastrun::rendezvous
