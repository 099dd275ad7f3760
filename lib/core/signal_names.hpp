// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace elastrun {

/// "SIGTERM"; "SIGRTMIN+1" and the like for real-time signals; empty for no signal at all.
std::string signal_name(int signal);
/// "SIGTERM" -> 15, "SIGRTMIN+1", "SIGRTMAX-1"; 0 if the name is unknown.
int signal_number(std::string_view name);

struct SignalName {
  int number;
  std::string_view text;
};
/// All but the real-time ones. Of several names of one number the first is the one that is printed,
/// as in Python's signal.Signals.
std::span<const SignalName> signal_names();

}  // namespace elastrun
