// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/world_id.hpp"

namespace elastrun::rendezvous {

/// What an agent remembers of the job when it joins: nothing for a new node. Lets a newly elected
/// coordinator go on where the last one stopped.
struct PreviousWorld {
  WorldId id;
  int attempt = 0;
  int nodes = 0;
};

}  // namespace elastrun::rendezvous
