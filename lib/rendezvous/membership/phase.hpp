// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/round.hpp"

#include <string>

namespace elastrun::rendezvous {

enum class Phase {
  Joining,  // a round is being formed
  Running,  // a round is complete, its members work
  Verdict,  // the job has failed; other nodes' reports of the same moment are awaited
  Ended,    // told to everybody
};

/// A node that was in the job and has gone: who is missing, by name. The latest few are kept.
struct Gone {
  Node node;
  std::string why;
  TimePoint since;
};

/// What the end of a connection says of the group of its member.
enum class Loss {
  Ended,   // the member has said that it has ended, before
  Closed,  // in order, as the kernel does when a process ends, and as proxies do when they like
  Broken,
  Silent,  // no word for so long that it must be given up, whatever has become of it
};

}  // namespace elastrun::rendezvous
