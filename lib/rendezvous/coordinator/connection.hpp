// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/link.hpp"
#include "rendezvous/coordinator/job.hpp"

#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// A connection of a coordinator, from its first byte on.
struct Connection {
  std::shared_ptr<net::Link> link;
  Job* job = nullptr;  // once it has said hello as an agent
  bool greeted = false;
  std::string host;    // its name, by its hello
  int missed = 0;      // heartbeats in a row
  bool ended = false;  // it has said that its group has ended
};

}  // namespace elastrun::rendezvous
