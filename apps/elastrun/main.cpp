// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"
#include "process/guardian.hpp"

#include <optional>

namespace {

constinit std::optional<elastrun::guardian::Agent> agent;

// Before the program's own initialization: what that touches would stay with the guardian, which
// needs none of it.
[[gnu::constructor(101)]] void fork_guardian() {
  agent.emplace(elastrun::guardian::split());
}

}  // namespace

int main(int argc, char** argv) {
  return elastrun::launch(*agent, argc, argv);
}
