// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/process_table.hpp"

#include <utility>
#include <vector>

namespace elastrun::test {

/// Processes that exist only in a test. Programs play the part that their names tell.
struct FakeProcesses : process::JobProcesses {
  process::ProcessTable processes() const override {
    ++looks;
    return all;
  }
  process::ProcessTable leftovers() const override { return left; }
  process::KillResult sweep(Duration) override {
    ++sweeps;
    return escaped;
  }
  void signal_each(const process::ProcessTable& table, int signal) override {
    for (const auto& one : table) told.emplace_back(one.pid, signal);
  }
  bool waits(const process::ProcessEntry&) const override { return all_wait; }
  process::Wrapper wrapper_of(const process::ProcessEntry& one) const override {
    if (one.name == "timeout") return process::Wrapper::Relay;
    return one.name == "sh" ? process::Wrapper::Shell : process::Wrapper::None;
  }
  bool leaves_to(const process::ProcessEntry& parent,
                 const process::ProcessEntry& child) const override {
    return parent.pid == waiting && child.name == "python";
  }

  process::ProcessTable all, left;
  process::KillResult escaped;  // the result of each sweep
  std::vector<std::pair<pid_t, int>> told;
  int sweeps = 0;
  mutable int looks = 0;
  bool all_wait = true;
  pid_t waiting = 0;  // leaves signals to its children
};

}  // namespace elastrun::test
