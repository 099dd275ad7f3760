// SPDX-License-Identifier: Apache-2.0
#include "elastrunctl/command_line.hpp"
#include "launch.hpp"
#include "process/guardian.hpp"

#include <malloc.h>
#include <optional>
#include <string_view>

namespace {

// constinit, because it is set before dynamic initialization, which would empty it again.
constinit std::optional<elastrun::guardian::Agent> agent;

#ifdef ELASTRUN_ONE_PROGRAM
bool is_elastrunctl(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == elastrun::ctl::kAsElastrunctl;
}
#endif

// Before the program's own initialization: what that touches would stay with the guardian, which
// needs none of it.
[[gnu::constructor(101)]] void fork_guardian([[maybe_unused]] int argc,
                                             [[maybe_unused]] char** argv) {
#ifdef ELASTRUN_ONE_PROGRAM
  if (is_elastrunctl(argc, argv)) return;  // glibc gives constructors what main() gets
#endif
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
#ifdef ELASTRUN_ONE_PROGRAM
  if (is_elastrunctl(argc, argv)) {
    argv[1] = argv[0];
    return elastrun::ctl::run_program(argc - 1, argv + 1);
  }
#endif
  take_memory_in_large_steps();
  return elastrun::launch(*agent, argc, argv);
}
