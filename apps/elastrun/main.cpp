// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"
#include "process/guardian.hpp"

#include <malloc.h>
#include <optional>

namespace {

constinit std::optional<elastrun::guardian::Agent> agent;

// Before the program's own initialization: what that touches would stay with the guardian, which
// needs none of it.
[[gnu::constructor(101)]] void fork_guardian() {
  agent.emplace(elastrun::guardian::split());
}

/// A launch takes half a megabyte of memory and gives it back at its end. By default it asks for
/// that in steps of 132 kB and, for each larger buffer, by a mapping, and gives each back at once:
/// a system call each, and new pages where it asks again.
void take_memory_in_large_steps() {
  ::mallopt(M_TOP_PAD, 512 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 2 << 20);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  take_memory_in_large_steps();
  return elastrun::launch(*agent, argc, argv);
}
