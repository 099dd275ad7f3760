// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workers/diagnostics.hpp"

#include <string>

namespace elastrun::agent {

/// torchrun's failure block, character by character (torchrun-parity 4.9): title, other failures,
/// root cause. Tools read it, so it says nothing of our own.
std::string torchrun_report(const workers::Judgement& judgement, const std::string& entry_name,
                            const std::string& host);

/// The same for a person at a terminal, who sees one screen: its title, three failures with the
/// root cause first, and how many more there are. The rest is in our own verdict. Lines, ended.
std::string brief_report(const workers::Judgement& judgement, const std::string& entry_name);

/// torchrun's last line when a signal has ended it. The process that it names is the one that the
/// user started.
std::string signal_exception(int signal);

/// The failure's moment, as torchrun counts it: that of the error file, else that of the end.
WallTime time_of(const workers::Failure& failure);

}  // namespace elastrun::agent
