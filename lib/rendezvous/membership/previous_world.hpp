// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace elastrun::rendezvous {

/// What an agent remembers of the job when it joins: nothing for a new node. Lets a newly elected
/// coordinator go on where the last one stopped.
struct PreviousWorld {
  std::int64_t round = 0;
  int attempt = 0;
  int nodes = 0;
};

}  // namespace elastrun::rendezvous
