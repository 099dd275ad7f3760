// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <functional>
#include <string>

namespace elastrun::process {

/// How long a child may take, and how long once an end is wanted.
struct ChildBound {
  Duration limit;
  Duration after_signal;
};

/// Does `work` in a child, and kills that when its time is over: a process that waits for a file
/// system may be beyond all signals, and would hold up our parent. The child goes with
/// us. SIGHUP, SIGINT, SIGQUIT and SIGTERM, also of before, begin the shorter time and are taken,
/// if it is shorter. Expects these four and SIGCHLD blocked, and a single thread. False if the
/// system makes no process.
bool do_in_child(const std::function<void()>& work, ChildBound bound);

/// Writes a line to stderr, of which the reader or the file system may not answer: within a second,
/// or not at all. As do_in_child().
void say_within_bound(const std::string& line);

}  // namespace elastrun::process
